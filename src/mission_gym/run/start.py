"""Begins runs: everything that can be refused is refused before a folder is made."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mission_gym.check.devices import device_memory, free_device_bytes, name_card, peak_device_bytes
from mission_gym.config.layers import Resolved
from mission_gym.config.rules import apply_rules, check_curriculum
from mission_gym.config.schema import Config, parse_stop_when
from mission_gym.errors import ConfigError, WorkerError
from mission_gym.learner.contract import Learner
from mission_gym.plan.cache import note_rate
from mission_gym.plan.costs import NUM_BLOCKS, measure_collect, predict_fps, prime_steps
from mission_gym.plan.evaluations import describe_evaluations, fit_freq
from mission_gym.plan.facts import EnvFacts
from mission_gym.plan.memory import check_memory
from mission_gym.plan.sheet import expect_use, judge_preset, make_plan
from mission_gym.plan.tuner import LOOK_S, Tuned, tune_run
from mission_gym.plan.ways import find_measured
from mission_gym.procs import usable_cores
from mission_gym.procs.machine import read_share
from mission_gym.procs.versions import versions
from mission_gym.run.assemble import (
    Assembly,
    algorithm_of,
    make_learner,
    one_blas_thread,
    settle,
)
from mission_gym.run.env_files import find_files, own_files, tell_readings
from mission_gym.run.environment import (
    EVALUATION_STEPS,
    Environment,
    leave_vector_form,
    probe_environment,
    with_backend,
)
from mission_gym.run.exactness import write_config
from mission_gym.run.recorder import Listener
from mission_gym.run.session import Session
from mission_gym.run.stages import EnvSource
from mission_gym.store.announce import announce_run
from mission_gym.store.files import write_json
from mission_gym.store.lineage import Lineage, write_lineage
from mission_gym.store.rundir import RunDir, slug
from mission_gym.store.sinks import check_installed, choose_sinks


@contextmanager
def start_run(resolved: Resolved, listener: Listener, source: EnvSource = None) -> Iterator[Session]:
    """A new run, locked and ready to train; the plan was emitted."""
    resolved, adapted = leave_vector_form(resolved)
    check_curriculum(resolved)
    environment, resolved = probe_environment(resolved, source, look_s=LOOK_S)
    workshop = Assembly(environment, algorithm_of(resolved.config))

    def say(message: str) -> None:
        with suppress(OSError):  # nobody may be there to hear it
            listener({"event": "note", "message": message})

    with one_blas_thread():
        tuned = tune_run(workshop, resolved, say)
    resolved, notes = apply_rules(tuned.resolved)
    resolved, more = settle(resolved, environment.spec, environment.step_s)
    environment = with_backend(environment, resolved.settled)
    notes += [*adapted, *tuned.notes, *more]
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
    check_installed(choose_sinks(config.value))
    tuning = tuned.entry if tuned else None
    measured = EnvFacts(**tuning["measured"]["env"]) if tuning else None
    memory = check_memory(config, environment.backend, environment.spec, algorithm_of(config), measured)
    learner = make_learner(config, environment.spec)  # a network that can't be built is refused here
    inspect(learner)
    if environment.limited() is not environment and config.evaluation.eval_freq:
        notes = [*notes, f"no step limit is known; evaluations cut episodes at {EVALUATION_STEPS:,} steps"]
    files = find_files(config, environment)
    with one_blas_thread(), ExitStack() as stack:
        session: Session | None = None
        run = RunDir.create(Path(config.run.runs_dir), config.run.run_name or slug(config.env.env_id))
        try:
            stack.enter_context(run.lock())
            announce_run(run.path)
            environment = own_files(run, files, config, environment, source)
            origin = replace(
                parentage or Lineage("", ""),
                env_signature=environment.spec.signature,
                readings=tell_readings(environment.spec),
                folder=os.getcwd(),
            )
            write_lineage(run, origin)
            write_config(run, resolved)
            session = stack.enter_context(closing(Session(run, resolved, environment, learner, listener)))
            _prepare(session, resolved, memory, notes, start, tuning)
            yield session
        except BaseException as error:
            if session is not None and session.has_begun:
                raise
            if session is not None and isinstance(error, WorkerError):
                session.fail_early(error)
            else:
                stack.close()
                shutil.rmtree(run.path, ignore_errors=True)
            raise


def _prepare(
    session: Session,
    resolved: Resolved,
    memory: int,
    notes: list[str],
    start: int,
    tuning: dict[str, Any] | None,
) -> None:
    """Prime the statistics, measure, settle how often to evaluate, and emit the plan; `tuning` is what a
    tuned run was planned from."""
    config, spec, learner = session.config, session.spec, session.learner
    algorithm = algorithm_of(config)
    # What an own network keeps beside its arrays can't be put back: another one is timed.
    timed = make_learner(config, spec) if config.policy.network else learner
    with device_memory(config):
        update_s = algorithm.measure_update_s(timed, config, spec)
        collect_s, obs, num_failed, episode_steps = measure_collect(
            session.collector, learner.weights(), prime_steps(config), NUM_BLOCKS
        )
    learner.prime(obs)
    episode_steps = min(episode_steps, spec.num_agents * (spec.max_episode_steps or EVALUATION_STEPS))
    fitted = fit_freq(resolved, spec, episode_steps)
    if fitted is not resolved:
        session.adopt(fitted)
        write_config(session.run, fitted)
        config = session.config
    notes = [*notes, *timed.take_notes()]
    if share := read_share():
        notes.append(f"planned for a share of {share} of the machine's cores")
    if num_failed:
        session.counters["env_failures"] += num_failed
        notes.append(f"episodes that failed while the statistics were primed: {num_failed}; they are counted")
    fps = tuning["steps_per_s"] if tuning else predict_fps(config, collect_s, update_s)
    total = config.run.timesteps - start
    if config.compute.device == "cpu":
        notes = [*notes, *judge_preset(resolved.preset, total, fps, usable_cores())]
    evaluations = describe_evaluations(
        fitted, spec, total, episode_steps=episode_steps, collect_s=collect_s, train_s=total / fps
    )
    reasons = tuning["reasons"] if tuning else []
    device = config.compute.device
    of_device = expect_use(config, collect_s, update_s, peak_device_bytes(device), free_device_bytes(device))
    plan = make_plan(
        config,
        session.environment.backend,
        spec,
        algorithm,
        memory,
        fps,
        notes,
        start,
        evaluations,
        reasons,
        of_device,
    )
    document = asdict(plan) | {
        "versions": versions(name_card(config.compute.device)),
        "signature": spec.signature,
        "tuning": tuning,
    }
    measured = {"collect_s_per_step": collect_s, "update_s_per_step": update_s}
    document |= {"measured": measured | {"ways_to_learn": find_measured(config, spec)}}
    write_json(session.run.plan_json, document)
    session.run.write_status(predicted_fps=round(fps, 1))
    curriculum = config.env.curriculum
    staged = {} if curriculum is None else {"stages": curriculum.labels}
    session.recorder.emit(
        "plan", run=str(session.run.path), name=session.run.name, main_outcome=spec.main_outcome, **staged,
        **{"time/plan": asdict(plan)},
    )  # fmt: skip


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
