"""Alarms: warnings about a reward that does not teach the goal, and about speed, memory and single metrics.

Each alarm is raised once. Metric tables declare alarms of single metrics (`MetricAlarm`). The state of alarms
about learning is part of checkpoints, so that a resumed run raises the same ones. The state of alarms about
speed is not: a resumed run may be on another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from mission_gym.store.metrics import TIMED, Metric

Row = Mapping[str, Any]
SHARE, STAGE = "reward_share/", "curriculum/stage"
MAX_SHARE = 0.95  # of the reward, for one term
NUM_ROWS = 5  # consecutive rows with it
NUM_EVALUATIONS = 4  # over which the return may not rise while the outcome does not
FALL = 0.1  # of the outcome's rate since the first episodes, beyond the interval of an evaluation
NUM_FIRST = 50  # of these episodes, at least
# Rows are joined to periods of some seconds, so that quick rows do not count more than slow ones.
PERIOD_S = 5.0
NUM_PERIODS = 12  # one minute
DECAY = 0.6  # of the best rate
GROWTH = 1.2
GROWTH_BYTES = 200e6
STARVING = 0.5
WAITING = 0.3  # CPU over wall time of collecting, relative to the share of a core that a process gets


class Alarm(NamedTuple):
    """A warning. is_timed: about speed, so that equal runs need not raise it."""

    message: str
    is_timed: bool = False


class AlarmWatch:
    """Watches the rows and evaluations of one run."""

    def __init__(self, main_outcome: str | None, metrics: Sequence[Metric] = ()) -> None:
        self._outcome = main_outcome
        self._metrics = [metric for metric in metrics if metric.alarm is not None]
        self._rows: list[dict[str, float]] = []  # reward shares by term
        self._evaluations: list[dict[str, float]] = []
        self._start: dict[str, float] = {}  # mean return and rate of the outcome in the first episodes
        self._raised: list[str] = []  # kinds of alarms about learning
        self._raised_timed: list[str] = []
        self._speed: SpeedWatch | None = None

    def watch_speed(self, step: int, *, env_cpu_is_known: bool) -> None:
        """Start to watch the speed of this process, from this step on."""
        self._speed = SpeedWatch(step, env_cpu_is_known=env_cpu_is_known)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        seen = {"rows": self._rows[:], "evaluations": self._evaluations[:], "start": self._start}
        return seen | {"raised": self._raised[:]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a checkpoint."""
        self._rows, self._evaluations = list(state["rows"]), list(state["evaluations"])
        self._raised, self._start = list(state["raised"]), dict(state.get("start", {}))

    def see_row(self, step: int, row: Row, num_episodes: int = 0) -> list[Alarm]:
        """Add a row of metrics; returns the alarms that are due. num_episodes: of its means."""
        shares = {key.removeprefix(SHARE): value for key, value in row.items() if key.startswith(SHARE)}
        self._rows = [*self._rows, shares][-NUM_ROWS:]
        rate = row.get(f"outcome/{self._outcome}")
        # With a curriculum, the first episodes are easier than those of an evaluation.
        if not self._start and rate is not None and num_episodes >= NUM_FIRST and STAGE not in row:
            self._start = {"return_mean": row["rollout/ep_rew_mean"], "rate": rate}
        found = {"share": judge_shares(self._rows)}
        timed = {} if self._speed is None else self._speed.see_row(step, row)
        for metric in self._metrics:
            (timed if metric.name.startswith(TIMED) else found)[metric.name] = judge_metric(row, metric)
        alarms = [Alarm(text) for text in _pick_new(found, self._raised)]
        return alarms + [Alarm(text, is_timed=True) for text in _pick_new(timed, self._raised_timed)]

    def see_evaluation(self, result: Row) -> list[Alarm]:
        """Add an evaluation; returns the alarm about the return if it is due."""
        if self._outcome is None:
            return []
        seen = {key: result[key] for key in ("return_mean", "return_low", "return_high")}
        outcome = result["outcomes"][self._outcome]
        seen["rate"] = outcome["rate"]
        self._evaluations = [*self._evaluations, seen][-NUM_EVALUATIONS:]
        found = {"return": judge_evaluations(self._evaluations, self._outcome)}
        if self._start:
            seen["rate_high"] = outcome.get("high", outcome["rate"])
            found["outcome"] = judge_fall(self._start, seen, self._outcome)
        return [Alarm(text) for text in _pick_new(found, self._raised)]


def _pick_new(found: Mapping[str, str | None], raised: list[str]) -> list[str]:
    """The texts of kinds that were not raised before; adds these kinds to `raised`."""
    new = {kind: text for kind, text in found.items() if text is not None and kind not in raised}
    raised += new
    return list(new.values())


def judge_metric(row: Row, metric: Metric) -> str | None:
    """The alarm that the metric's table declares, if its value is above the limit."""
    if metric.alarm is None or row.get(metric.name, 0.0) <= metric.alarm.above:
        return None
    return metric.alarm.text.format_map(row)


def judge_shares(rows: Sequence[Row]) -> str | None:
    """One term makes nearly all of the reward in each of the last rows. rows: shares by term."""
    if len(rows) < NUM_ROWS or any(len(row) < 2 for row in rows):  # a single term can't dominate others
        return None
    for term in rows[-1]:
        if all(row.get(term, 0.0) > MAX_SHARE for row in rows[-NUM_ROWS:]):
            return (
                f"the reward term {term!r} accounts for {100 * rows[-1][term]:.0f} % of the reward, so the "
                "policy hardly learns from the others: lower its weight or raise theirs"
            )
    return None


def judge_evaluations(results: Sequence[Row], outcome: str) -> str | None:
    """The return rose beyond its intervals while the outcome did not rise."""
    if len(results) < NUM_EVALUATIONS:
        return None
    first, last = results[-NUM_EVALUATIONS], results[-1]
    best = max(result["rate"] for result in results[-NUM_EVALUATIONS:])
    is_perfect = first["rate"] == 1.0  # it can't rise
    low, high = last["return_low"], first["return_high"]
    low = last["return_mean"] if low is None else low  # all episodes have the same return
    high = first["return_mean"] if high is None else high
    if low <= high or best > first["rate"] or is_perfect:
        return None
    return (
        f"over {NUM_EVALUATIONS} evaluations the return rose from {first['return_mean']:.4g} to "
        f"{last['return_mean']:.4g}, but {outcome} did not ({100 * first['rate']:.0f} % -> "
        f"{100 * last['rate']:.0f} %): the reward favours something else; check the reward shares"
    )


def judge_fall(start: Row, result: Row, outcome: str) -> str | None:
    """An evaluation has a higher return than the first episodes of training, and the outcome less often."""
    low, high = result["return_low"], result["rate_high"]
    low = result["return_mean"] if low is None else low
    if low <= start["return_mean"] or (result["rate"] if high is None else high) >= start["rate"] - FALL:
        return None
    return (
        f"the return rose from {start['return_mean']:.4g} in the first episodes to"
        f" {result['return_mean']:.4g}, but {outcome} fell from {100 * start['rate']:.0f} % to"
        f" {100 * result['rate']:.0f} %: the reward favours something else; check the reward shares"
    )


@dataclass(slots=True)
class Period:
    """Some seconds of a run."""

    steps: int = 0
    wall_s: float = 0.0
    main_idle_s: float = 0.0  # of the main role: collecting and learning
    collect_s: float = 0.0
    learn_s: float = 0.0
    wait_s: float = 0.0
    lost_s: float = 0.0  # waiting for calls that did not return
    collect_cpu_s: float = 0.0
    load: float = 1.0  # processes per core that want to run, the latest
    memory_bytes: float | None = None  # the latest

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.main_idle_s if self.main_idle_s > 0 else 0.0


_SUMS = (
    "wall_s",
    "main_idle_s",
    "collect_s",
    "learn_s",
    "wait_s",
    "lost_s",
    "collect_cpu_s",
)  # keys `phase/*` of a row


class SpeedWatch:
    """Watches the speed and memory of one process."""

    def __init__(self, first_step: int, *, env_cpu_is_known: bool) -> None:
        self._step = first_step
        self._env_cpu_is_known = env_cpu_is_known
        self._open = Period()
        self._last: list[Period] = []
        self._best = 0.0  # the highest rate that lasted for NUM_PERIODS

    def see_row(self, step: int, row: Mapping[str, float]) -> dict[str, str | None]:
        """Add a row; if it ends a period, the alarms by kind."""
        now = self._open
        now.steps += step - self._step
        self._step = step
        for name in _SUMS:
            setattr(now, name, getattr(now, name) + row.get(f"phase/{name}", 0.0))
        now.load = max(row.get("machine/load", now.load), 1.0)
        now.memory_bytes = row.get("machine/memory_bytes", now.memory_bytes)
        if now.main_idle_s < PERIOD_S:
            return {}
        self._open = Period()
        self._last = [*self._last, now][-NUM_PERIODS:]
        found = {
            "decay": judge_rate(self._last, self._best),
            "memory": judge_memory(self._last),
            "workers": judge_workers(self._last),
            "learner": judge_learner(self._last) if self._env_cpu_is_known else None,
        }
        if len(self._last) == NUM_PERIODS:
            self._best = max(self._best, min(each.steps_per_s for each in self._last))
        return found


def judge_rate(periods: Sequence[Period], best: float) -> str | None:
    """The rate is well below the best one that lasted as long."""
    if len(periods) < NUM_PERIODS or max(each.steps_per_s for each in periods) >= DECAY * best:
        return None
    now = sum(each.steps for each in periods) / sum(each.main_idle_s for each in periods)
    return (
        f"the rate fell from {best:,.0f} to {now:,.0f} steps/s: check for other programs, a hot CPU, or an"
        " environment that slows down; `mission-gym runs timeline` shows the time of each phase"
    )


def judge_memory(periods: Sequence[Period]) -> str | None:
    """Memory grew in every period, and by a lot."""
    sizes = [each.memory_bytes for each in periods if each.memory_bytes is not None]
    if len(sizes) < NUM_PERIODS or any(b <= a for a, b in pairwise(sizes)):
        return None
    if sizes[-1] < GROWTH * sizes[0] or sizes[-1] - sizes[0] < GROWTH_BYTES:
        return None
    minutes = sum(each.wall_s for each in periods) / 60
    return (
        f"memory grew steadily from {sizes[0] / 1e9:.2f} to {sizes[-1] / 1e9:.2f} GB in {minutes:.1f} min: an"
        " environment or wrapper seems to leak; a stop and `mission-gym resume` free it"
    )


def judge_workers(periods: Sequence[Period]) -> str | None:
    """Workers wait for the slowest one during much of collecting."""
    if len(periods) < 3 or any(each.wait_s < STARVING * each.collect_s for each in periods[-3:]):
        return None
    last = periods[-1]
    share = 100 * last.wait_s / last.collect_s if last.collect_s else 0.0
    return (
        f"workers wait {share:.0f} % of collecting, on average, for the slowest one; a larger"
        " --n-steps-per-env or --n-envs evens out slow steps"
    )


def judge_learner(periods: Sequence[Period]) -> str | None:
    """The learner has no data while the environments wait."""
    if len(periods) < 3:
        return None
    for each in periods[-3:]:
        has_data = each.learn_s >= (1 - STARVING) * each.main_idle_s
        if each.lost_s > STARVING * each.collect_s:  # the environments do not wait, they hang
            return None
        if has_data or each.collect_cpu_s * each.load > WAITING * each.collect_s:
            return None
    idle = 1 - periods[-1].learn_s / periods[-1].main_idle_s
    return (
        f"the learner is idle {100 * idle:.0f} % of the time, while environments wait; --vector threads and a"
        " larger --n-envs let more of them wait concurrently"
    )
