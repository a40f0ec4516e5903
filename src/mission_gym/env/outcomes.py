"""What an environment tells of an episode that ended: `info["outcome"]` and `info["episode_metrics"]`."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from mission_gym.data import EnvSpec
from mission_gym.errors import EnvContractError, nearest


def check_outcome(outcome: Any, spec: EnvSpec, where: Callable[[], str]) -> str | None:
    """Return the outcome of an episode if it is a name the environment declared, or None."""
    if outcome is None:
        return None
    if not isinstance(outcome, str):
        raise EnvContractError(f'{where()}: info["outcome"] is {outcome!r}, expected a name [{spec.env_id}]')
    if spec.outcomes and outcome not in spec.outcomes:
        raise EnvContractError(
            f'{where()}: info["outcome"]={outcome!r} is not declared in metadata["outcomes"]='
            f"{list(spec.outcomes)}{nearest(outcome, spec.outcomes)} [{spec.env_id}]"
        )
    return outcome


def read_metrics(metrics: Any, spec: EnvSpec, where: Callable[[], str]) -> dict[str, float]:
    """Keep the numeric entries of `info["episode_metrics"]`."""
    if not isinstance(metrics, dict):
        raise EnvContractError(
            f'{where()}: info["episode_metrics"] is {metrics!r:.200}, expected a dict [{spec.env_id}]'
        )
    return {
        name: float(value) for name, value in metrics.items() if isinstance(value, numbers.Real | np.bool_)
    }
