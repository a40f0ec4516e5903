"""Begins and takes up runs: everything that can be refused is refused before a folder is made."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mission_gym.config.layers import Resolved, format_config
from mission_gym.config.profiles import choose_profile
from mission_gym.config.rules import finish
from mission_gym.config.schema import Config, parse_stop_when
from mission_gym.env.factory import EnvRequest, find_snapshot_kwargs, make_factory
from mission_gym.errors import ConfigError, RunStateError, UsageError, WorkerError
from mission_gym.learner.contract import Learner
from mission_gym.plan.cache import note_rate
from mission_gym.plan.costs import NUM_BLOCKS, measure_collect, predict_fps, prime_steps
from mission_gym.plan.facts import EnvFacts
from mission_gym.plan.memory import check_memory
from mission_gym.plan.sheet import judge_preset, make_plan
from mission_gym.plan.tuner import LOOK_S, Tuned, may_plan, tune_run
from mission_gym.plan.ways import find_measured
from mission_gym.plan.wishes import fix_envs
from mission_gym.procs import usable_cores
from mission_gym.procs.versions import compare_versions, versions
from mission_gym.run.assemble import (
    Assembly,
    algorithm_of,
    drop_false_twin,
    make_learner,
    one_blas_thread,
    settle,
)
from mission_gym.run.config import read_config
from mission_gym.run.environment import (
    EVALUATION_STEPS,
    Environment,
    EnvSource,
    open_environment,
    permit_names,
    place,
)
from mission_gym.run.recorder import Listener
from mission_gym.run.session import Session
from mission_gym.run.snapshot import learned_steps
from mission_gym.store.checkpoints import Checkpoint, load_last_good
from mission_gym.store.files import disk_errors, read_json, write_atomic, write_json
from mission_gym.store.lineage import Lineage, read_lineage, write_lineage
from mission_gym.store.rundir import RunDir, slug

_FILES = "env-files.json"  # keyword -> the run's own copy, in env/, of the file or folder named there


@contextmanager
def start_run(resolved: Resolved, listener: Listener, source: EnvSource = None) -> Iterator[Session]:
    """A new run, locked and ready to train; the plan was emitted."""
    resolved = choose_profile(resolved)
    first, _ = finish(fix_envs(resolved))  # refuses before anything is measured
    look_s = LOOK_S if may_plan(first.config) else 0.0
    calls = permit_names(first.config, first.typed)
    environment = open_environment(
        first.config, dict(first.config.env.env_kwargs), source, look_s=look_s, calls=calls
    )
    workshop = Assembly(environment, algorithm_of(first.config))

    def say(message: str) -> None:
        listener({"event": "note", "message": message})

    with one_blas_thread():
        tuned = tune_run(workshop, resolved, say)
    resolved, notes = finish(tuned.resolved)
    resolved, more = settle(resolved, environment.spec)
    environment = place(environment, resolved.settled)
    notes += [*tuned.notes, *more]
    with begin(resolved, environment, listener, notes, source=source, tuned=tuned) as session:
        yield session
    if tuned.key and session.rate.training is not None and session.rate.is_telling:
        note_rate(tuned.key, session.rate.training)


@contextmanager
def begin(
    resolved: Resolved,
    environment: Environment,
    listener: Listener,
    notes: list[str],
    *,
    source: EnvSource,
    parentage: Lineage | None = None,
    start: int = 0,
    tuned: Tuned | None = None,
    inspect: Callable[[Learner], None] = lambda learner: None,
) -> Iterator[Session]:
    """Make the folder of a settled config and everything in it, up to the first step.

    inspect: may refuse the learner before there is a folder. A start that fails leaves none behind, unless an
    environment's failure is to be replayed from it.
    """
    config = resolved.settled
    check_outcome(config, environment)
    tuning = tuned.entry if tuned else None
    measured = EnvFacts(**tuning["measured"]["env"]) if tuning else None
    memory = check_memory(config, environment.backend, environment.spec, algorithm_of(config), measured)
    learner = make_learner(config, environment.spec)  # a network that can't be built is refused here
    inspect(learner)
    if environment.limited() is not environment and config.evaluation.eval_freq:
        notes = [*notes, f"no step limit is known; evaluations cut episodes at {EVALUATION_STEPS:,} steps"]
    files = find_files(environment.request, Path(config.run.runs_dir))
    run = RunDir.create(Path(config.run.runs_dir), config.run.run_name or slug(config.env.env_id))
    with run.lock(), one_blas_thread(), ExitStack() as stack:
        session: Session | None = None
        try:
            environment = _own_files(run, files, config, environment, source)
            write_atomic(run.config_yaml, format_config(resolved))
            write_lineage(
                run,
                replace(
                    parentage or Lineage("", ""),
                    config_hash=config_hash(config),
                    env_signature=environment.spec.signature,
                    folder=os.getcwd(),
                ),
            )
            session = stack.enter_context(closing(Session(run, resolved, environment, learner, listener)))
            _prepare(session, resolved.preset, memory, notes, start, tuning)
        except BaseException as error:
            if session is not None and isinstance(error, WorkerError):
                session.fail_early(error)
            else:
                stack.close()
                shutil.rmtree(run.path, ignore_errors=True)
            raise
        yield session


def _prepare(
    session: Session,
    preset: str | None,
    memory: int,
    notes: list[str],
    start: int,
    tuning: dict[str, Any] | None,
) -> None:
    """Prime the statistics, measure, and emit the plan; `tuning` is what a tuned run was planned from."""
    config, spec, learner = session.config, session.spec, session.learner
    algorithm = algorithm_of(config)
    # What an own network keeps beside its arrays can't be put back: another one is timed.
    timed = make_learner(config, spec) if config.policy.network else learner
    update_s = algorithm.measure_update_s(timed, config, spec)
    collect_s, obs, num_failed = measure_collect(
        session.collector, learner.weights(), prime_steps(config), NUM_BLOCKS
    )
    learner.prime(obs)
    if num_failed:
        session.counters["env_failures"] += num_failed
        notes = [
            *notes,
            f"episodes that failed while the statistics were primed: {num_failed}; they are counted",
        ]
    fps = tuning["steps_per_s"] if tuning else predict_fps(config, collect_s, update_s)
    if config.compute.device == "cpu":
        notes = [*notes, *judge_preset(preset, config.run.timesteps - start, fps, usable_cores())]
    reasons = tuning["reasons"] if tuning else []
    plan = make_plan(config, session.environment.backend, spec, algorithm, memory, fps, notes, start, reasons)
    document = asdict(plan) | {"versions": versions(), "signature": spec.signature, "tuning": tuning}
    measured = {"collect_s_per_step": collect_s, "update_s_per_step": update_s}
    document |= {"measured": measured | {"ways_to_learn": find_measured(config, spec)}}
    write_json(session.run.plan_json, document)
    session.run.write_status(predicted_fps=round(fps, 1))
    session.recorder.emit(
        "plan", run=str(session.run.path), name=session.run.name, main_outcome=spec.main_outcome,
        **{"time/plan": asdict(plan)},
    )  # fmt: skip


@contextmanager
def resume_run(
    run: RunDir, listener: Listener, *, timesteps: int | None = None, source: EnvSource = None
) -> Iterator[Session]:
    """A run taken up in place, exactly where its last good checkpoint stands."""
    with run.lock(), one_blas_thread():
        resolved = read_config(run.config_yaml)
        checkpoint, notes = load_last_good(run.checkpoints)
        resolved, more = _extend(run, resolved, checkpoint, timesteps)
        environment = open_run_environment(run, resolved.config, source)
        check_signature(run, environment)
        remedy = f"go on with `mission-gym branch {run.name} --kernel torch`"
        resolved, _, changed = drop_false_twin(resolved, environment.spec, remedy)
        learner = make_learner(resolved.settled, environment.spec)
        with closing(Session(run, resolved, environment, learner, listener)) as session:
            restored = session.restore(checkpoint)
            if timesteps is not None or changed:
                write_atomic(run.config_yaml, format_config(resolved))
                write_lineage(run, replace(read_lineage(run), config_hash=config_hash(resolved.config)))
            exact = _exactness(run, resolved.config, restored.exact, other_kernel=bool(changed))
            session.recorder.emit(
                "resume", run=str(run.path), name=run.name, step=checkpoint.step,
                total=resolved.config.run.timesteps, main_outcome=session.spec.main_outcome,
                notes=[*notes, *more, *changed, *restored.told, exact],
            )  # fmt: skip
            yield session


def _extend(
    run: RunDir, resolved: Resolved, checkpoint: Checkpoint, timesteps: int | None
) -> tuple[Resolved, list[str]]:
    """The config with a new total where one was asked for; RunStateError if there is nothing to do."""
    notes: list[str] = []
    status, step = run.read_status(), checkpoint.step
    if timesteps is not None:
        if timesteps <= step:
            raise RunStateError(
                f"timesteps={timesteps} is not above the {step} steps of run {run.name} [--timesteps]"
            )
        wanted = resolved.with_values({"run.timesteps": timesteps}, "flag --timesteps")
        resolved, notes = finish(wanted, learned_steps(checkpoint))
        falling = resolved.config.algorithm.names_that_fall()
        if falling:
            notes.append(f"{', '.join(falling)} now fall over {resolved.config.run.timesteps} steps")
    elif status.get("state") == "done":
        raise RunStateError(
            f"run {run.name} is finished ({status.get('cause', 'done')}, {step} steps);"
            f" `mission-gym resume {run.name} --timesteps N` extends it"
        )
    return resolved, notes


def _exactness(run: RunDir, config: Config, restored: bool, *, other_kernel: bool) -> str:
    try:
        plan = dict(read_json(run.plan_json))
    except (RunStateError, TypeError, ValueError):
        return "whether the resume is exact can't be told: plan.json is missing or damaged"
    changed, unknown = compare_versions(plan.get("versions", {}))
    if changed or other_kernel:
        causes = [*changed, *(["another kernel learns"] if other_kernel else [])]
        return f"the resume is statistical, not exact: {', '.join(causes)}"
    if config.vector.blocks == "first_ready":
        return (
            "the resume is statistical, not exact: first-ready blocks depend on timing, and the segments"
            " that were under way are dropped"
        )
    if not restored:
        return "the resume is not exact: not everything could be brought back"
    if unknown:
        return f"the resume is exact if {' and '.join(unknown)} did not change: their versions were not kept"
    return "the resume is exact"


def check_outcome(config: Config, environment: Environment) -> None:
    """Refuse a `stop_when` that names an outcome the environment does not declare."""
    if config.run.stop_when is None:
        return
    name = parse_stop_when(config.run.stop_when).name
    declared = environment.spec.outcomes
    if name != "return" and name not in declared:
        known = ", ".join(["return", *declared])
        raise ConfigError(
            f"stop_when={config.run.stop_when!r}: the environment declares no outcome {name!r} in"
            f" metadata['outcomes']; it has {known} [--stop-when]"
        )


def config_hash(config: Config) -> str:
    """A hash of everything that can change a number."""
    unseen = {"run": {"run_name", "runs_dir", "notes", "tensorboard"}, "compute": {"tune"}}
    content = {
        name: section.model_dump(mode="json", exclude=unseen.get(name, set()))
        for name, section in config.sections().items()
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def open_run_environment(run: RunDir, config: Config, source: EnvSource = None) -> Environment:
    """The environment of a run, from its own snapshot of config files."""
    if source is None and config.env.env_id.startswith("<"):
        raise UsageError(
            f"run {run.name} was trained on a callable that can't be imported ({config.env.env_id});"
            " pass it as env= in Python"
        )
    # Modules of the user's lie where the run was started.
    calls = permit_names(config, lambda path: False, run=run.path, folder=read_lineage(run).folder)
    return open_environment(config, config.env.env_kwargs | read_files(run), source, calls=calls)


def read_files(run: RunDir) -> dict[str, str]:
    """The keywords that name files, each with the run's own copy; RunStateError for one outside the run."""
    if not (run.path / _FILES).exists():
        return {}
    files = {key: run.env / name for key, name in read_json(run.path / _FILES).items()}
    for key, path in files.items():
        if not path.resolve().is_relative_to(run.path.resolve()):
            raise RunStateError(f"{run.path / _FILES}: {key} names {path}, which is not in the run; mend it")
    return {key: str(path) for key, path in files.items()}


def check_signature(run: RunDir, environment: Environment) -> None:
    """Refuse an environment whose spaces are no longer those that the run was made with."""
    made_with = read_lineage(run).env_signature
    if made_with != environment.spec.signature:
        raise RunStateError(
            f"the environment {environment.spec.env_id} has changed its spaces since run {run.name} was made"
            f" (signature {made_with} -> {environment.spec.signature}); a policy can't be carried over"
        )


def find_files(request: EnvRequest, runs_dir: Path) -> dict[str, Path]:
    """The files and folders that the keywords name, or that the environment reads unnamed."""
    files: dict[str, Path] = {}
    for key, value in {**request.kwargs, **find_snapshot_kwargs(request)}.items():
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


def _own_files(
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
    write_json(run.path / _FILES, names)
    if source is not None:
        kwargs = environment.request.kwargs | read_files(run)
        return open_environment(config, kwargs, source, calls=environment.request.calls)
    request = replace(environment.request, kwargs=environment.request.kwargs | read_files(run))
    return replace(environment, request=request, factory=make_factory(request))
