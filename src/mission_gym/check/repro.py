"""Repro bundles: the seed and actions of an episode that failed, as JSON in the run, and their replay.

A bundle is replayed in a child process, because it may end that process.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from mission_gym.env.agents_slot import make_slot
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe_env
from mission_gym.env.slot import action_rows
from mission_gym.env.wrapper_names import name_code
from mission_gym.errors import (
    EnvContractError,
    MissionGymError,
    RunStateError,
    UsageError,
    WorkerDied,
    describe,
)
from mission_gym.procs import BoundedLog, Child, Link, dump_object, with_companion
from mission_gym.store.files import Count, Record, read_json, validate, write_json
from mission_gym.store.rundir import RunDir, read_lineage
from mission_gym.store.trusted import permit, permit_kwargs

_REPLAY_S = 120.0  # for one step


def write_bundle(
    run: RunDir, error: MissionGymError, request: EnvRequest, options: dict[str, Any] | None = None
) -> Path:
    """Write the facts of an error into the run. options: of the episode's reset."""
    facts = error.facts or {}
    path = run.path / f"repro-env{facts['env_index']}-episode{facts['episode']}.json"
    name = {"env_id": request.env_id, "env_kwargs": request.kwargs, "wrap": list(request.wrap)}
    write_json(path, {**name, "options": options, **facts, "error": str(error)})
    return path


class _Bundle(Record):
    env_id: str
    env_kwargs: dict[str, Any]
    wrap: list[str]
    seed: Count
    actions: list[Any] | None
    options: dict[str, Any] | None = None
    env_index: Count = 0
    episode: Count = 0


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Whether the failure was reproduced, and how."""

    failed: bool
    text: str


def replay_bundle(path: Path) -> ReplayResult:
    """Replay a bundle; TrustError if it names code that the user has not allowed."""
    bundle = _read_bundle(path)
    run = RunDir(path.resolve().parent)
    folder = read_lineage(run).folder if run.lineage_json.exists() else ""
    permit_kwargs(bundle["env_id"], bundle["env_kwargs"])
    bundle["calls"] = permit((bundle["env_id"], *name_code(bundle["wrap"])), runs=[run.path], folder=folder)
    where = f"{bundle['env_id']}, seed {bundle['seed']}"
    if bundle["actions"] is None:
        text = f"{where}: the episode was too long for its actions to be kept, so it can't be replayed"
        return ReplayResult(False, text)
    reproduced = f"{where}: the failure was reproduced at step"
    child = Child("mission_gym.check.repro:serve_replay", dump_object(bundle), on_output=BoundedLog(None))
    step = -1
    try:
        while replies := child.wait(_REPLAY_S):
            for kind, content in replies:
                if kind == "step":
                    step = content
                elif kind == "refused":
                    raise content
                elif kind == "failed":
                    return ReplayResult(True, f"{reproduced} {_show_step(step)}: {content}")
                else:
                    played = f"{where}: all {len(bundle['actions'])} actions were played without a failure"
                    return ReplayResult(False, f"{played}; its cause is not only the seed and the actions")
        how = f"it hangs; the stack:\n{child.read_stack()}"
    except WorkerDied:
        how = f"the process {child.describe_end()}"
    finally:
        child.end()
    return ReplayResult(True, f"{reproduced} {_show_step(step)}: {how}")


def serve_replay(link: Link, setup: bytes) -> None:
    """The main function of the child; it announces every step before it is played."""
    bundle = pickle.loads(setup)
    request = EnvRequest(bundle["env_id"], bundle["env_kwargs"], tuple(bundle["wrap"]), bundle["calls"])
    try:
        env, _companion = with_companion(
            lambda kwargs: make_factory(replace(request, companion_kwargs=kwargs))()
        )
        spec = probe_env(env, request.env_id)
        slot = make_slot(lambda: env, spec, bundle["env_index"], lambda episode: bundle["seed"])
        slot.reset(bundle["episode"], options=bundle["options"])
        slot.check_values()
        terminated: Any = False
        for step, action in enumerate(action_rows(spec, np.asarray(bundle["actions"], spec.action.dtype))):
            link.send(("step", step))
            _, terminated, _ = slot.step(action)
            slot.check_values()
        if slot.ended:
            slot.finish(bool(np.all(terminated)))
    except Exception as error:  # noqa: BLE001  border: worker main
        if isinstance(error, UsageError) and not isinstance(error, EnvContractError):
            link.send(("refused", error))
        else:
            link.send(("failed", str(error) if isinstance(error, MissionGymError) else describe(error)))
    else:
        link.send(("done", None))


def _show_step(step: int) -> str:
    return "0 (building or resetting)" if step < 0 else str(step)


def _read_bundle(path: Path) -> dict[str, Any]:
    bundle = read_json(path)
    needed = {name for name, field in _Bundle.model_fields.items() if field.is_required()}
    missing = needed - set(bundle if isinstance(bundle, dict) else ())
    if missing:
        raise RunStateError(f"{path} is not a repro bundle: it lacks {', '.join(sorted(missing))} [--repro]")
    return validate(path, bundle, TypeAdapter(_Bundle)).model_dump()
