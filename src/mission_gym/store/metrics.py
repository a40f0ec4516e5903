"""The numbers in every run's metrics stream: name, unit, what each means, what a bad value says.

The one place for these texts, with `metrics` of each algorithm; documentation is generated from them.
A name may end in `*`, where the environment or the run decides the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

# Names that begin so may differ between equal runs; no others may.
TIMED = ("time/", "phase/", "machine/")


class Metric(NamedTuple):
    """One metric, or a family of them."""

    name: str
    unit: str
    text: str
    bad: str = ""  # what a bad value looks like, and what to do


METRICS = (
    Metric(
        "rollout/ep_rew_mean",
        "reward",
        "Mean return of the last 100 finished episodes of training, as the environment gives it.",
    ),
    Metric("rollout/ep_len_mean", "steps", "Mean length of the same episodes."),
    Metric(
        "rollout/env_failures",
        "count",
        "Episodes lost so far because an environment raised, hung or died.",
        "Growing: read env-output.txt; `mission-gym check` may find the cause.",
    ),
    Metric("rollout/worker_restarts", "count", "Worker processes replaced so far, by this process."),
    Metric(
        "rollout/share_min",
        "share",
        "Least share of the data that an environment has given so far, in this process; with --blocks"
        " first_ready. An equal share is 1 / n_envs.",
        "Far below it: that environment is slow, and little is learned of what it alone shows.",
    ),
    Metric("rollout/share_min_env", "environment", "The environment that gave it."),
    Metric("rollout/share_max", "share", "Largest share of the data that an environment has given so far."),
    Metric("episode/*", "as given", "Mean of the environment's own episode metrics over the same episodes."),
    Metric("reward/*", "reward", "Mean sum of this reward term over the same episodes, weights applied."),
    Metric(
        "reward_share/*",
        "share",
        "The term's part of the sum of magnitudes of all terms.",
        "Above 0.95: one term makes the whole reward, and the others teach nothing.",
    ),
    Metric("outcome/*", "share", "Share of the same episodes that ended with this outcome."),
    Metric(
        "train/grad_norm",
        "norm",
        "Norm of the gradient before clipping. ppo: largest of each epoch, mean over the epochs. dqn: mean.",
        "Far above max_grad_norm and growing: values diverge. Lower learning_rate, or set normalize_returns.",
    ),
    Metric("train/learning_rate", "", "The learning rate of this update."),
    Metric(
        "train/loss",
        "",
        "ppo: policy_gradient_loss + vf_coef value_loss - ent_coef entropy. dqn: mean loss of the errors.",
    ),
    Metric("train/n_updates", "updates", "Updates made (SB3 counts epochs under this name)."),
    Metric(
        "train/gradient_steps",
        "gradient steps",
        "Gradient steps made since the start of the run.",
    ),
    Metric("time/total_timesteps", "steps", "Steps made when the row was written; `step` in metrics.jsonl."),
    Metric("time/iterations", "updates", "Updates made, under SB3's name."),
    Metric("time/fps", "steps/s", "Steps per second of this process since its start, everything included."),
    Metric(
        "time/train_fps", "steps/s", "Of collecting and learning alone, as a plan predicts it; in `end` rows."
    ),
    Metric("time/time_elapsed", "s", "Seconds of training over all processes of the run."),
    Metric("time/elapsed_s", "s", "The same at the end of a process, in its `end` row."),
    Metric("time/process_steps", "steps", "Steps that this process made, in its `end` row."),
    Metric("time/seconds", "s", "Duration of an evaluation, in its `eval` row."),
    Metric("time/alarms", "text", "Alarms about speed and memory that were due, where there are any."),
    Metric("time/updates", "updates", "The first and the last update of a `timeline` row."),
    Metric("time/spans", "s", "Its spans: role, phase, start and end."),
    Metric("time/cores", "share", "The use of each core over the last seconds before it."),
    Metric("time/machine", "", "Means and maxima of `machine/*` over a whole process, in its `end` row."),
    Metric("time/verdict", "", "What bounds the run, the evidence and what to change, in the same row."),
    Metric("phase/wall_s", "s", "Wall time since the last row; each role's phases add up to it."),
    Metric("phase/collect_s", "s", "Collecting rollouts: act, env, wait and copy."),
    Metric("phase/act_s", "s", "Collector: choosing actions. Of the mean worker where workers collect."),
    Metric("phase/env_s", "s", "Collector: stepping and resetting environments, of the mean worker."),
    Metric(
        "phase/wait_s",
        "s",
        "Collector: the mean worker waiting for the slowest one.",
        "A large part of collect: steps differ much in cost; more steps per rollout even it out.",
    ),
    Metric("phase/copy_s", "s", "Collector: weights, noise, rows written, messages; the rest of collect."),
    Metric("phase/collect_cpu_s", "s", "CPU time of collecting, of the mean worker; below wall: it waits."),
    Metric("phase/collector_idle_s", "s", "Collector: nothing to do, as the learner or main is at work."),
    Metric("phase/learn_s", "s", "Learning: values and update."),
    Metric("phase/values_s", "s", "Learner: values, advantages and the copy of the block, before an update."),
    Metric("phase/update_s", "s", "Learner: gradient steps."),
    Metric("phase/learner_idle_s", "s", "Learner: nothing to learn from yet."),
    Metric(
        "phase/record_s",
        "s",
        "Main: writing rows and logs, and the progress line.",
        "A large part of wall: rollouts are quick. Set log_interval, or switch TensorBoard off.",
    ),
    Metric("phase/evaluate_s", "s", "Main: evaluating."),
    Metric("phase/save_s", "s", "Main: saving checkpoints."),
    Metric("phase/main_idle_s", "s", "Main: none of these, so training is under way."),
    Metric(
        "phase/overlap",
        "share",
        "1 - wall / (collect + learn), wall without what main does. 0: one after the other; 0.5: all of it.",
    ),
    Metric(
        "machine/cpu", "share", "Use of the usable cores by everybody: mean of samples since the last row."
    ),
    Metric("machine/load", "processes", "Processes that want a core, for each usable core; over a minute."),
    Metric("machine/own_cores", "cores", "Cores that this run's processes used."),
    Metric(
        "machine/memory_bytes",
        "bytes",
        "Memory of this run's processes; what workers share is counted once.",
        "Growing without end: an environment keeps what it should drop.",
    ),
    Metric(
        "machine/memory_use",
        "share",
        "Memory of the machine in use, by everybody.",
        "Near 1: the machine swaps. Fewer environments, or shorter rollouts.",
    ),
    Metric(
        "machine/gpu_use", "share", "Use of the learner's GPU, as NVML tells it; only where there is one."
    ),
    Metric("machine/gpu_memory_bytes", "bytes", "Memory of the GPU in use; on MPS, of this process."),
    Metric("machine/gpu_power_w", "W", "Power that the GPU draws."),
    Metric("machine/gpu_temperature_c", "C", "Temperature of the GPU."),
    Metric("machine/gpu_clock_mhz", "MHz", "Clock of the GPU's processors."),
    Metric("machine/*_max", "the same", "The largest sample since the last row of each of these."),
    Metric(
        "machine/cpu_*", "share", "Use of the cores while collect, update, evaluate or save was under way."
    ),
    Metric("machine/gpu_use_*", "share", "Use of the GPU, likewise."),
    Metric("eval/mean_reward", "reward", "Mean return on the selection suite."),
    Metric("eval/mean_ep_length", "steps", "Mean episode length on the selection suite."),
    Metric(
        "eval/outcome_*", "share", "Share of the selection suite's episodes that ended with this outcome."
    ),
)


def find_metric(name: str, own: Iterable[Metric] = ()) -> Metric | None:
    """The metric that a name belongs to, None if it is not in the table; `own`: an algorithm's."""
    return next((metric for metric in (*METRICS, *own) if fnmatchcase(name, metric.name)), None)
