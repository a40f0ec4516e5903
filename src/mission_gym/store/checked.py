"""JSON files of a run, in the types that their readers count on; anything else is told by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError

from mission_gym.errors import RunStateError
from mission_gym.store.files import read_json

_T = TypeVar("_T")
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Str = InstanceOf[str]  # also what is not Unicode, such as the name of a folder


class Record(BaseModel):
    """A file of which only these keys are read by name; None is as good as absent."""

    model_config = ConfigDict(extra="allow")


def read_checked(path: Path, kind: TypeAdapter[_T]) -> _T:
    """The content of a file as `kind`; RunStateError with the file and the key that is wrong."""
    return check(path, read_json(path), kind)


def check(path: Path, content: Any, kind: TypeAdapter[_T]) -> _T:
    """The same of what was read."""
    try:
        return kind.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        rule = first["msg"].removeprefix("Input ").partition(" or instance of ")[0]
        raise RunStateError(
            f"{path} is damaged: {key or 'its content'} {rule}; restore it from a copy of the run"
        ) from error
