"""Rules between fields, applied once before a run: `auto` by arithmetic, what does not fit, what is unused.

What the user asked for explicitly is refused if it can't be had; values from presets and below are
adapted, with a note. The section `compute` stays `auto`: the run room knows the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from mission_gym.config.layers import Resolved
from mission_gym.config.schema import ALGORITHMS, Config
from mission_gym.config.sizes import nearest_divisors, pick_batch_size
from mission_gym.errors import ConfigError

_MAX_METRIC_ROWS = 1000


def finish(resolved: Resolved, start: int = 0) -> tuple[Resolved, list[str]]:
    """Resolve every `auto` that is arithmetic and check what depends on several fields.

    start: steps that were made already, where a run goes on or branches off.

    Returns the finished config and a note for everything that was adapted. Raises one ConfigError.
    """
    notes: list[str] = []
    problems: list[str] = []
    resolved = _fit_timesteps(resolved, start, notes, problems)
    own = _fit_replay if resolved.config.run.algo == "dqn" else _fit_batch
    for step in (own, _fit_schedules):
        resolved = step(resolved, notes, problems)
    if problems:
        raise ConfigError(problems)
    return _fill_intervals(resolved), notes


def _rollout_text(config: Config) -> str:
    return f"{config.rollout_size} ({config.vector.n_envs} envs x {config.algorithm.n_steps_per_env} steps)"


def _fit_timesteps(resolved: Resolved, start: int, notes: list[str], problems: list[str]) -> Resolved:
    config, source = resolved.config, resolved.sources["run.timesteps"]
    wanted, rollout = config.run.timesteps, config.rollout_size
    if start == 0 and wanted < rollout:
        fewer = {
            "n_steps_per_env": wanted // config.vector.n_envs,
            "n_envs": wanted // config.algorithm.n_steps_per_env,
        }
        ways = [f"timesteps={rollout}", *(f"{name}={value}" for name, value in fewer.items() if value)]
        problems.append(
            f"timesteps={wanted} is below one rollout of {_rollout_text(config)}; a run needs at least one;"
            f" use {' or '.join(ways)} [{source}]"
        )
        return resolved
    num_rollouts = -(-(wanted - start) // rollout)
    rounded = start + num_rollouts * rollout
    if rounded == wanted:
        return resolved
    behind = f" behind step {start}" if start else ""
    notes.append(f"timesteps {wanted} rounded up to {rounded}: {num_rollouts} rollouts of {rollout}{behind}")
    return resolved.with_values({"run.timesteps": rounded}, f"{source}, rounded up")


def _fit_batch(resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
    config, source = resolved.config, resolved.sources["ppo.batch_size"]
    batch, rollout = config.ppo.batch_size, config.rollout_size
    if batch == "auto":
        return resolved.with_values({"ppo.batch_size": pick_batch_size(rollout)}, "auto")
    if rollout % batch == 0:
        return resolved
    problem = f"batch_size={batch} does not divide the rollout of {_rollout_text(config)}"
    if resolved.explicit("ppo.batch_size"):
        sizes = ", ".join(str(size) for size in nearest_divisors(rollout, batch))
        problems.append(f"{problem}; use {sizes} or auto [{source}]")
        return resolved
    fitting = pick_batch_size(rollout, batch / rollout, min(batch, 64))
    notes.append(f"{problem}; {fitting} is used [{source}]")
    return resolved.with_values({"ppo.batch_size": fitting}, f"{source}, adapted")


def falling_paths(config: Config) -> list[tuple[str, str]]:
    """The paths of each value that may fall over a run: where it starts and where it ends."""
    names = ("learning_rate", "clip_range", "ent_coef") if config.run.algo == "ppo" else ("learning_rate",)
    return [(f"{config.run.algo}.{name}", f"{config.run.algo}.{name}_final") for name in names]


def _fit_schedules(resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
    """Refuse schedules that rise: they are a forgotten initial value, not a wish."""
    for start, path in falling_paths(resolved.config):
        name = start.split(".")[1]
        initial, final = resolved.config.value(start), resolved.config.value(path)
        if final is None or final <= initial:
            continue
        source = resolved.sources[path]
        problem = f"{name}_final={final} is above {name}={initial}, and schedules only fall"
        if resolved.explicit(path):
            problems.append(f"{problem}; raise {name} or lower {name}_final [{source}]")
        else:
            notes.append(f"{problem}; {name} stays constant [{source}]")
            resolved = resolved.with_values({path: None}, f"{source}, adapted")
    return resolved


def _fit_replay(resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
    """Refuse a replay that can't hold what one update or the first one needs."""
    dqn, n_envs = resolved.config.dqn, resolved.config.vector.n_envs
    least = max(dqn.batch_size, dqn.learning_starts, n_envs * (dqn.n_steps_per_env + dqn.n_step))
    if dqn.replay_size < least:
        problems.append(
            f"replay_size={dqn.replay_size} is too small: it must hold batch_size={dqn.batch_size},"
            f" learning_starts={dqn.learning_starts} and n_envs x (n_steps_per_env + n_step) ="
            f" {n_envs * (dqn.n_steps_per_env + dqn.n_step)} transitions; use replay_size={least} or more"
            f" [{resolved.sources['dqn.replay_size']}]"
        )
    if dqn.exploration_final_eps > dqn.exploration_initial_eps:
        problems.append(
            f"exploration_final_eps={dqn.exploration_final_eps} is above exploration_initial_eps="
            f"{dqn.exploration_initial_eps}, and epsilon only falls; lower it"
            f" [{resolved.sources['dqn.exploration_final_eps']}]"
        )
    return resolved


def _fill_intervals(resolved: Resolved) -> Resolved:
    config = resolved.config
    timesteps, rollout = config.run.timesteps, config.rollout_size
    intervals = {
        "evaluation.eval_freq": max(20_000, timesteps // 50),
        "checkpoints.checkpoint_freq": max(20_000, timesteps // 20, rollout),
        "run.log_interval": -(-timesteps // (rollout * _MAX_METRIC_ROWS)),
    }
    return resolved.with_values(
        {path: value for path, value in intervals.items() if config.value(path) == "auto"}, "auto"
    )


class BackendFacts(Protocol):
    """What the rules ask of a backend."""

    @property
    def runs_here(self) -> bool: ...
    @property
    def chooses_workers(self) -> bool: ...
    @property
    def own_vector_form(self) -> bool: ...


class _Facts(NamedTuple):
    config: Config
    backend: BackendFacts
    has_vector_leaves: bool
    has_box_actions: bool
    acts_with_torch: bool


class _Unused(NamedTuple):
    path: str
    when: Callable[[_Facts], bool]
    reason: str


def _own_network(facts: _Facts) -> bool:
    return facts.config.policy.network is not None


def _never_evaluates(facts: _Facts) -> bool:
    return facts.config.evaluation.eval_freq == 0


def _in_process(facts: _Facts) -> bool:
    return facts.backend.runs_here


def _first_ready(facts: _Facts) -> bool:
    return facts.config.vector.blocks == "first_ready"


def _learns_values(facts: _Facts) -> bool:
    return facts.config.run.algo == "dqn"


def _is_noisy(facts: _Facts) -> bool:
    return facts.config.dqn.exploration == "noisy"


def _draws_uniformly(facts: _Facts) -> bool:
    return not facts.config.dqn.prioritized


_NOISY = "--exploration noisy has no epsilon; remove one"
_UNIFORM = "transitions are drawn uniformly; give --prioritized or remove it"
_OWN_NETWORK = "the network is given by --network; remove one"
_NEVER_EVALUATES = "--eval-freq 0 makes no evaluations; remove one"
_UNUSED = (
    _Unused("vector.num_workers", _in_process, "there are no workers; use --vector workers or remove it"),
    _Unused(
        "vector.num_workers",
        lambda facts: not facts.backend.runs_here and not facts.backend.chooses_workers,
        "threads run in one process; remove it",
    ),
    _Unused(
        "vector.env_timeout",
        _in_process,
        "a step in this process can't be timed out; use --vector workers or remove it",
    ),
    _Unused(
        "vector.max_restarts",
        lambda facts: facts.backend.own_vector_form,
        "a batched environment can't be restarted by rows; remove it",
    ),
    _Unused(
        "vector.blocks",
        lambda facts: _first_ready(facts) and _in_process(facts),
        "environments in this process are stepped together; use --vector workers or threads, or remove it",
    ),
    _Unused(
        "vector.blocks",
        lambda facts: _first_ready(facts) and not _in_process(facts) and facts.acts_with_torch,
        "torch acts for all environments at once; use --acting numpy with a plain MLP, or remove it",
    ),
    _Unused(
        "compute.overlap",
        lambda facts: _first_ready(facts) and facts.config.compute.overlap == "on",
        "segments of --blocks first_ready go on beside updates already; remove one",
    ),
    _Unused("policy.network_arch", _own_network, _OWN_NETWORK),
    _Unused("policy.activation", _own_network, _OWN_NETWORK),
    _Unused(
        "policy.normalize_obs",
        lambda facts: not facts.has_vector_leaves,
        "no part of the observation is a vector of real numbers; remove it",
    ),
    _Unused(
        "policy.log_std_init",
        lambda facts: not facts.has_box_actions,
        "the actions are not continuous; remove it",
    ),
    _Unused(
        "vector.blocks",
        lambda facts: _first_ready(facts) and _learns_values(facts),
        "the replay takes every environment's steps in their order; remove it",
    ),
    _Unused("policy.normalize_returns", _learns_values, "dqn learns from raw rewards; remove it"),
    _Unused("policy.log_std_init", _learns_values, "the actions are not continuous; remove it"),
    _Unused("dqn.exploration_initial_eps", _is_noisy, _NOISY),
    _Unused("dqn.exploration_final_eps", _is_noisy, _NOISY),
    _Unused("dqn.exploration_fraction", _is_noisy, _NOISY),
    _Unused(
        "dqn.noisy_sigma",
        lambda facts: not _is_noisy(facts),
        "there are no noisy layers; give --exploration noisy or remove it",
    ),
    _Unused("dqn.prioritized_alpha", _draws_uniformly, _UNIFORM),
    _Unused("dqn.prioritized_beta", _draws_uniformly, _UNIFORM),
    _Unused(
        "dqn.target_update_interval",
        lambda facts: facts.config.dqn.tau < 1,
        "with tau below 1 the target moves after every gradient step; remove one",
    ),
    _Unused("evaluation.eval_episodes", _never_evaluates, _NEVER_EVALUATES),
    _Unused("checkpoints.keep_best", _never_evaluates, _NEVER_EVALUATES),
    _Unused("run.stop_when", _never_evaluates, _NEVER_EVALUATES),
)


def find_unused(
    resolved: Resolved,
    backend: BackendFacts,
    *,
    has_vector_leaves: bool,
    has_box_actions: bool,
    acts_with_torch: bool,
) -> list[str]:
    """Return a problem for each explicit value that this run would ignore.

    A value that asks for nothing (none, 0, false) can't be ignored.
    """
    facts = _Facts(resolved.config, backend, has_vector_leaves, has_box_actions, acts_with_torch)
    problems = []
    algo = resolved.config.run.algo
    strange = tuple(f"{name}." for name in ALGORITHMS if name != algo)
    rows = [row for row in _UNUSED if not row.path.startswith(strange)]
    rows += [
        _Unused(path, lambda facts: True, f"it is a field of {path.split('.')[0]}, and the run is of {algo}")
        for path in resolved.sources
        if path.startswith(strange)
    ]
    for path, when, reason in rows:
        value = resolved.config.value(path)
        if value and resolved.explicit(path) and when(facts):
            name = path.split(".")[1]
            shown = ",".join(str(item) for item in value) if isinstance(value, tuple) else value
            problems.append(f"{name}={shown} is not used: {reason} [{resolved.sources[path]}]")
    return problems
