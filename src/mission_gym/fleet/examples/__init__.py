"""Job files that are shipped, sized for the machine that asks for them."""

from __future__ import annotations

from pathlib import Path
from string import Template

from mission_gym.config.sizes import choose_batch_size
from mission_gym.errors import UsageError, nearest

_FOLDER = Path(__file__).parent
_STEPS = 256  # of each environment, as the examples have it


def make_example(name: str, cores: int) -> str:
    """The text of an example; UsageError with the nearest name."""
    known = sorted(path.stem for path in _FOLDER.glob("*.yaml"))
    if name not in known:
        raise UsageError(f"no example is called {name!r}{nearest(name, known)}; there is {', '.join(known)}")
    n_envs = max(8, min(64, 8 * cores))
    at_once = min(4, cores)
    return Template((_FOLDER / f"{name}.yaml").read_text("utf-8")).substitute(
        cores=f"{cores} core{'s' if cores > 1 else ''}",
        how=f"{at_once} at once with {cores // at_once} of {cores} cores each",
        n_envs=n_envs,
        batch=choose_batch_size(n_envs * _STEPS, 256),
        large=choose_batch_size(n_envs * _STEPS, n_envs * _STEPS // 2),
    )
