"""Takes a run up in place, where its last good checkpoint stands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import apply_rules
from mission_gym.errors import RunStateError
from mission_gym.plan.ways import device_exists
from mission_gym.run.assemble import drop_false_kernel, make_learner, one_blas_thread
from mission_gym.run.config import read_config
from mission_gym.run.env_files import open_run_environment
from mission_gym.run.exactness import judge_exactness, write_config
from mission_gym.run.recorder import Listener
from mission_gym.run.session import Session
from mission_gym.run.snapshot import checkpoint_errors, learned_steps
from mission_gym.run.stages import EnvSource
from mission_gym.store.checkpoints import Checkpoint, load_last_good
from mission_gym.store.evals import read_evals
from mission_gym.store.rundir import RunDir
from mission_gym.vector.backends import load_backend


@contextmanager
def resume_run(
    run: RunDir,
    listener: Listener,
    *,
    timesteps: int | None = None,
    ray_address: str | None = None,
    source: EnvSource = None,
) -> Iterator[Session]:
    """A run taken up in place, exactly where its last good checkpoint stands. ray_address: of another cluster
    than it was on, as the config has it."""
    with run.lock(), one_blas_thread():
        stored = read_config(run.config_yaml)
        if ray_address is not None:
            stored = _move(run, stored, ray_address)
        device = stored.settled.compute.device
        if not device_exists(device):
            raise RunStateError(
                f"run {run.name} learns on {device}, which is not here; resume it where it is, or go on with"
                f" `mission-gym branch {run.name} --device cpu`"
            )
        checkpoint, notes = load_last_good(run.checkpoints)
        read_evals(run, notes.append)
        with checkpoint_errors(checkpoint):
            resolved, more = _extend(run, stored, checkpoint, timesteps)
        environment = open_run_environment(run, resolved.config, source)
        remedy = f"go on with `mission-gym branch {run.name} --kernel torch`"
        resolved, _, changed = drop_false_kernel(resolved, environment.spec, remedy)
        learner = make_learner(resolved.settled, environment.spec)
        with closing(Session(run, resolved, environment, learner, listener)) as session:
            with checkpoint_errors(checkpoint):
                restored = session.restore(checkpoint)
            exact = judge_exactness(
                run, checkpoint, stored.config, restored=restored.exact, other_kernel=bool(changed)
            )
            if timesteps is not None or ray_address is not None or changed:
                write_config(run, resolved)
            session.recorder.emit(
                "resume", run=str(run.path), name=run.name, step=checkpoint.step,
                total=resolved.config.run.timesteps, main_outcome=session.spec.main_outcome,
                notes=[*notes, *more, *changed, *restored.told, exact],
            )  # fmt: skip
            yield session


def _move(run: RunDir, resolved: Resolved, ray_address: str) -> Resolved:
    """The config with another cluster; RunStateError if the run was on none."""
    if not load_backend(resolved.settled.vector.vector).needs_cluster:
        raise RunStateError(
            f"run {run.name} is not on a Ray cluster (vector={resolved.settled.vector.vector}); remove the"
            f" address, or go on with `mission-gym branch {run.name} --ray-address {ray_address}`"
            " [--ray-address]"
        )
    value = None if ray_address == "none" else ray_address
    return resolved.with_values({"vector.ray_address": value}, "flag --ray-address")


def _extend(
    run: RunDir, resolved: Resolved, checkpoint: Checkpoint, timesteps: int | None
) -> tuple[Resolved, list[str]]:
    """The config with a new total where one was asked for; RunStateError if there is nothing to do."""
    step = checkpoint.step
    try:
        status = run.read_status()
    except RunStateError:  # a damaged one is written anew
        status = {}
    if timesteps is None:
        if status.get("state") == "done":
            raise RunStateError(
                f"run {run.name} is finished ({status.get('cause', 'done')}, {step} steps);"
                f" `mission-gym resume {run.name} --timesteps N` extends it"
            )
        return resolved, []
    if timesteps <= step:
        raise RunStateError(
            f"timesteps={timesteps} is not above the {step} steps of run {run.name} [--timesteps]"
        )
    wanted = resolved.with_values({"run.timesteps": timesteps}, "flag --timesteps")
    resolved, notes = apply_rules(wanted, learned_steps(checkpoint))
    if falling := resolved.config.algorithm.scheduled_names():
        notes.append(f"{', '.join(falling)} now fall over {resolved.config.run.timesteps} steps")
    return resolved, notes
