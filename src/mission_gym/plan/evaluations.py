"""How often a run evaluates: about a tenth of its time at most, told in counted steps of the environment.

Seconds differ between equal runs, counts do not. A step that an evaluation plays costs about what a collected
one does, and training learns besides; so a tenth of the steps that are trained may be played: by evaluations,
and at the end by the best checkpoints again. In environments of ours and classic ones learning takes most of
a training step: there it is four tenths.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from mission_gym.config.layers import Resolved
from mission_gym.data import EnvSpec, Fact

_PATH = "evaluation.eval_freq"
_SHARE, _CHEAP_SHARE = 0.1, 0.4  # steps played for each step trained
_EVALUATING = 0.7  # of them by evaluations; the rest is for the best checkpoints, which are played again
_CONFIRMING = 0.4  # of the evaluations' own steps: that rest
NUM_CONFIRMED = 3  # checkpoints
_ROUND = 1000


def is_bounded(resolved: Resolved) -> bool:
    """Whether the rule of this module settles and stretches eval_freq: it was not given."""
    return resolved.sources[_PATH].partition(" ")[0] == "auto"


def fit_freq(resolved: Resolved, spec: EnvSpec, episode_steps: float) -> Resolved:
    """Raise an eval_freq that was left open to what episodes of this length allow."""
    if not is_bounded(resolved):
        return resolved
    settings = resolved.settled.evaluation
    wanted = ceil(settings.eval_episodes * episode_steps / _share(spec) / _ROUND) * _ROUND
    return resolved if wanted <= settings.eval_freq else resolved.with_values({_PATH: wanted}, "auto")


def is_affordable(spec: EnvSpec, *, played: int, cost: float, trained: int, total: int) -> bool:
    """Whether an evaluation of about `cost` steps fits behind `played` ones: by now, and by the end with the
    last one, which is made in any case. trained, total: steps of this run so far, and of all of it."""
    share = _share(spec)
    return played + cost <= share * trained and played + 2 * cost <= share * total


def count_confirming(most: int, lengths: Sequence[float], played: int) -> int:
    """Further episodes of each of the best checkpoints, whose episodes are so long; `most` at most, and so
    few that all of them take a part of the steps that evaluations played."""
    return min(most, int(_CONFIRMING * played / max(sum(lengths), 1.0)))


def is_near_end(num_left: int, freq: int) -> bool:
    """Whether an evaluation is better made at the end, so many steps later: that is less than half an
    interval."""
    return 2 * num_left < freq


def describe_evaluations(
    resolved: Resolved, spec: EnvSpec, total: int, *, episode_steps: float, collect_s: float, train_s: float
) -> Fact:
    """How many there are in `total` steps, and their share of the time, with episodes as long as those seen.

    collect_s: of a step. train_s: of all steps.
    """
    config = resolved.settled
    freq, episodes = config.evaluation.eval_freq, config.evaluation.eval_episodes
    if freq == 0:
        return Fact("evaluations", "0", "")
    number = max(1, (2 * total + freq) // (2 * freq))

    def show(length: float) -> str:
        seconds = number * episodes * length * collect_s
        share = 100 * seconds / (seconds + train_s)
        shown = f"about {share:.0f} %" if share >= 1 else "under 1 %"
        return f"{shown} of the time with episodes of {length:,.0f} steps"

    when = f"every {freq:,} steps" if number > 1 else "at the end"
    reason, limit = f"{episodes} episodes {when}: {show(episode_steps)}", spec.max_episode_steps
    if number > 1 and is_bounded(resolved):
        reason += "; rarer if they get longer, about a tenth at most"
    elif limit is not None and limit > episode_steps + 1:
        reason += f", {show(limit)}"
    return Fact("evaluations", f"{number}", reason)


def _share(spec: EnvSpec) -> float:
    """Steps that evaluations may play for each step trained."""
    return _EVALUATING * (_CHEAP_SHARE if spec.trusted else _SHARE)
