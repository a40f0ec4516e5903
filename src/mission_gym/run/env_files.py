"""The environment of a run, opened from its own copies of the files that the environment reads."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import TypeAdapter

from mission_gym.config.schema import Config
from mission_gym.data import EnvSpec
from mission_gym.env.factory import find_snapshot_kwargs
from mission_gym.env.leaves import may_hold_ids
from mission_gym.errors import RunStateError, UsageError
from mission_gym.run.environment import Environment, open_environment, permit_names
from mission_gym.run.stages import EnvSource, list_staged, make_parts, pick_common
from mission_gym.store.files import disk_errors, write_json
from mission_gym.store.lineage import InferredLeaf, read_lineage
from mission_gym.store.rundir import RunDir
from mission_gym.store.validation import read_validated

_NAMES = TypeAdapter(dict[str, str])  # by keyword: the file or folder in env/


def open_run_environment(run: RunDir, config: Config, source: EnvSource = None) -> Environment:
    """The environment of a run, from its own snapshot of config files; refused if its spaces are no longer
    those that the run was made with."""
    if source is None and config.env.env_id.startswith("<"):
        raise UsageError(
            f"run {run.name} was trained on a callable that can't be imported ({config.env.env_id});"
            " pass it as env= in Python"
        )
    # Modules of the user's lie where the run was started.
    calls = permit_names(config, lambda path: False, run=run.path, folder=read_lineage(run).folder)
    files = read_files(run)
    kwargs = config.env.env_kwargs | pick_common(files)
    environment = open_environment(config, kwargs, source, calls=calls, files=files)
    environment = read_as_told(environment, run)
    made_with = read_lineage(run).env_signature
    if made_with != environment.spec.signature:
        raise RunStateError(
            f"the environment {environment.spec.env_id} has changed its spaces since run {run.name} was made,"
            f" or this version reads them otherwise (signature {made_with} -> {environment.spec.signature});"
            " a policy can't be carried over"
        )
    return environment


def tell_readings(spec: EnvSpec) -> dict[str, InferredLeaf]:
    """How the arrays are read whose values had to tell (`env/boxes.py`): those of the next time may tell
    otherwise, and a run is opened as it was made."""
    return {
        leaf.name: InferredLeaf(leaf.kind, leaf.nvec, leaf.start, leaf.channels_last, leaf.open_ended)
        for leaf in spec.leaves
        if leaf.dtype == "uint8" and (leaf.open_ended or may_hold_ids(leaf))
    }


def read_as_told(environment: Environment, run: RunDir) -> Environment:
    """The environment with such arrays read as those of a run, where it has them."""
    told = read_lineage(run).readings
    leaves = tuple(
        replace(leaf, **asdict(told[leaf.name])) if leaf.name in told and leaf.dtype == "uint8" else leaf
        for leaf in environment.spec.leaves
    )
    return replace(environment, spec=replace(environment.spec, leaves=leaves))


def read_files(run: RunDir) -> dict[str, str]:
    """The keywords that name files, each with the run's own copy; RunStateError for one outside the run."""
    if not run.env_files_json.exists():
        return {}
    files = {key: run.env / name for key, name in read_validated(run.env_files_json, _NAMES).items()}
    for key, path in files.items():
        if not path.resolve().is_relative_to(run.path.resolve()):
            raise RunStateError(f"{run.env_files_json}: {key} names {path}, which is not in the run; mend it")
    return {key: str(path) for key, path in files.items()}


def find_files(config: Config, environment: Environment) -> dict[str, Path]:
    """The files and folders that the keywords name, those of stages too, or that the environment reads
    unnamed."""
    files, runs_dir = dict[str, Path](), Path(config.run.runs_dir)
    common = replace(environment.request, kwargs=environment.kwargs)
    named = {**common.kwargs, **find_snapshot_kwargs(common)}
    if config.env.curriculum is not None and environment.stages is not None:
        named |= list_staged(config.env.curriculum, environment.stages)
    for key, value in named.items():
        if not isinstance(value, str) or not value or not os.path.exists(value):
            continue
        path = Path(value).resolve()
        if runs_dir.resolve().is_relative_to(path):
            raise UsageError(
                f"{key}={value} holds the runs folder {runs_dir}, and is copied into each run; give a folder"
                " beside it [--env-kwargs]"
            )
        files[key] = path
    return files


def own_files(
    run: RunDir, files: dict[str, Path], config: Config, environment: Environment, source: EnvSource
) -> Environment:
    """Copy the files into the run, and use them from there."""
    names: dict[str, str] = {}
    with disk_errors(run.env):
        run.env.mkdir(exist_ok=True)
        for key, path in files.items():
            name = f"{key}-{path.name}" if path.name in names.values() else path.name
            if path.is_dir():
                shutil.copytree(path, run.env / name)
            else:
                shutil.copy2(path, run.env / name)
            names[key] = name
    if not names:
        return environment
    write_json(run.env_files_json, names)
    owned = read_files(run)
    kwargs = environment.kwargs | pick_common(owned)
    return environment.with_parts(
        make_parts(
            config, kwargs, source, environment.request.calls, owned, environment.request.companion_kwargs
        ),
        kwargs,
    )
