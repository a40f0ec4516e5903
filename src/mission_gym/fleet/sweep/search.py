"""A sweep tick by tick: hears of jobs that ended, asks for trials, and then trains the best ones again.

What is known stands in the two journals, of the study and of the group; this holds nothing that can't be made
from them. So it goes on wherever it was killed: a trial without jobs gets them, one whose jobs have ended is
told its value, and none is asked for twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from mission_gym.config.layers import Resolved
from mission_gym.fleet.drive import ask
from mission_gym.fleet.requests import find_needs
from mission_gym.fleet.sweep.question import MOST_TRIALS
from mission_gym.fleet.sweep.space import fit_values, make_choice
from mission_gym.fleet.sweep.study import Study, Trial, rank
from mission_gym.fleet.sweep.trials import (
    gather,
    list_jobs,
    measure_jobs_s,
    read_curve,
    request_jobs,
)
from mission_gym.fleet.sweep.winner import choose_candidates, judge_candidates, make_preset, tell_verdict
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

_SAVE_S = 5.0  # between notes of the time that was spent
Say = Callable[[str], None]
Jobs = Mapping[str, Job]


class Search:
    """One process's work on a sweep. base: the config that its runs have without a setting of their own."""

    def __init__(self, group: GroupDir, study: Study, base: Resolved, cores: int, say: Say) -> None:
        self._group, self._study, self._base, self._say = group, study, base, say
        self._record = read_sweep(group)
        self._question = self._record.question
        self._needs = find_needs(base)
        self._at_once = max(1, cores // self._needs.cores)
        self._spent_before_s, self._began = self._record.spent_s, time.monotonic()
        self._saved_s = 0.0
        self._is_over = False  # the search: fresh seeds decide

    def go_on(self, jobs: Jobs) -> None:
        """Let what a kill or a stop has ended be tried again, once more than it was."""
        again = [job for trial in self._study.list_trials() for job in self._list_open(trial, jobs)]
        self._group.add(
            job.request.model_copy(update={"retries": max(job.request.retries, job.tries + 1)})
            for job in again
        )
        ask(self._group, [job.name for job in again if job.state in ("failed", "stopped")], "resume")

    def _list_open(self, trial: Trial, jobs: Jobs) -> list[Job]:
        """The jobs of a trial that are not done, of a trial that is to be told, or trained again."""
        own = list_jobs(jobs, name_trial(trial.row.number)) if trial.row.state == "running" else []
        again = list_jobs(jobs, name_retest(trial.row.number))
        return [job for job in (*own, *again) if job.state != "done" and not trial.is_doomed]

    def feed(self, jobs: Jobs) -> bool:
        """Take in what has ended, and ask for what is next; whether something was asked for."""
        trials = self._study.list_trials()
        ended = [trial for trial in trials if trial.row.state == "running" and self._hear(trial, jobs)]
        trials = self._study.list_trials() if ended else trials
        requests = [
            request
            for trial in trials
            if trial.row.state == "running" and not list_jobs(jobs, name_trial(trial.row.number))
            for request in self._request(trial)
        ]
        while self._may_ask(trials, jobs, len(requests)):
            trial = self._ask(trials)
            requests += self._request(trial)
            trials = [*trials, trial]
        if not requests:
            requests = self._request_again(trials, jobs)
        if requests:
            self._group.add(requests)
        if ended or requests or self._spent_s - self._saved_s > _SAVE_S:
            self._save(trials, jobs)
        return bool(requests)

    @property
    def _spent_s(self) -> float:
        return self._spent_before_s + time.monotonic() - self._began

    def _hear(self, trial: Trial, jobs: Jobs) -> bool:
        """Tell the study of a trial whose jobs have ended, and prune one that is behind; whether it ended."""
        own, number = list_jobs(jobs, name_trial(trial.row.number)), trial.row.number
        if not own:
            return False
        if not all(job.has_ended for job in own):
            if self._question.pruner != "none" and not trial.is_doomed:
                self._judge(number, own)
            return False
        ending = gather(own, self._question.measure)
        if not ending.causes:
            score = mean(result.score for result in ending.results)
            self._study.note(number, curve=read_curve(own))
            self._study.finish(number, score, mean(result.seconds for result in ending.results))
            told = f"lower bound {show_number(score)}"
        elif trial.is_doomed:
            self._study.prune(number, "behind the median of the others")
            told = "pruned"
        else:
            self._study.fail(number, "; ".join(ending.causes))
            told = f"failed: {ending.causes[0]}"
        best = rank(each.row for each in self._study.list_trials() if each.row.state == "complete")
        leader = f"; best {show_number(best[0].score)} of trial {best[0].number}" if best else ""
        self._say(f"trial {number} ({trial.row.source}) {told}{leader}")
        return True

    def _judge(self, number: int, own: Sequence[Job]) -> None:
        curve = read_curve(own)
        if curve and self._study.is_behind(curve):
            self._study.note(number, curve=curve, doomed=True)
            ask(self._group, [job.name for job in own if not job.has_ended], "stop")

    def _may_ask(self, trials: Sequence[Trial], jobs: Jobs, num_new: int) -> bool:
        """Whether there is a core for one more trial, and trials and time are left."""
        if self._is_over or not self._has_trials_left(trials):
            return False
        if len(trials) >= len(self._question.starts) and not self._has_time_left():
            return False
        waiting = [job for job in jobs.values() if not job.has_ended and not is_retest(job)]
        if self._needs.uses_gpu:  # how many share it well is measured, one at a time
            return not num_new and all(job.state != "queued" for job in waiting)
        return len(waiting) + num_new < self._at_once

    def _has_trials_left(self, trials: Sequence[Trial]) -> bool:
        return len(trials) < (self._question.trials or MOST_TRIALS)

    def _has_time_left(self) -> bool:
        """Whether one more trial, and then the runs on fresh seeds, fit into the budget."""
        question = self._question
        if question.budget_s is None:
            return True
        taken = measure_jobs_s(self._group)
        num_again = (question.retest + 1) * len(question.retest_seeds)
        rounds = -(-len(question.seeds) // self._at_once) + -(-num_again // self._at_once)
        return self._spent_s + rounds * (mean(taken) if taken else 0.0) <= question.budget_s

    def _ask(self, trials: Sequence[Trial]) -> Trial:
        """The next trial: a start, or what the sampler draws."""
        starts = self._question.starts
        if len(trials) < len(starts):
            start = starts[len(trials)]
            return self._study.add(start.source, start.values, start.given)
        drawn = self._study.draw(self._question.trials)
        given = fit_values(self._base, drawn)
        values = {axis.name: make_choice(given[axis.name]) for axis in self._question.axes}
        return self._study.add("search", values, given)

    def _request(self, trial: Trial) -> list[JobRequest]:
        variant = name_trial(trial.row.number)
        return request_jobs(
            self._group, self._question, self._needs, variant, trial.given, self._question.seeds
        )

    def _request_again(self, trials: Sequence[Trial], jobs: Jobs) -> list[JobRequest]:
        """The runs on fresh seeds that are not asked for yet: of the default when nothing more is tried, and
        of the best when all trials have ended."""
        if not self._is_over and self._has_trials_left(trials) and self._has_time_left():
            return []
        has_ended = all(trial.row.state != "running" for trial in trials)
        chosen = choose_candidates(trials, self._question.retest) if has_ended else trials[:1]
        if has_ended and not self._is_over:
            self._say(f"the search is over after {len(trials)} trials; fresh seeds decide")
            self._is_over = True
        return [
            request
            for trial in chosen
            for request in request_jobs(
                self._group, self._question, self._needs, name_retest(trial.row.number), trial.given,
                self._question.retest_seeds,
            )
            if request.name not in jobs
        ]  # fmt: skip

    def _save(self, trials: Sequence[Trial], jobs: Jobs, *, is_done: bool = False) -> SweepRecord:
        """Write what became of the question so far."""
        self._saved_s = self._spent_s
        candidates = judge_candidates(trials, jobs, self._question)
        has_winner = is_done and bool(candidates) and candidates[0].iqm is not None
        self._record = SweepRecord(
            question=self._question, spent_s=self._spent_s, is_done=is_done,
            trials=[trial.row for trial in trials],
            importance=self._study.compute_importance(),
            candidates=candidates,
            best_trial=candidates[0].trial if has_winner else None,
            verdict=tell_verdict(candidates) if is_done and candidates else "",
        )  # fmt: skip
        write_sweep(self._group, self._record)
        return self._record

    def finish(self, jobs: Jobs) -> tuple[SweepRecord, str]:
        """Write the result of a sweep whose jobs have ended, and give the text of the preset, empty without a
        winner."""
        trials = self._study.list_trials()
        record = self._save(trials, jobs, is_done=True)
        estimates = {
            name: {key: getattr(candidate, key) for key in ("iqm", "low", "high", "seeds")}
            for candidate in record.candidates
            for name, is_it in (
                ("best", candidate.trial == record.best_trial),
                (DEFAULT, candidate.source == DEFAULT),
            )
            if is_it
        }
        best = estimates.get("best", {})
        self._group.write(
            **{"best": None, DEFAULT: None} | estimates,
            **{key: best.get(key) for key in ("iqm", "low", "high")},
        )
        if record.best_trial is None:
            return record, ""
        winner = trials[record.best_trial]
        return record, make_preset(self._base, winner, record.candidates[0], self._question)
