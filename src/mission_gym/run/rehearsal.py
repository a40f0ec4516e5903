"""What shows before the first of many runs: whether they would be refused, and the least time of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import check_curriculum
from mission_gym.env.pace import time_steps
from mission_gym.errors import ConfigError
from mission_gym.plan.tuner import LOOK_S
from mission_gym.procs import usable_cores
from mission_gym.run.assemble import find_misfits
from mission_gym.run.environment import leave_vector_form, probe_environment

_START_S = 2.0  # of a process, before its first step


class Rehearsal(NamedTuple):
    """What a look at the environment says about runs on it."""

    resolved: Resolved  # with what follows from the environment
    sees_images: bool
    main_outcome: str | None
    least_s: float  # of a run, without learning
    misfits: Sequence[str]  # paths of the values that such a run would refuse, if they were given


def rehearse(resolved: Resolved, values: Mapping[str, Any]) -> Rehearsal:
    """Look at the environment of a config; UsageError for what a run of it is refused for. values: by path,
    each to be given to some of the runs."""
    resolved, _ = leave_vector_form(resolved)
    check_curriculum(resolved)
    environment, resolved = probe_environment(resolved, look_s=LOOK_S)
    if problems := find_misfits(resolved, environment.spec):
        raise ConfigError(problems)
    asked = ((path, resolved.with_values({path: value}, "flag --over")) for path, value in values.items())
    misfits = [path for path, each in asked if find_misfits(each, environment.spec)]
    config, pace, least_s = resolved.config, environment.pace, _START_S
    if pace is None and environment.backend.runs_here and not environment.backend.own_vector_form:
        pace = time_steps(environment.factory, environment.spec, LOOK_S)
    if pace is not None:
        at_once = config.num_envs if pace.waits else usable_cores()
        least_s += config.run.timesteps * pace.step_s / config.vector.num_agents / at_once
    spec = environment.spec
    return Rehearsal(resolved, spec.sees_images, spec.main_outcome, least_s, misfits)
