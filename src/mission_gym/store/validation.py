"""JSON files of a run, validated with pydantic, so that values have the types that their readers expect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError

from mission_gym.errors import RunStateError
from mission_gym.store.files import read_json

_T = TypeVar("_T")
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Str = InstanceOf[str]  # allows text that is not valid Unicode, such as the name of a folder


class Record(BaseModel):
    """A file in which only the declared keys are validated; None counts as absent."""

    model_config = ConfigDict(extra="allow")


def read_validated(path: Path, adapter: TypeAdapter[_T], max_bytes: int = 16 << 20) -> _T:
    """Read a JSON file of this type; RunStateError names the file and the wrong key."""
    return validate(path, read_json(path, max_bytes), adapter)


def validate(path: Path, content: Any, adapter: TypeAdapter[_T]) -> _T:
    """Validate content that was read from `path`."""
    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        rule = first["msg"].removeprefix("Input ").partition(" or instance of ")[0]
        what = f"{key or 'its content'} {rule}"
        raise RunStateError(f"{path} is damaged: {what}; restore it from a copy") from error
