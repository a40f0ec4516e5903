"""The stages of a config as environments, and the files that the environments of a run read.

Without a curriculum there is one environment and there are no stages. A run copies the files and folders that
keyword arguments name into its directory, and reads these copies from then on.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from mission_gym.config.curriculum import Curriculum, Stage, find_stage
from mission_gym.config.schema import Config
from mission_gym.data import EnvSpec
from mission_gym.env.factory import EnvRequest, Factory, find_snapshot_kwargs, make_factory
from mission_gym.env.pace import Pace
from mission_gym.env.stages import Stages, StageVariant, check_alike
from mission_gym.errors import (
    ConfigError,
    MissionGymError,
    RunStateError,
    TrustError,
    UsageError,
    nearest,
)
from mission_gym.names import is_in_run
from mission_gym.procs import CompanionNeeded
from mission_gym.store.files import disk_errors, read_validated, write_json
from mission_gym.store.rundir import RunDir

EnvSource = Callable[..., Any] | None  # a user's callable that can't be imported
_PREFIX = "stages."
_PATIENCE = 0.9  # of a worker's timeout, so that a hung game is reported and ended before its worker is
_FILES = TypeAdapter(dict[str, str])  # by keyword: the file or folder in env/


class Parts(NamedTuple):
    """The request and factory of an environment. With a curriculum they are those of the evaluation stage."""

    request: EnvRequest
    factory: Factory
    stages: Stages | None = None
    played: StageVariant | None = None  # in evaluations; None without a curriculum


def make_parts(
    config: Config,
    kwargs: dict[str, Any],
    source: EnvSource,
    calls: tuple[str, ...] | None,
    files: Mapping[str, str],
    companion_kwargs: dict[str, Any],
) -> Parts:
    """Make the parts of a config's environment. kwargs: of all stages. files: the run's copies, by the names
    that `name_file` gives to keywords of stages."""
    patience_s = _PATIENCE * config.vector.env_timeout
    shared = EnvRequest(config.env.env_id, kwargs, config.env.wrap, calls, patience_s, companion_kwargs)
    curriculum = config.env.curriculum
    if curriculum is None:
        return Parts(shared, _build(shared, source))
    variants: list[StageVariant] = []
    for number, stage in enumerate(curriculum.stages):
        own = {key: files.get(name_file(number, key), value) for key, value in stage.kwargs.items()}
        request = replace(shared, kwargs=kwargs | own)
        same = next((each for each in variants if each.request == request), None)
        factory = _build(request, source) if same is None else same.factory
        variants.append(StageVariant(request, factory, dict(stage.options) or None))
    played = variants[find_stage(curriculum, config.evaluation.eval_stage, "--eval-stage")]
    return Parts(played.request, played.whole, Stages(tuple(variants), curriculum.earlier), played)


def _build(request: EnvRequest, source: EnvSource) -> Factory:
    return make_factory(request if source is None else lambda: source(**request.read_kwargs()))


def has_several_arguments(curriculum: Curriculum | None) -> bool:
    """Whether stages differ in their keyword arguments, so that environments must be rebuilt between them."""
    stages: Sequence[Stage] = () if curriculum is None else curriculum.stages
    return len({json.dumps(stage.kwargs, sort_keys=True) for stage in stages}) > 1


def probe_stages(
    curriculum: Curriculum, parts: Parts, probe: Callable[[Factory], tuple[EnvSpec, Pace | None]]
) -> tuple[EnvSpec, Pace | None]:
    """Probe the environment of every stage; returns the result for the evaluation stage. Raises one error
    with all stages that do not fit."""
    assert parts.stages is not None
    found: tuple[EnvSpec, Pace | None] | None = None
    wrong: dict[int, MissionGymError] = {}
    variants = list(enumerate(parts.stages.variants))
    variants.sort(key=lambda item: item[1] is not parts.played)  # the others are compared with it
    for number, variant in variants:
        try:
            probed = probe(variant.whole)
            found = found or probed
            check_alike(found[0], probed[0])
        except (TrustError, CompanionNeeded):
            raise
        except MissionGymError as error:
            wrong[number] = error
    if wrong:
        raise _join(curriculum, wrong)
    assert found is not None
    return found


def _join(curriculum: Curriculum, wrong: dict[int, MissionGymError]) -> MissionGymError:
    """Join the errors of stages; if all stages have the same one, no stage is named."""
    if len({str(error) for error in wrong.values()}) == 1 and len(wrong) == len(curriculum.stages):
        return next(iter(wrong.values()))
    problems = [
        f"stage {number + 1} ({curriculum.labels[number]}): {wrong[number]} [{curriculum.location(number)}]"
        for number in sorted(wrong)
    ]
    kinds = [type(error) for error in wrong.values() if not isinstance(error, UsageError)]
    return kinds[0]("\n".join(problems)) if kinds else ConfigError(problems)


def check_metrics(curriculum: Curriculum, spec: EnvSpec) -> None:
    """Raise ConfigError for rules whose metric is not a return, a length, a declared outcome or an episode
    metric."""
    known = ["return", "length", *spec.outcomes]
    problems = []
    for number, stage in enumerate(curriculum.stages):
        for kind, rule in (("until", stage.until), ("back", stage.back)):
            compared = None if rule is None else rule.comparison
            if compared is None or compared.name in known or compared.name.startswith("episode/"):
                continue
            hint = nearest(compared.name, known)
            problems.append(
                f"{kind} of stage {number + 1}: {compared.name!r} is not a metric{hint}; use one of"
                f" {', '.join(known)} (metadata['outcomes'] declares outcomes), or episode/NAME for a value"
                f" in info['episode_metrics'] [{curriculum.location(number)}]"
            )
    if problems:
        raise ConfigError(problems)


def name_file(stage: int, key: str) -> str:
    """The name of a stage's keyword in env-files.json."""
    return f"{_PREFIX}{stage}.{key}"


def pick_common(files: Mapping[str, str]) -> dict[str, str]:
    """The files that all stages share."""
    return {key: path for key, path in files.items() if not key.startswith(_PREFIX)}


def read_files(run: RunDir) -> dict[str, str]:
    """The keywords that name files, each with the run's copy; RunStateError for a path outside the run."""
    if not run.env_files_json.exists():
        return {}
    files = {key: run.env / name for key, name in read_validated(run.env_files_json, _FILES).items()}
    for key, path in files.items():
        if not path.resolve().is_relative_to(run.path.resolve()):
            raise RunStateError(
                f"{run.env_files_json}: {key} names {path}, which is not in the run; correct it"
            )
    return {key: str(path) for key, path in files.items()}


def find_files(config: Config, request: EnvRequest, stages: Stages | None) -> dict[str, Path]:
    """The files and folders that keywords name, including those of stages, or that the environment reads by
    default. request: with the keywords of all stages."""
    files, runs_dir = dict[str, Path](), Path(config.run.runs_dir)
    named = {**request.kwargs, **find_snapshot_kwargs(request)}
    curriculum = config.env.curriculum
    if curriculum is not None and stages is not None:
        for number, (stage, variant) in enumerate(zip(curriculum.stages, stages.variants, strict=True)):
            named |= {name_file(number, key): variant.request.kwargs[key] for key in stage.kwargs}
    for key, value in named.items():
        if not isinstance(value, str) or not value or not os.path.exists(value):
            continue
        path = Path(value).resolve()
        if runs_dir.resolve().is_relative_to(path):
            raise UsageError(
                f"{key}={value} contains the runs folder {runs_dir}, and each run copies it; give a folder"
                " outside it [--env-kwargs]"
            )
        files[key] = path
    return files


def copy_files(run: RunDir, files: Mapping[str, Path]) -> dict[str, str]:
    """Copy files and folders into the run; returns the copies by keyword."""
    names: dict[str, str] = {}
    with disk_errors(run.env):
        run.env.mkdir(exist_ok=True)
        for key, path in files.items():
            name = f"{key}-{path.name}" if path.name in names.values() else path.name
            if path.is_dir():
                # Links in a parent's copies may lead out of it; those in the user's folders are followed.
                shutil.copytree(path, run.env / name, symlinks=is_in_run(path))
            else:
                shutil.copy2(path, run.env / name)
            names[key] = name
    if names:
        write_json(run.env_files_json, names)
    return read_files(run)
