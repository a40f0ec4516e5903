"""A setting as jobs of the group, one per seed; their results; the candidates that are trained again.

The best settings and the default are trained again on fresh seeds. The winner becomes a preset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any, NamedTuple, cast

import yaml

from mission_gym.config.layers import Resolved
from mission_gym.config.plain_yaml import to_plain
from mission_gym.fleet.requests import Draft, Needs, make_requests, name_member
from mission_gym.fleet.sweep.study import SweepTrial, rank
from mission_gym.intervals import LEVEL, MIN_SEEDS, compare_means, describe_seeds, estimate_excess
from mission_gym.report.formats import show_number
from mission_gym.store.evals import RETEST, SELECT, read_evals, read_last
from mission_gym.store.groups import GroupDir, Job, JobRequest
from mission_gym.store.rundir import RunDir
from mission_gym.store.sweeps import DEFAULT, Candidate, Question, Values, is_retest, name_retest
from mission_gym.store.tables import MetricsLog

_OF_A_RUN = ("seed", "run_name", "runs_dir")  # different for each run


class RunResult(NamedTuple):
    """The result of a run."""

    value: float
    seconds: float  # of training


class TrialEnd(NamedTuple):
    """The results of a trial's runs."""

    results: Sequence[RunResult]
    causes: Sequence[str]  # of runs without a result


def list_jobs(jobs: Mapping[str, Job], variant: str) -> list[Job]:
    """The jobs of a variant."""
    return [job for job in jobs.values() if job.request.variant == variant]


def request_jobs(
    group: GroupDir, question: Question, needs: Needs, variant: str, given: Values, seeds: Iterable[int]
) -> list[JobRequest]:
    """The jobs of a setting, one per seed."""
    values = {name: value for name, value in question.values.items() if name not in _OF_A_RUN} | given
    drafts = [Draft(name_member(variant, seed), variant, values, seed, needs=needs) for seed in seeds]
    requests = make_requests(group.read().name, drafts, str(group.path.parent))
    return [request.model_copy(update={"folder": question.folder}) for request in requests]


def measure_jobs_s(group: GroupDir) -> list[float]:
    """The durations of the processes of jobs that are done."""
    started: dict[str, float] = {}
    found = []
    for row in group.journal.read():
        if row["event"] == "started":
            started[row["name"]] = row["time"]
        elif row["event"] == "ended" and row["state"] == "done":
            found.append(max(0.0, row["time"] - started[row["name"]]))
    return found


def read_results(jobs: Iterable[Job], read_value: Callable[[RunDir], float | None]) -> TrialEnd:
    """The results of jobs that have ended. read_value: see `read_score` and `read_retest`."""
    results, causes = [], []
    for job in jobs:
        is_done = job.state == "done"
        value = read_value(RunDir(job.run)) if is_done and job.run is not None else None
        if job.run is not None and value is not None:
            rows = MetricsLog.stream(RunDir(job.run).metrics_jsonl)
            times = (row.get("time/time_elapsed") or 0.0 for row in rows)
            results.append(RunResult(value, float(max(times, default=0.0))))
        else:
            why = "its last evaluation is missing or not finite" if is_done else job.cause
            causes.append(f"seed {job.request.seed} {job.state}: {why}")
    return TrialEnd(results, causes)


def read_score(run: RunDir) -> float | None:
    """The score of a trial's run: the lower bound in its last evaluation. None if that is missing or not
    finite."""
    last = read_last(run, SELECT) or {}
    return cast(float | None, last.get("score"))


def read_retest(run: RunDir, measure: str) -> float | None:
    """The mean of the measure in the re-test of a run, whose episodes chose nothing; None if that is missing
    or not finite."""
    last = read_last(run, RETEST) or {}
    if measure == "return":
        return cast(float | None, last.get("return_mean"))
    return cast(float | None, ((last.get("outcomes") or {}).get(measure) or {}).get("rate"))


def read_curve(jobs: Sequence[Job]) -> list[float]:
    """The lower bounds of a trial's evaluations, averaged over its runs, as far as all runs have them."""
    runs = [RunDir(job.run) for job in jobs if job.run is not None]
    if len(runs) < len(jobs):
        return []
    scores = [[each.get("score") for each in read_evals(run) if each["suite"] == SELECT] for run in runs]
    return [mean(row) for row in zip(*scores, strict=False) if None not in row]


def choose_candidates(trials: Sequence[SweepTrial], num_best: int) -> list[SweepTrial]:
    """The trials to train again: the best ones, each setting once, and the default."""
    chosen: list[SweepTrial] = []
    for row in rank(trial.row for trial in trials if trial.row.state == "complete"):
        if len(chosen) < num_best and row.values not in [each.row.values for each in chosen]:
            chosen.append(trials[row.number])
    if chosen and all(trial.row.source != DEFAULT for trial in chosen):
        chosen += [trial for trial in trials if trial.row.source == DEFAULT]
    return chosen


def rank_candidates(
    trials: Sequence[SweepTrial], jobs: Mapping[str, Job], question: Question
) -> list[Candidate]:
    """The results on fresh seeds, best first: by their mean; ties go to the default."""
    found = []
    retested = {job.request.variant for job in jobs.values() if is_retest(job)}
    for row in (each.row for each in trials if name_retest(each.row.number) in retested):
        again = list_jobs(jobs, name_retest(row.number))
        ended = [job for job in again if job.has_ended]
        results, causes = read_results(ended, partial(read_retest, measure=question.measure))
        found_s = mean(result.seconds for result in results) if results else None
        estimate = describe_seeds([[result.value for result in results]])
        candidate = Candidate(
            trial=row.number, source=row.source, values=row.values, seeds=len(results), seconds=found_s,
            causes=list(causes), scores=estimate.pop("values"), **estimate,
        )  # fmt: skip
        found.append(candidate)

    def key(each: Candidate) -> tuple[float, bool, float]:
        score = float("-inf") if each.mean is None else each.mean
        return score, each.source == DEFAULT, -(each.seconds or 0.0)

    return sorted(found, key=key, reverse=True)


def describe_verdict(candidates: Sequence[Candidate]) -> str:
    """Whether the winner, which is the first candidate, is better than the default.

    By a permutation test of the means. Its p value is multiplied by the number of settings that the winner
    was chosen from (Bonferroni), so equal settings are called better in at most 5 % of sweeps.
    """
    best = candidates[0]
    default = next((each for each in candidates if each.source == DEFAULT), None)
    if best.iqm is None:
        return "no run on fresh seeds was completed, so there is no result"
    if default is None or default.iqm is None:
        return "the default completed no run on fresh seeds"
    if len(candidates) == 1:
        return "only the default was trained on fresh seeds; --retest 2 or more compares the best trials"
    if best is default:
        return "no setting beats the default on fresh seeds; the default stays"
    means = f"mean {show_number(best.mean)} against {show_number(default.mean)}"
    p_value = compare_means(best.scores, default.scores)
    if p_value is None:
        return (
            f"too few seeds to call the winner better than the default ({means}): {MIN_SEEDS} of each are"
            f" needed; use --retest-seeds {MIN_SEEDS} or more"
        )
    p_value = min(1.0, p_value * sum(each.source != DEFAULT for each in candidates))
    if p_value >= LEVEL:
        return (
            f"the winner is not shown to be better than the default: {means}, p = {p_value:.2g}; more"
            " --trials, --timesteps or --retest-seeds may separate them"
        )
    return f"the winner is better than the default: {means}, p = {p_value:.2g} (permutation test)"


def make_preset(
    base: Resolved, trial: SweepTrial, candidates: Sequence[Candidate], question: Question
) -> str:
    """The text of best.yaml, valid as --config: the winner's values that a run without a sweep would not
    have, by section. candidates: the winner first."""
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
    if chosen["run.algo"] != config.run.algo:  # sizes and fields of the other algorithm
        chosen = {path: value for path, value in chosen.items() if path.split(".")[0] in ("run", "policy")}
    chosen |= {paths[name]: value for name, value in trial.given.items()}
    by_section: dict[str, dict[str, Any]] = {}
    for path, value in chosen.items():
        section, name = path.split(".")
        by_section.setdefault(section, {})[name] = to_plain(value)
    best = candidates[0]
    head = (
        f"# {config.env.env_id}: mean {question.measure} {show_number(best.mean)} after"
        f" {config.run.timesteps:,} steps,\n# on {best.seeds} seeds that the search did not use:"
        f" {', '.join(map(show_number, best.scores))}.\n# {describe_excess(candidates)}\n"
    )
    return head + yaml.safe_dump(by_section, sort_keys=False, allow_unicode=True)


def describe_excess(candidates: Sequence[Candidate]) -> str:
    """The selection bias that is left in the mean of the winner, in a sentence."""
    if len(candidates) == 1:
        return "No other setting was retested, so its mean has no selection bias."
    excess = estimate_excess([each.scores for each in candidates])
    shown = "unknown" if excess is None else f"at most about {excess:.2g}"
    return (
        f"These seeds also chose it as the best of {len(candidates)} settings, so its mean is too high:"
        f" the expected excess is {shown}."
    )
