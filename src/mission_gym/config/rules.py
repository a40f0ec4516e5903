"""Rules between fields, applied once before a run: `auto` by arithmetic, what does not fit, what is unused.

What the user asked for explicitly is refused if it can't be had; values from presets and below are
adapted, with a note. The section `compute` stays `auto`: the run room knows the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from mission_gym.config.curriculum import find_stage
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Config
from mission_gym.errors import ConfigError, UsageError

_MAX_METRIC_ROWS = 1000
_LEAST_EVAL_FREQ = 20_000


def finish(resolved: Resolved, start: int = 0) -> tuple[Resolved, list[str]]:
    """Resolve every `auto` that is arithmetic and check what depends on several fields.

    start: steps that were made already, where a run goes on or branches off.

    Returns the finished config and a note for everything that was adapted. Raises one ConfigError.
    """
    notes: list[str] = []
    problems: list[str] = []
    resolved = _fit_timesteps(resolved, start, notes, problems)
    for step in (type(resolved.config.algorithm).fit, _fit_schedules, _fit_curriculum):
        resolved = step(resolved, notes, problems)
    if problems:
        raise ConfigError(problems)
    return _fill_intervals(resolved), notes


def refuse_contradictions(resolved: Resolved) -> None:
    """Tell what contradicts the curriculum, before an environment is built for what can't be."""
    problems: list[str] = []
    _fit_curriculum(resolved, [], problems)
    if problems:
        raise ConfigError(problems)


def rollout_text(config: Config) -> str:
    """The size of a rollout, and what it is made of."""
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
        ways = [f"timesteps={rollout}", *(f"{name}={value}" for name, value in fewer.items() if value)]
        problems.append(
            f"timesteps={wanted} is below one rollout of {rollout_text(config)}; a run needs at least one;"
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


def _fit_schedules(resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
    """Refuse schedules that rise: they are a forgotten initial value, not a wish."""
    algo = resolved.config.run.algo
    for name in resolved.config.algorithm.SCHEDULED:
        path = f"{algo}.{name}_final"
        initial, final = resolved.config.value(f"{algo}.{name}"), resolved.config.value(path)
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


def _fit_curriculum(resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
    """Refuse arguments that the stages set too, and a stage to evaluate on that is not there."""
    config, curriculum = resolved.config, resolved.config.env.curriculum
    if curriculum is None:
        return resolved
    source = resolved.sources["env.env_kwargs"]
    staged = dict.fromkeys(key for stage in curriculum.stages for key in stage.kwargs)
    given = [f"{key}={config.env.env_kwargs[key]}" for key in staged if key in config.env.env_kwargs]
    if given and not resolved.explicit("env.curriculum"):
        notes.append(
            f"{', '.join(given)} is given, which curriculum {curriculum} would change; trained without it"
        )
        return resolved.with_values({"env.curriculum": None}, f"{source}, adapted")
    if given:
        problems.append(
            f"{', '.join(given)} is given for all stages, and those of curriculum {curriculum} set it each;"
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
            f"the last stage is not reached: those before it take {before:,} steps, and the run has"
            f" {config.run.timesteps:,}"
        )
    return resolved


def _fill_intervals(resolved: Resolved) -> Resolved:
    config = resolved.config
    timesteps, rollout = config.run.timesteps, config.rollout_size
    intervals = {
        "evaluation.eval_freq": max(_LEAST_EVAL_FREQ, timesteps // 50),  # raised by `plan/evaluations.py`
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
    def needs_cluster(self) -> bool: ...
    @property
    def own_vector_form(self) -> bool: ...


class RunFacts(NamedTuple):
    """What decides whether a value is used."""

    config: Config
    backend: BackendFacts
    has_vector_leaves: bool
    has_box_actions: bool
    acts_with_torch: bool
    has_sequences: bool


class Unused(NamedTuple):
    """A value that is not used when something holds, and why."""

    path: str
    when: Callable[[RunFacts], bool]
    reason: str


def _own_network(facts: RunFacts) -> bool:
    return facts.config.policy.network is not None


def _never_evaluates(facts: RunFacts) -> bool:
    return facts.config.evaluation.eval_freq == 0


def _in_process(facts: RunFacts) -> bool:
    return facts.backend.runs_here


def _first_ready(facts: RunFacts) -> bool:
    return facts.config.vector.blocks == "first_ready"


def _on_this_machine(facts: RunFacts) -> bool:
    return not facts.backend.needs_cluster


_NO_CLUSTER = "this backend runs on this machine alone; use --vector ray or remove it"
_OWN_NETWORK = "the network is given by --network; remove one"
_NEVER_EVALUATES = "--eval-freq 0 makes no evaluations; remove one"
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
        "a batched environment can't be restarted by rows; remove it",
    ),
    Unused(
        "vector.blocks",
        lambda facts: _first_ready(facts) and _in_process(facts),
        "environments in this process are stepped together; use --vector workers or threads, or remove it",
    ),
    Unused(
        "vector.blocks",
        lambda facts: _first_ready(facts) and not _in_process(facts) and facts.acts_with_torch,
        "torch acts for all environments at once; use --acting numpy with a plain MLP, or remove it",
    ),
    Unused(
        "compute.overlap",
        lambda facts: _first_ready(facts) and facts.config.compute.overlap == "on",
        "segments of --blocks first_ready go on beside updates already; remove one",
    ),
    Unused(
        "env.max_sequence",
        lambda facts: not facts.has_sequences,
        "no part of the observation is a Sequence; remove it",
    ),
    Unused("policy.network_arch", _own_network, _OWN_NETWORK),
    Unused("policy.activation", _own_network, _OWN_NETWORK),
    Unused(
        "policy.normalize_obs",
        lambda facts: not facts.has_vector_leaves,
        "no part of the observation is a vector of real numbers; remove it",
    ),
    Unused(
        "policy.log_std_init",
        lambda facts: not facts.has_box_actions,
        "the actions are not continuous; remove it",
    ),
    Unused("evaluation.eval_episodes", _never_evaluates, _NEVER_EVALUATES),
    Unused(
        "evaluation.eval_stage",
        lambda facts: facts.config.env.curriculum is None,
        "the run has no curriculum; give one with --curriculum, or remove it",
    ),
    Unused("checkpoints.keep_best", _never_evaluates, _NEVER_EVALUATES),
    Unused("run.stop_when", _never_evaluates, _NEVER_EVALUATES),
)


def find_unused(resolved: Resolved, facts: RunFacts) -> list[str]:
    """Return a problem for each explicit value that this run would ignore.

    A value that asks for nothing (none, 0, false) can't be ignored.
    """
    problems = []
    for path, when, reason in (*_UNUSED, *resolved.config.algorithm.UNUSED):
        value = resolved.config.value(path)
        if value and resolved.explicit(path) and when(facts):
            name = path.split(".")[1]
            shown = ",".join(str(item) for item in value) if isinstance(value, tuple) else value
            problems.append(f"{name}={shown} is not used: {reason} [{resolved.sources[path]}]")
    return problems
