"""Starts runs. Everything that can be refused is refused before a folder is made."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mission_gym.check.devices import device_memory, name_gpu
from mission_gym.config.layers import Resolved
from mission_gym.config.plain_yaml import to_plain
from mission_gym.config.schema import Config, parse_stop_when
from mission_gym.data import EnvSpec
from mission_gym.errors import ConfigError, DiskError, ResourceRefused, RunStateError
from mission_gym.learner.contract import Learner
from mission_gym.plan.cache import make_key, note_rate
from mission_gym.plan.costs import NUM_BLOCKS, measure_collect, predict_fps, prime_steps
from mission_gym.plan.facts import EnvFacts
from mission_gym.plan.memory import check_memory
from mission_gym.plan.setups import find_measured
from mission_gym.plan.summary import RunCosts, judge_preset, make_plan
from mission_gym.procs import usable_cores
from mission_gym.procs.machine import read_share, versions
from mission_gym.run.build import algorithm_of, make_learner, one_blas_thread
from mission_gym.run.config import resolve, write_config
from mission_gym.run.environment import SERIAL_REMEDY, Environment, list_readings
from mission_gym.run.recorder import Listener
from mission_gym.run.selection import describe_evaluations, fit_freq
from mission_gym.run.session import Session
from mission_gym.run.settle import Prepared, prepare_run, set_num_agents, settle
from mission_gym.run.stages import EnvSource, copy_files, find_files
from mission_gym.store import lock
from mission_gym.store.files import disk_errors, user_folder, write_json
from mission_gym.store.groups import announce_run
from mission_gym.store.rundir import Lineage, RunDir, slug, write_lineage
from mission_gym.store.sinks import check_installed, choose_sinks
from mission_gym.store.trusted import allow, name_tracker


@contextmanager
def start_run(resolved: Resolved, listener: Listener, source: EnvSource = None) -> Iterator[Session]:
    """A new run, locked and ready to train; its plan was emitted."""

    def say(message: str) -> None:
        with suppress(OSError):  # the terminal may be closed
            listener({"event": "note", "message": message})

    prepared = prepare_run(resolved, source, say)
    with ExitStack() as stack:
        resolved, notes = hold_seed(prepared.resolved, stack)
        prepared = prepared._replace(resolved=resolved, notes=[*prepared.notes, *notes])
        session = stack.enter_context(begin(prepared, listener, source=source))
        yield session
    rate, tuned = session.rate, prepared.tuned
    if tuned is not None and tuned.key and rate.training is not None and rate.is_reliable:
        note_rate(tuned.key, rate.training)


def hold_seed(resolved: Resolved, stack: ExitStack) -> tuple[Resolved, list[str]]:
    """Hold the seed of a run until the stack closes. If it was not given, and runs of the same environment
    and algorithm in the same folder hold it, the next free one is used, with a note."""
    config = resolved.config
    runs = str(Path(config.run.runs_dir).resolve())
    key = make_key({"runs": runs, "env": config.env.env_id, "algo": config.run.algo})
    folder, seed = user_folder("state") / "seeds", config.run.seed
    with suppress(DiskError), disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                stack.enter_context(lock.hold(folder / f"{key}-{seed}.lock", wait_s=0.0, remove=True))
                break
            except RunStateError:
                if resolved.sources["run.seed"] != "default":
                    break
                seed += 1
    if seed == config.run.seed:
        return resolved, []
    taken = f"a run of {config.env.env_id} with seed {config.run.seed} is running in {config.run.runs_dir}"
    resolved = resolved.with_values({"run.seed": seed}, f"plan: {taken}")
    return resolved, [f"seed {seed}: {taken}; --seed {config.run.seed} repeats it, --seeds trains several"]


@contextmanager
def begin(
    prepared: Prepared,
    listener: Listener,
    *,
    source: EnvSource,
    parentage: Lineage | None = None,
    start: int = 0,
    inspect: Callable[[Learner], None] = lambda learner: None,
) -> Iterator[Session]:
    """Make the folder of a run and everything in it, up to the first step.

    start: the step of the parent. inspect: may refuse the learner before there is a folder. A start that
    fails leaves no folder, unless it holds the repro bundle of an environment's failure.
    """
    environment, resolved, notes, tuned = prepared
    config, spec = resolved.settled, environment.spec
    check_outcome(config, spec)
    check_installed(choose_sinks(config.value))
    entry = tuned.entry if tuned else None
    measured = EnvFacts(**entry["measured"]["env"]) if entry else None
    memory_bytes = check_memory(config, environment.backend, spec, algorithm_of(config), measured)
    learner = make_learner(config, spec)  # refuses a network that can't be built
    inspect(learner)
    if environment.limited() is not environment and config.evaluation.eval_freq:
        limit = f"evaluations truncate episodes at {environment.evaluation_steps:,} steps"
        notes = [*notes, f"the environment has no step limit; {limit}; --wrap time-limit:N sets one"]
    files = find_files(config, replace(environment.request, kwargs=environment.kwargs), environment.stages)
    with one_blas_thread(), ExitStack() as stack:
        session: Session | None = None
        run = RunDir.create(Path(config.run.runs_dir), config.run.run_name or slug(config.env.env_id))
        try:
            stack.enter_context(run.lock())
            announce_run(run.path)
            for name in config.run.track:
                allow(name_tracker(name, run.path))
            environment = environment.with_files(copy_files(run, files), config, source)
            lineage = replace(
                parentage or Lineage(""),
                env_signature=spec.signature,
                readings=list_readings(spec),
                folder=os.getcwd(),
            )
            write_lineage(run, lineage)
            write_config(run, resolved)
            session, refused = open_session(run, resolved, environment, learner, listener)
            stack.enter_context(closing(session))
            _prime(session, memory_bytes, [*notes, *refused], start, None if refused else entry)
            yield session
        except BaseException as error:
            if session is not None and session.has_begun:
                raise
            if session is not None and getattr(error, "facts", None) is not None:
                session.fail_early(error)
            else:
                stack.close()
                shutil.rmtree(run.path, ignore_errors=True)
            raise


def open_session(
    run: RunDir, resolved: Resolved, environment: Environment, learner: Learner, listener: Listener
) -> tuple[Session, list[str]]:
    """The session of a run. If the system refuses its processes, it gets fewer of them, or none if the code
    is trusted; the config stores the cause, and a note is returned. Explicit values are not changed."""
    notes: list[str] = []
    while True:
        try:
            session = Session(run, resolved, environment, learner, listener)
            if notes:
                write_config(run, resolved)
            return session, notes
        except ResourceRefused as refusal:
            environment = environment.with_fewer_processes(refusal)
            now = {"vector.vector": environment.backend.name, "vector.num_workers": environment.num_workers}
            changed = {path: value for path, value in now.items() if resolved.config.value(path) != value}
            if given := [resolved.sources[path] for path in changed if resolved.explicit(path)]:
                raise ResourceRefused(f"{refusal}, {SERIAL_REMEDY} [{', '.join(given)}]") from refusal
            notes = [f"{environment.backend.describe(environment.num_workers)}: {refusal}"]
            resolved = resolved.with_values(changed, f"plan: {refusal}")


def _prime(
    session: Session, memory_bytes: int, notes: list[str], start: int, entry: dict[str, Any] | None
) -> None:
    """Prime the statistics, measure costs, set eval_freq, and emit the plan. entry: of a tuned plan."""
    config, spec, learner = session.config, session.spec, session.learner
    algorithm = algorithm_of(config)
    # A custom network may have state outside its arrays, which timing would change: time another one.
    timed = make_learner(config, spec) if config.policy.network else learner
    with session.status.phase("measuring"), device_memory(config):
        update_s = algorithm.measure_update_s(timed, config, spec)
        collect_s, obs, num_failed, episode_steps = measure_collect(
            session.collector, learner.weights(), prime_steps(config), NUM_BLOCKS
        )
    learner.prime(obs)
    episode_steps = min(
        episode_steps, spec.num_agents * (spec.max_episode_steps or session.environment.evaluation_steps)
    )
    fitted = fit_freq(session.resolved, spec, episode_steps)
    if fitted is not session.resolved:
        session.resolved = fitted
        write_config(session.run, fitted)
        config = session.config
    notes = [*notes, *timed.take_notes()]
    if share := read_share():
        notes.append(f"planned for {share} of the machine's cores")
    if num_failed:
        session.state.env_failures += num_failed
        notes.append(f"{num_failed} episodes failed while the statistics were primed; they are counted")
    fps = entry["steps_per_s"] if entry else predict_fps(config, collect_s, update_s)
    total = config.run.timesteps - start
    if config.compute.device == "cpu":
        notes += judge_preset(
            fitted.preset, total, fps, usable_cores(), lambda: _measure_without_preset(session, collect_s)
        )
    plan = make_plan(
        config,
        session.environment.backend,
        spec,
        algorithm,
        RunCosts(collect_s, update_s, fps, memory_bytes),
        start=start,
        evaluations=describe_evaluations(
            fitted, spec, total, episode_steps=episode_steps, collect_s=collect_s, train_s=total / fps
        ),
        notes=notes,
        reasons=entry["reasons"] if entry else [],
    )
    measured = {"collect_s_per_step": collect_s, "update_s_per_step": update_s}
    document = asdict(plan) | {
        "versions": versions(name_gpu(config.compute.device)),
        "signature": spec.signature,
        "tuning": entry,
        "measured": measured | {"setups": find_measured(config, spec)},
    }
    write_json(session.run.plan_json, document)
    session.run.write_status(predicted_fps=round(fps, 1))
    stages = {} if config.env.curriculum is None else {"stages": config.env.curriculum.labels}
    fields: dict[str, Any] = {"run": str(session.run.path), "name": session.run.name}
    fields |= {"algo": config.run.algo, "main_outcome": spec.main_outcome}
    session.recorder.emit("plan", **fields, **stages, **{"time/plan": asdict(plan)})


def check_outcome(config: Config, spec: EnvSpec) -> None:
    """Raise ConfigError if `stop_when` names an outcome that the environment does not declare."""
    if config.run.stop_when is None:
        return
    name, known = parse_stop_when(config.run.stop_when).name, ["return", *spec.outcomes]
    if name not in known:
        raise ConfigError(
            f"stop_when={config.run.stop_when!r}: the environment does not declare the outcome {name!r} in"
            f" metadata['outcomes']; it has {', '.join(known)} [--stop-when]"
        )


def _measure_without_preset(session: Session, collect_s: float) -> float | None:
    """The expected rate without the preset, with a measured update; None if the other values need one."""
    resolved, spec = session.resolved, session.spec
    sections = (resolved.config.run.algo, "policy", "compute")
    given = [path for path in resolved.sources if path.startswith(sections) and resolved.explicit(path)]
    sets = [f"{path}={json.dumps(to_plain(resolved.config.value(path)))}" for path in given]
    try:
        bare = resolve(resolved.config.env.env_id, {"algo": resolved.config.run.algo}, sets=sets)
        config = settle(set_num_agents(bare, spec), session.environment)[0].settled
    except ConfigError:
        return None
    update_s = algorithm_of(config).measure_update_s(make_learner(config, spec), config, spec)
    return predict_fps(config, collect_s, update_s)
