"""The numbers of training that PPO alone gives; documentation is generated from this."""

from __future__ import annotations

from mission_gym.store.metrics import Metric

METRICS = (
    Metric(
        "train/approx_kl",
        "nats",
        "KL of the policy before the update from the one in its last epoch: mean of ratio - 1 - log ratio.",
        "Above 0.045, where a target_kl of 0.03 ends an update: steps are too large. Lower learning_rate or"
        " n_epochs, or set target_kl.",
    ),
    Metric(
        "train/clip_fraction",
        "share",
        "Share of samples whose probability ratio left the clip range, mean over all epochs.",
        "High and rising: much of the rollout no longer teaches. 0 throughout: the policy hardly moves.",
    ),
    Metric("train/clip_range", "ratio", "The clip range of this update."),
    Metric(
        "train/entropy_loss",
        "nats",
        "Minus the mean entropy of the policy, before its weight.",
        "Near 0 early on (discrete actions): it stopped exploring. Raise ent_coef or lower learning_rate.",
    ),
    Metric(
        "train/explained_variance",
        "share",
        "Share of the variance of returns that values predicted before the update; empty if all are equal.",
        "At or below 0 for long: values say nothing. More steps, normalize_returns, or a larger network.",
    ),
    Metric(
        "train/epochs_made",
        "epochs",
        "Epochs made in this update.",
        "Below n_epochs: target_kl ended the update. Always 1: learning_rate is too high for it.",
    ),
    Metric(
        "train/lag",
        "updates",
        "How far the policy that collected the rollout was behind the learner: the largest of its rows."
        " 1 with overlap (0 in the first update), as old as the slowest segment with --blocks first_ready,"
        " else 0.",
    ),
    Metric("train/lag_gradient_steps", "gradient steps", "The same lag in gradient steps."),
    Metric(
        "train/importance_mean",
        "ratio",
        "Mean of min(pi_prox / mu, 1), the weight of a lagging rollout's samples; 1 without a lag.",
        "Far below 1: one update moves the policy far, and overlap costs learning. Lower learning_rate or"
        " n_epochs, or use --overlap off.",
    ),
    Metric(
        "train/policy_gradient_loss",
        "",
        "The clipped surrogate with its sign turned, mean over all epochs; its size says little.",
    ),
    Metric(
        "train/value_loss",
        "squared return",
        "Mean squared error of values, in scaled units where normalize_returns is on.",
        "Growing without better returns: values diverge. Lower learning_rate or check the reward's scale.",
    ),
    Metric(
        "train/first_kl",
        "nats",
        "The same KL in the first minibatch, before anything was learned from this rollout.",
        "Above 1e-6: the pass over the rollout and the gradient step disagree. That is a defect; report it.",
    ),
    Metric(
        "train/first_ratio_error",
        "ratio",
        "Largest |ratio - 1| in the first minibatch.",
        "Above 1e-5: as for train/first_kl.",
    ),
    Metric(
        "train/value_mean",
        "return",
        "Mean value of the rollout's observations, in scaled units where normalize_returns is on.",
    ),
    Metric(
        "train/std",
        "policy units",
        "Mean standard deviation of continuous actions.",
        "Growing without end: ent_coef is too high. Near 0 early on: it stopped exploring.",
    ),
)
