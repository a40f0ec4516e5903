"""The end of a sweep: the best settings on fresh seeds beside the default, and the preset of the winner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import yaml

from mission_gym.config.layers import Resolved
from mission_gym.config.plain_yaml import to_plain
from mission_gym.fleet.sweep.study import Trial, rank
from mission_gym.fleet.sweep.trials import gather, list_jobs
from mission_gym.intervals import compute_iqm, compute_iqm_interval
from mission_gym.report.formats import show_number
from mission_gym.store.groups import Job
from mission_gym.store.sweeps import DEFAULT, Candidate, Question, is_retest, name_retest


def choose_candidates(trials: Sequence[Trial], num_best: int) -> list[Trial]:
    """The trials to be trained again: the best ones, each setting once, and the default."""
    chosen: list[Trial] = []
    rows = rank(trial.row for trial in trials if trial.row.state == "complete")
    for row in rows:
        trial = trials[row.number]
        if len(chosen) < num_best and trial.row.values not in [each.row.values for each in chosen]:
            chosen.append(trial)
    if chosen and all(trial.row.source != DEFAULT for trial in chosen):
        chosen += [trial for trial in trials if trial.row.source == DEFAULT]
    return chosen


def judge_candidates(trials: Sequence[Trial], jobs: Mapping[str, Job], question: Question) -> list[Candidate]:
    """What the settings that were trained again came to, the best first."""
    found = []
    retested = {job.request.variant for job in jobs.values() if is_retest(job)}
    for trial in (each for each in trials if name_retest(each.row.number) in retested):
        again = list_jobs(jobs, name_retest(trial.row.number))
        ending = gather([job for job in again if job.has_ended], question.measure)
        values = [result.value for result in ending.results]
        interval = compute_iqm_interval([values]) if values else None
        found.append(
            Candidate(
                trial=trial.row.number, source=trial.row.source, values=trial.row.values,
                iqm=compute_iqm(values) if values else None,
                low=interval and interval.low, high=interval and interval.high, seeds=len(values),
                seconds=mean(result.seconds for result in ending.results) if values else None,
                causes=list(ending.causes),
            )
        )  # fmt: skip
    return sorted(found, key=_key, reverse=True)


def _key(candidate: Candidate) -> tuple[float, float, bool, float]:
    """By the lower bound; where nothing speaks against it, the default."""
    lowest = float("-inf")
    low, iqm = (lowest if each is None else each for each in (candidate.low, candidate.iqm))
    return low, iqm, candidate.source == DEFAULT, -(candidate.seconds or 0.0)


def tell_verdict(candidates: Sequence[Candidate]) -> str:
    """Whether the winner beats the default; the best candidate is the first."""
    best = candidates[0]
    default = next((each for each in candidates if each.source == DEFAULT), None)
    if best.iqm is None:
        return "no run on fresh seeds was finished, so nothing is known"
    if default is None or default.iqm is None:
        return "the default finished no run on fresh seeds"
    if best is default:
        return "nothing that was tried beats the default on fresh seeds; it stays"
    if best.low is None or default.high is None or best.low <= default.high:
        return (
            "the default is not beaten beyond the intervals: they overlap; more --trials, --timesteps or"
            " --retest-seeds may tell"
        )
    return (
        f"beats the default beyond the intervals: at least {show_number(best.low)}, where the default has at"
        f" most {show_number(default.high)}"
    )


def make_preset(base: Resolved, trial: Trial, candidate: Candidate, question: Question) -> str:
    """The text of best.yaml: what the winner was trained with and a run without a sweep is not, by section;
    valid as --config."""
    config = base.config
    own = (config.run.algo, "policy")
    kept = [
        path
        for path, source in base.sources.items()
        if path.split(".")[0] in own and (base.explicit(path) or source.startswith("preset "))
    ]
    paths = base.schema.paths_of_names(config.run.algo)
    chosen: dict[str, Any] = {"run.algo": config.run.algo, "vector.n_envs": config.num_envs}
    chosen |= {path: config.value(path) for path in kept if config.value(path) != "auto"}
    chosen |= {axis.path: trial.row.values[axis.name] for axis in question.axes}
    chosen |= {paths[name]: value for name, value in trial.given.items()}
    by_section: dict[str, dict[str, Any]] = {}
    for path, value in chosen.items():
        section, name = path.split(".")
        by_section.setdefault(section, {})[name] = to_plain(value)
    measured = f"{show_number(candidate.iqm)} ({show_number(candidate.low)} to {show_number(candidate.high)})"
    head = (
        f"# {config.env.env_id}: {question.measure} {measured} after {config.run.timesteps:,} steps, the"
        f" interquartile\n# mean of {candidate.seeds} seeds that the search did not use, with its 95 %"
        " interval.\n"
    )
    return head + yaml.safe_dump(by_section, sort_keys=False, allow_unicode=True)
