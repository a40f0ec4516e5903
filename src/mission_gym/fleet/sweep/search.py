"""A sweep tick by tick: takes in ended jobs, asks for trials, and then trains the best ones again.

The whole state is in two journals, of the study and of the group. So a killed sweep continues: a trial
without jobs gets them, a trial whose jobs have ended gets its value, and no trial is requested twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from mission_gym.config.layers import Resolved
from mission_gym.fleet.groups import ask_jobs
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.requests import find_needs
from mission_gym.fleet.sweep.question import MOST_TRIALS
from mission_gym.fleet.sweep.space import fit_values, make_choice
from mission_gym.fleet.sweep.study import Study, SweepTrial, rank
from mission_gym.fleet.sweep.trials import (
    choose_candidates,
    describe_verdict,
    list_jobs,
    make_preset,
    measure_jobs_s,
    rank_candidates,
    read_curve,
    read_results,
    read_score,
    request_jobs,
)
from mission_gym.report.formats import show_number
from mission_gym.store.groups import GroupDir, Job, JobRequest
from mission_gym.store.sweeps import (
    DEFAULT,
    SweepRecord,
    is_retest,
    name_retest,
    name_trial,
    read_sweep,
    write_sweep,
)

_SAVE_S = 5.0  # between two records of the time spent
Say = Callable[[str], None]
Jobs = Mapping[str, Job]


class Search:
    """The work of one process on a sweep. base: the config of its runs without a setting."""

    def __init__(
        self, queue: Queue, group: GroupDir, study: Study, base: Resolved, cores: int, say: Say
    ) -> None:
        self._queue = queue
        self._group, self._study, self._base, self._say = group, study, base, say
        record = read_sweep(group)
        self._question = record.question
        self._needs = find_needs(base)
        self._at_once = max(1, cores // self._needs.cores)
        self._start_s = time.monotonic() - record.spent_s
        self._saved_s = 0.0
        self._is_over = False  # all trials have ended: fresh seeds decide

    def retry_jobs(self, jobs: Jobs) -> None:
        """Retry the jobs that a kill or a stop has ended, with one more retry than before."""
        again = [job for trial in self._study.list_trials() for job in self._list_open(trial, jobs)]
        requests = [
            job.request.model_copy(update={"retries": max(job.request.retries, job.tries + 1)})
            for job in again
        ]
        self._queue.add(self._group, requests)
        ask_jobs(self._group, [job.name for job in again if job.state in ("failed", "stopped")], "resume")

    def _list_open(self, trial: SweepTrial, jobs: Jobs) -> list[Job]:
        """The unfinished jobs of a running trial, and of its retest."""
        own = list_jobs(jobs, name_trial(trial.row.number)) if trial.row.state == "running" else []
        again = list_jobs(jobs, name_retest(trial.row.number))
        return [job for job in (*own, *again) if job.state != "done" and not trial.is_stopping]

    def feed(self, jobs: Jobs) -> bool:
        """Take in ended jobs, and ask for the next ones; returns whether jobs were added."""
        trials = self._study.list_trials()
        ended = [trial for trial in trials if trial.row.state == "running" and self._update(trial, jobs)]
        trials = self._study.list_trials() if ended else trials
        requests = [
            request
            for trial in trials
            if trial.row.state == "running" and not list_jobs(jobs, name_trial(trial.row.number))
            for request in self._request(trial)
        ]
        while self._may_ask(trials, jobs, len(requests)):
            trial = self._add_trial(trials)
            requests += self._request(trial)
            trials = [*trials, trial]
        if not requests:
            requests = self._request_retests(trials, jobs)
        if requests:
            self._queue.add(self._group, requests)
        if ended or requests or self._spent_s - self._saved_s > _SAVE_S:
            self._save(trials, jobs)
        return bool(requests)

    @property
    def _spent_s(self) -> float:
        return time.monotonic() - self._start_s

    def _update(self, trial: SweepTrial, jobs: Jobs) -> bool:
        """End a trial whose jobs have ended, or stop one that is behind; returns whether it ended."""
        own, number = list_jobs(jobs, name_trial(trial.row.number)), trial.row.number
        if not own:
            return False
        if not all(job.has_ended for job in own):
            if self._question.pruner != "none" and not trial.is_stopping:
                self._stop_if_behind(number, own)
            return False
        results, causes = read_results(own, read_score)
        if not causes:
            score = mean(result.value for result in results)
            self._study.note(number, curve=read_curve(own))
            self._study.finish(number, score, mean(result.seconds for result in results))
            outcome = f"lower bound {show_number(score)}"
        elif trial.is_stopping:
            self._study.drop(number, "behind the median of the others", is_pruned=True)
            outcome = "pruned"
        else:
            self._study.drop(number, "; ".join(causes))
            outcome = f"failed: {causes[0]}"
        best = rank(each.row for each in self._study.list_trials() if each.row.state == "complete")
        leader = f"; best {show_number(best[0].score)} of trial {best[0].number}" if best else ""
        self._say(f"trial {number} ({trial.row.source}) {outcome}{leader}")
        return True

    def _stop_if_behind(self, number: int, own: Sequence[Job]) -> None:
        curve = read_curve(own)
        if curve and self._study.is_behind(curve):
            self._study.note(number, curve=curve, doomed=True)
            ask_jobs(self._group, [job.name for job in own if not job.has_ended], "stop")

    def _may_ask(self, trials: Sequence[SweepTrial], jobs: Jobs, num_new: int) -> bool:
        """Whether one more trial has a free core, and trials and time are left."""
        if self._is_over or not self._has_trials_left(trials):
            return False
        if len(trials) >= len(self._question.starts) and not self._has_time_left():
            return False
        waiting = [job for job in jobs.values() if not job.has_ended and not is_retest(job)]
        if self._needs.uses_gpu:  # how many jobs share it well is measured, one more at a time
            return not num_new and all(job.state != "queued" for job in waiting)
        return len(waiting) + num_new < self._at_once

    def _has_trials_left(self, trials: Sequence[SweepTrial]) -> bool:
        return len(trials) < (self._question.trials or MOST_TRIALS)

    def _has_time_left(self) -> bool:
        """Whether one more trial and the runs on fresh seeds fit into the budget."""
        question = self._question
        if question.budget_s is None:
            return True
        taken = measure_jobs_s(self._group)
        num_again = (question.retest + 1) * len(question.retest_seeds)
        rounds = -(-len(question.seeds) // self._at_once) + -(-num_again // self._at_once)
        return self._spent_s + rounds * (mean(taken) if taken else 0.0) <= question.budget_s

    def _add_trial(self, trials: Sequence[SweepTrial]) -> SweepTrial:
        """The next trial: a start of the question, or a draw of the sampler."""
        starts = self._question.starts
        if len(trials) < len(starts):
            start = starts[len(trials)]
            return self._study.add(start.source, start.values, start.given)
        given = fit_values(self._base, self._study.draw(self._question.trials))
        values = {axis.name: make_choice(given[axis.name]) for axis in self._question.axes}
        return self._study.add("search", values, given)

    def _request(self, trial: SweepTrial, *, is_again: bool = False) -> list[JobRequest]:
        question, number = self._question, trial.row.number
        variant, seeds, given = name_trial(number), question.seeds, trial.given
        if is_again:
            variant, seeds = name_retest(number), question.retest_seeds
            given = given | {"retest_episodes": self._base.config.evaluation.eval_episodes}
        return request_jobs(self._group, question, self._needs, variant, given, seeds)

    def _request_retests(self, trials: Sequence[SweepTrial], jobs: Jobs) -> list[JobRequest]:
        """The missing runs on fresh seeds: those of the default once no trial is added, those of the best
        trials once all trials have ended."""
        if not self._is_over and self._has_trials_left(trials) and self._has_time_left():
            return []
        has_ended = all(trial.row.state != "running" for trial in trials)
        chosen = choose_candidates(trials, self._question.retest) if has_ended else trials[:1]
        if has_ended and not self._is_over:
            self._say(f"the search ended after {len(trials)} trials; fresh seeds decide")
            self._is_over = True
        requests = [request for trial in chosen for request in self._request(trial, is_again=True)]
        return [request for request in requests if request.name not in jobs]

    def _save(self, trials: Sequence[SweepTrial], jobs: Jobs, *, is_done: bool = False) -> SweepRecord:
        """Write the results so far."""
        self._saved_s = self._spent_s
        candidates = rank_candidates(trials, jobs, self._question)
        has_winner = is_done and bool(candidates) and candidates[0].iqm is not None
        record = SweepRecord(
            question=self._question, spent_s=self._spent_s, is_done=is_done,
            trials=[trial.row for trial in trials],
            importance=self._study.compute_importance(),
            candidates=candidates,
            best_trial=candidates[0].trial if has_winner else None,
            verdict=describe_verdict(candidates) if is_done and candidates else "",
        )  # fmt: skip
        write_sweep(self._group, record)
        return record

    def finish(self, jobs: Jobs) -> tuple[SweepRecord, str]:
        """Write the result of a sweep whose jobs have ended; returns it with the text of the preset, which is
        empty without a winner."""
        trials = self._study.list_trials()
        record = self._save(trials, jobs, is_done=True)
        keys = ("iqm", "low", "high", "seeds")
        estimates = {each.trial: {key: getattr(each, key) for key in keys} for each in record.candidates}
        default = next((each.trial for each in record.candidates if each.source == DEFAULT), None)
        best = estimates.get(record.best_trial) if record.best_trial is not None else None
        self._group.write(
            **{"best": best, DEFAULT: None if default is None else estimates[default]},
            **{key: (best or {}).get(key) for key in keys[:3]},
        )
        if record.best_trial is None:
            return record, ""
        winner = trials[record.best_trial]
        return record, make_preset(self._base, winner, record.candidates, self._question)
