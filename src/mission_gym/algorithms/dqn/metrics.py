"""The numbers of training that DQN alone gives; documentation is generated from this."""

from __future__ import annotations

from mission_gym.store.metrics import Metric

METRICS = (
    Metric(
        "rollout/exploration_rate",
        "share",
        "Epsilon: the probability of a random action while this rollout was collected; 0 with noisy layers.",
    ),
    Metric(
        "train/q_mean",
        "return",
        "Mean value of the actions that were taken, over the transitions drawn.",
        "Growing far beyond any return that is possible: values diverge. Lower learning_rate, raise"
        " target_update_interval or lower tau.",
    ),
    Metric(
        "train/td_error",
        "return",
        "Mean size of the errors: value minus target.",
        "Growing without better returns: as for train/q_mean.",
    ),
    Metric(
        "train/replay_ratio",
        "gradient steps",
        "Gradient steps per transition since learning started; replay_ratio but for the fraction carried.",
    ),
    Metric("train/replay_size", "transitions", "Valid transitions in the replay."),
    Metric(
        "train/beta",
        "",
        "Exponent of the importance weights of prioritised replay in this update.",
    ),
)
