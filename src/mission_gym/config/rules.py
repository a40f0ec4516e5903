"""Rules between fields, applied before a run: `auto` by arithmetic, contradictions, values without effect.

Explicit values that contradict each other are refused. Values from presets and weaker sources are adapted,
with a note. The section `compute` stays `auto`: `run/settle.py` knows the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from mission_gym.config.curriculum import find_stage
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Config
from mission_gym.errors import ConfigError, UsageError

DEFAULT_ENVS = 8  # for n_envs=auto without a plan
_MAX_METRIC_ROWS = 1000
_MIN_EVAL_FREQ, _NUM_EVALS = 20_000, 5  # steps in between; a short run gets this many evaluations


def fix_num_envs(resolved: Resolved) -> Resolved:
    """Replace n_envs=auto by the default that a plan starts from."""
    if resolved.config.vector.n_envs != "auto":
        return resolved
    return resolved.with_values({"vector.n_envs": DEFAULT_ENVS}, "plan")


def apply_rules(resolved: Resolved, start: int = 0) -> tuple[Resolved, list[str]]:
    """Resolve each `auto` that is arithmetic, and check the rules between fields.

    start: steps made before, by the parent of a branch or an earlier process. Returns the config and a note
    for each adapted value. Raises one ConfigError with all problems.
    """
    notes: list[str] = []
    problems: list[str] = []
    resolved = _fit_timesteps(fix_num_envs(resolved), start, notes, problems)
    for fit in (type(resolved.config.algorithm).fit, _fit_schedules, _fit_curriculum):
        resolved = fit(resolved, notes, problems)
    if problems:
        raise ConfigError(problems)
    return _fill_intervals(resolved), notes


def check_curriculum(resolved: Resolved) -> None:
    """Raise ConfigError for values that contradict the curriculum."""
    problems: list[str] = []
    _fit_curriculum(resolved, [], problems)
    if problems:
        raise ConfigError(problems)


def rollout_text(config: Config) -> str:
    """The size of a rollout and its factors, for messages."""
    agents = f" x {config.vector.num_agents} agents" if config.vector.num_agents > 1 else ""
    steps = config.algorithm.n_steps_per_env
    return f"{config.rollout_size} ({config.num_envs} envs{agents} x {steps} steps)"


def _fit_timesteps(resolved: Resolved, start: int, notes: list[str], problems: list[str]) -> Resolved:
    config, source = resolved.config, resolved.sources["run.timesteps"]
    wanted, rollout = config.run.timesteps, config.rollout_size
    if start == 0 and wanted < rollout:
        num_steps = config.algorithm.n_steps_per_env
        fewer = {
            "n_steps_per_env": wanted // (rollout // num_steps),
            "n_envs": wanted // (num_steps * config.vector.num_agents),
        }
        remedies = [f"timesteps={rollout}", *(f"{name}={value}" for name, value in fewer.items() if value)]
        problems.append(
            f"timesteps={wanted} is below one rollout of {rollout_text(config)}; a run needs at least one;"
            f" use {' or '.join(remedies)} [{source}]"
        )
        return resolved
    num_rollouts = -(-(wanted - start) // rollout)
    rounded = start + num_rollouts * rollout
    if rounded == wanted:
        return resolved
    after = f" after step {start}" if start else ""
    notes.append(f"timesteps {wanted} rounded up to {rounded}: {num_rollouts} rollouts of {rollout}{after}")
    return resolved.with_values({"run.timesteps": rounded}, f"{source}, rounded up")


def _fit_schedules(resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
    """Refuse schedules that rise: the user most likely forgot to set the initial value."""
    algo = resolved.config.run.algo
    for name in resolved.config.algorithm.SCHEDULED:
        path = f"{algo}.{name}_final"
        initial, final = resolved.config.value(f"{algo}.{name}"), resolved.config.value(path)
        if final is None or final <= initial:
            continue
        source = resolved.sources[path]
        problem = f"{name}_final={final} is above {name}={initial}, and schedules can only decrease"
        if resolved.explicit(path):
            problems.append(f"{problem}; raise {name} or lower {name}_final [{source}]")
        else:
            notes.append(f"{problem}; {name} stays constant [{source}]")
            resolved = resolved.with_values({path: None}, f"{source}, adapted")
    return resolved


def _fit_curriculum(resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
    """Refuse arguments that stages set too, and an evaluation stage that does not exist."""
    config, curriculum = resolved.config, resolved.config.env.curriculum
    if curriculum is None:
        return resolved
    source = resolved.sources["env.env_kwargs"]
    staged = dict.fromkeys(key for stage in curriculum.stages for key in stage.kwargs)
    given = ", ".join(f"{key}={config.env.env_kwargs[key]}" for key in staged if key in config.env.env_kwargs)
    path = "env.curriculum"
    if given and not resolved.explicit(path) and resolved.sources[path] != "parent":
        notes.append(f"curriculum {curriculum} is not used, since {given} is given")
        return resolved.with_values({path: None}, f"{source}, adapted")
    if given:
        problems.append(
            f"{given} is given for all stages, and the stages of curriculum {curriculum} set it too;"
            f" remove one of them, or train without stages with --no-curriculum [{source}]"
        )
    try:
        find_stage(curriculum, config.evaluation.eval_stage, resolved.sources["evaluation.eval_stage"])
    except UsageError as error:
        problems.append(str(error))
    rules = [stage.until for stage in curriculum.stages if stage.until]
    steps = [rule.steps if rule.metric is None else None for rule in rules]
    before = None if None in steps else sum(filter(None, steps))
    if before is not None and before >= config.run.timesteps:
        notes.append(
            f"the last stage is not reached: the stages before it take {before:,} steps, and the run has"
            f" {config.run.timesteps:,}"
        )
    return resolved


def _fill_intervals(resolved: Resolved) -> Resolved:
    config = resolved.config
    timesteps, rollout = config.run.timesteps, config.rollout_size
    intervals = {
        # `run/selection.py` may raise it.
        "evaluation.eval_freq": max(min(_MIN_EVAL_FREQ, timesteps // _NUM_EVALS), timesteps // 50, 1),
        "checkpoints.checkpoint_freq": max(20_000, timesteps // 20, rollout),
        "run.log_interval": -(-timesteps // (rollout * _MAX_METRIC_ROWS)),
    }
    return resolved.with_values(
        {path: value for path, value in intervals.items() if config.value(path) == "auto"}, "auto"
    )


class BackendFacts(Protocol):
    """The facts about a backend that the rules use."""

    @property
    def runs_here(self) -> bool: ...
    @property
    def chooses_workers(self) -> bool: ...
    @property
    def needs_cluster(self) -> bool: ...
    @property
    def own_vector_form(self) -> bool: ...


class RunFacts(NamedTuple):
    """The facts that decide whether a value has an effect."""

    config: Config
    backend: BackendFacts
    has_vector_leaves: bool
    has_box_actions: bool
    acts_with_torch: bool
    has_sequences: bool

    @property
    def is_first_ready(self) -> bool:
        return self.config.vector.blocks == "first_ready"


class Unused(NamedTuple):
    """A value without effect under a condition, and the reason."""

    path: str
    when: Callable[[RunFacts], bool]
    reason: str


def _has_own_network(facts: RunFacts) -> bool:
    return facts.config.policy.network is not None


def _never_evaluates(facts: RunFacts) -> bool:
    return facts.config.evaluation.eval_freq == 0


def _in_process(facts: RunFacts) -> bool:
    return facts.backend.runs_here


def _on_this_machine(facts: RunFacts) -> bool:
    return not facts.backend.needs_cluster


_NO_CLUSTER = "this backend uses only this machine; use --vector ray or remove it"
_OWN_NETWORK = "--network sets the network; remove one"
_NO_EVALUATIONS = "--eval-freq 0 disables evaluations; remove one"
_UNUSED = (
    Unused("vector.num_workers", _in_process, "there are no workers; use --vector workers or remove it"),
    Unused(
        "vector.num_workers",
        lambda facts: not facts.backend.runs_here and not facts.backend.chooses_workers,
        "this backend runs in one process; remove it",
    ),
    Unused("vector.ray_address", _on_this_machine, _NO_CLUSTER),
    Unused("vector.actor_workers", _on_this_machine, _NO_CLUSTER),
    Unused(
        "vector.env_timeout",
        _in_process,
        "a step in this process can't be timed out; use --vector workers or remove it",
    ),
    Unused(
        "vector.max_restarts",
        lambda facts: facts.backend.own_vector_form,
        "single environments of a batched environment can't be restarted; remove it",
    ),
    Unused(
        "vector.blocks",
        lambda facts: facts.is_first_ready and facts.backend.runs_here,
        "environments in this process are stepped together; use --vector workers or threads, or remove it",
    ),
    Unused(
        "vector.blocks",
        lambda facts: facts.is_first_ready and not facts.backend.runs_here and facts.acts_with_torch,
        "torch acts for all environments at once; use --acting numpy with a plain MLP, or remove it",
    ),
    Unused(
        "compute.overlap",
        lambda facts: facts.is_first_ready and facts.config.compute.overlap == "on",
        "--blocks first_ready already collects during updates; remove one",
    ),
    Unused(
        "env.max_sequence", lambda facts: not facts.has_sequences, "no observation is a Sequence; remove it"
    ),
    Unused("policy.network_arch", _has_own_network, _OWN_NETWORK),
    Unused(
        "policy.recurrent_size",
        lambda facts: facts.config.policy.recurrent == "none",
        "the policy has no memory; give --recurrent gru or remove it",
    ),
    Unused("policy.activation", _has_own_network, _OWN_NETWORK),
    Unused(
        "policy.normalize_obs",
        lambda facts: not facts.has_vector_leaves,
        "no observation is a vector of real numbers; remove it",
    ),
    Unused(
        "policy.log_std_init",
        lambda facts: not facts.has_box_actions,
        "the actions are not continuous; remove it",
    ),
    Unused("evaluation.eval_episodes", _never_evaluates, _NO_EVALUATIONS),
    Unused(
        "evaluation.eval_stage",
        lambda facts: facts.config.env.curriculum is None,
        "the run has no curriculum; set one with --curriculum, or remove it",
    ),
    Unused("checkpoints.keep_best", _never_evaluates, _NO_EVALUATIONS),
    Unused("run.stop_when", _never_evaluates, _NO_EVALUATIONS),
)


def find_unused(resolved: Resolved, facts: RunFacts) -> list[str]:
    """Return a problem for each explicit value that has no effect in this run.

    Values that disable something (none, 0, false) are never refused.
    """
    problems = []
    for path, when, reason in (*_UNUSED, *resolved.config.algorithm.UNUSED):
        value = resolved.config.value(path)
        if value and resolved.explicit(path) and when(facts):
            name = path.split(".")[1]
            shown = ",".join(str(item) for item in value) if isinstance(value, tuple) else value
            problems.append(f"{name}={shown} is not used: {reason} [{resolved.sources[path]}]")
    return problems
