"""The types of flags as arguments of `train`, `iterate` and `branch`. `make docs` writes this."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

class Flags(TypedDict, total=False):
    """Every flag of a run; docs/configuration.md describes them."""

    preset: str
    config: str | PathLike[str]
    set: str | Sequence[str]
    trust: bool
    env_kwargs: Mapping[str, Any] | Sequence[str] | str
    curriculum: Any
    wrap: Sequence[str] | str
    max_sequence: int | str
    vector: Literal["auto", "serial", "workers", "threads", "aio", "batched", "ray"]
    blocks: Literal["all", "first_ready"]
    n_envs: int | str
    num_agents: int | str
    num_workers: int | str
    ray_address: str | None
    actor_workers: int | str | None
    env_timeout: float | str
    max_restarts: int | str
    n_steps_per_env: int | str
    n_steps: int | str
    batch_size: int | str | None
    n_epochs: int | str
    bptt_steps: int | str
    learning_rate: float
    lr: float
    learning_rate_final: float | None
    gamma: float
    gae_lambda: float
    clip_range: float
    clip_range_final: float | None
    ent_coef: float
    ent_coef_final: float | None
    vf_coef: float
    max_grad_norm: float
    target_kl: float | None
    normalize_advantage: bool
    replay_ratio: Literal["auto"] | float
    replay_size: int | str
    buffer_size: int | str
    learning_starts: int | str
    n_step: int | str
    prioritized: bool
    prioritized_alpha: float
    prioritized_beta: float
    save_replay: bool
    loss: Literal["huber", "mse"]
    double: bool
    dueling: bool
    tau: float
    target_update_interval: int | str
    exploration: Literal["epsilon", "noisy"]
    exploration_initial_eps: float
    exploration_final_eps: float
    exploration_fraction: float
    noisy_sigma: float
    policy_delay: int | str
    temperature_init: float
    learn_temperature: bool
    target_entropy: float | None
    critic_layer_norm: bool
    num_quantiles: int | str
    drop_quantiles: int | str
    network_arch: Sequence[int] | str
    net_arch: Sequence[int] | str
    activation: Literal["tanh", "relu", "elu"]
    activation_fn: Literal["tanh", "relu", "elu"]
    network: str | None
    recurrent: Literal["gru", "lstm", "mingru"] | None
    recurrent_size: int | str
    critic_keys: Sequence[str] | str
    normalize_obs: bool
    normalize_returns: bool
    log_std_init: float
    device: str
    threads: int | str
    acting: Literal["auto", "numpy", "torch"]
    acting_rows: int | str
    kernel: Literal["auto", "compiled", "torch"]
    overlap: Literal["auto", "on", "off"]
    tune: bool
    precision: Literal["auto", "float32", "bf16"]
    eval_freq: int | str
    eval_episodes: int | str
    eval_stage: str
    retest_episodes: int | str
    checkpoint_freq: int | str
    keep_last: int | str
    keep_best: int | str
    checkpoint_budget_mb: int | str
    algo: Literal["ppo", "dqn", "sac"]
    timesteps: int | str
    total_timesteps: int | str
    seed: int | str
    stop_when: str | None
    max_time: float | str | None
    run_name: str | None
    runs_dir: str
    notes: str
    tensorboard: bool
    track: Sequence[str] | str
    log_interval: int | str
