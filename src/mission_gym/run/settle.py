"""The config of a new run, from the user's values to a config without `auto`:

    resolve (run/config.py) -> open the environment -> plan -> settle

`prepare_run` is the whole pass. `tune`, sweeps and the device check take its first steps, and a branch its
last one. Every value that can change a number is settled before the first update, and stored with its source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mission_gym.check.devices import device_memory
from mission_gym.config.layers import Resolved, apply_image_profile, apply_waiting_profile
from mission_gym.config.rules import RunFacts, apply_rules, check_curriculum, find_unused, fix_num_envs
from mission_gym.config.schema import Settled
from mission_gym.data import EnvSpec
from mission_gym.env.user_code import find_unknown
from mission_gym.errors import ConfigError, ResourceRefused
from mission_gym.plan.costs import Builder
from mission_gym.plan.measured import fill_measured
from mission_gym.plan.memory import check_memory
from mission_gym.plan.setups import (
    LearnerSetup,
    choose_overlap,
    choose_setup,
    choose_threads,
    device_exists,
    list_setups,
    measure_setups,
    prefer_one_thread,
)
from mission_gym.plan.tuner import PROBE_S, Tuned, may_plan, tune_run
from mission_gym.ray.backend import choose_actor_workers
from mission_gym.run.build import (
    algorithm_of,
    make_collector,
    make_learner,
    make_loaded_policy,
    one_blas_thread,
    set_up_torch,
)
from mission_gym.run.environment import (
    SERIAL_REMEDY,
    Environment,
    choose_acting_rows,
    choose_backend,
    choose_num_workers,
    count_groups,
    may_step_here,
    open_environment,
    permit_contacts,
    permit_files,
    permit_names,
    shares_cores,
)
from mission_gym.run.stages import EnvSource, has_several_arguments
from mission_gym.store.trusted import find_data_folders
from mission_gym.streams import TrainingSeeds
from mission_gym.vector.backends import load_backend

_verified: dict[tuple[Any, ...], str] = {}  # by device, precision and network: planning settles many configs


class Prepared(NamedTuple):
    """A config and its probed environment."""

    environment: Environment
    resolved: Resolved
    notes: list[str]  # for the user
    tuned: Tuned | None = None  # the plan that a settled config comes from


def prepare_run(resolved: Resolved, source: EnvSource, say: Callable[[str], None]) -> Prepared:
    """Open the environment of a new run, plan it, and settle its config. say: shows progress."""
    environment, resolved, notes, _ = open_new(resolved, source, measure_s=PROBE_S)
    with one_blas_thread():
        builder = make_builder(environment, resolved)
        tuned = fill_measured(builder, tune_run(builder, resolved, say), say)
    resolved, adapted = settle(tuned.resolved, environment)
    environment = environment.with_backend(resolved.settled)
    return Prepared(environment, resolved, [*adapted, *notes, *tuned.notes], tuned)


def open_new(resolved: Resolved, source: EnvSource = None, *, measure_s: float = 0.0) -> Prepared:
    """Check the config of a new run, and open its environment; the environment then sets the number of agents
    and the profile for images. measure_s: time for steps, if a plan may follow."""
    resolved, notes = drop_vector_form(resolved)
    check_curriculum(resolved)
    checked, misfit = fix_num_envs(resolved), None
    try:
        checked, _ = apply_rules(resolved)
    except ConfigError as error:
        # The environment may have several agents, with which the sizes fit. Registered ids never have.
        name = checked.config.env.env_id
        if source is None and ":" not in name:
            unknown = find_unknown(name)
            raise ConfigError([*([unknown] if unknown else []), *error.problems]) from error
        misfit = error
    config = checked.config
    runs = find_data_folders(checked.files)
    permit_contacts(config, checked.typed, runs)
    permit_files(config, checked.typed, runs)
    calls = permit_names(config, checked.typed, runs=runs)
    try:
        environment = open_environment(
            config,
            dict(config.env.env_kwargs),
            source,
            measure_s=measure_s if may_plan(config) or shares_cores(config) else 0.0,
            calls=calls,
            is_new=True,
            in_child=not may_step_here(config, checked.typed, calls),
        )
    except ResourceRefused as refusal:
        if choose_backend(config).runs_here:  # its companion was refused
            raise
        raise ResourceRefused(f"{refusal}, {SERIAL_REMEDY}") from refusal
    resolved, adapted = follow_backend(resolved, environment)
    notes = [*notes, *adapted]
    if environment.spec.conversions:
        notes = [*notes, f"every step {environment.spec.conversions}; return them in that dtype"]
    if misfit is not None and not environment.spec.agents:
        raise misfit
    if environment.cluster is not None and environment.cluster.upload is not None:
        notes = [*notes, environment.cluster.upload.describe()]
    resolved = set_num_agents(resolved, environment.spec)
    if environment.spec.sees_images:
        resolved = apply_image_profile(resolved)
    if environment.spec.coroutines != "none":
        resolved = apply_waiting_profile(resolved)
    return Prepared(environment, resolved, notes)


def drop_vector_form(resolved: Resolved) -> tuple[Resolved, list[str]]:
    """Replace a backend that needs the environment's vector form if wrappers, or stages with different
    arguments, rule it out. Explicit values raise ConfigError; others are adapted, with a note."""
    config, path = resolved.config, "vector.vector"
    if config.vector.vector == "auto" or not load_backend(config.vector.vector).own_vector_form:
        return resolved, []
    name, source = config.vector.vector, resolved.sources[path]
    if has_several_arguments(config.env.curriculum):
        stages = f"the stages of curriculum {config.env.curriculum} have different kwargs"
        cause = f"vector={name} builds one environment for all rows, and {stages}"
        remedy = "use another vector, or stages with options"
    elif config.env.wrap:
        cause = (
            f"vector={name} can't wrap the environment, and wrappers are given ({', '.join(config.env.wrap)})"
        )
        remedy = "use another vector, or remove them"
    else:
        return resolved, []
    if resolved.explicit(path):
        raise ConfigError(f"{cause}; {remedy} [{source}]")
    return resolved.with_values({path: "auto"}, f"{source}, adapted"), [
        f"{cause}; single environments are used"
    ]


def follow_backend(resolved: Resolved, environment: Environment) -> tuple[Resolved, list[str]]:
    """Replace a backend that a file may not choose (`may_step_here`), with a note."""
    path, name = "vector.vector", environment.backend.name
    given = resolved.config.value(path)
    if given in ("auto", name):
        return resolved, []
    note = f"vector={given} is not used: a file, not you, asks to step the environment in this process"
    return resolved.with_values({path: name}, f"{resolved.sources[path]}, adapted"), [note]


def set_num_agents(resolved: Resolved, spec: EnvSpec) -> Resolved:
    """Set num_agents to that of the environment; ConfigError if another number was given."""
    path, found = "vector.num_agents", spec.num_agents
    given = resolved.config.vector.num_agents
    if given == found:
        return resolved
    if resolved.explicit(path):
        raise ConfigError(
            f"num_agents={given} is wrong: {spec.env_id} has {found}; remove it [{resolved.sources[path]}]"
        )
    return resolved.with_values({path: found}, "environment")


def make_builder(environment: Environment, resolved: Resolved) -> Builder:
    """What planning builds on this environment."""
    spec = environment.spec
    return Builder(
        spec=spec,
        factory=environment.factory,
        backends=environment.backends,
        step_s=environment.step_s,
        cluster=environment.cluster,
        algorithm=algorithm_of(resolved.config),
        settle=lambda resolved: settle(resolved, environment)[0].settled,
        make_learner=lambda config: make_learner(config, spec),
        make_policy=lambda config, weights: make_loaded_policy(config, spec, weights),
        make_collector=lambda config: make_collector(
            config, environment.with_backend(config), TrainingSeeds(0)
        ),
    )


def settle(resolved: Resolved, environment: Environment, start: int = 0) -> tuple[Resolved, list[str]]:
    """Apply the rules between fields, and replace every `auto` that depends on machine or environment.

    start: steps of the parent of a branch. Returns the config and a note for each adapted value. Raises
    ConfigError for explicit values that this run can't use.
    """
    resolved, notes = apply_rules(resolved, start)
    spec, algorithm = environment.spec, algorithm_of(resolved.config)
    pace = environment.pace if shares_cores(resolved.config) else None
    resolved = _fill(resolved, {"vector.vector": environment.backend.name})
    if problems := find_unusable_values(resolved, environment):
        raise ConfigError(problems)
    backend = load_backend(resolved.config.vector.vector)
    layout = algorithm.layout(resolved.config, spec)
    resolved, threads, dropped = drop_wrong_kernel(resolved, spec)
    config = resolved.config
    setups = list_setups(config, algorithm, layout.has_compiled_form, threads)
    if not setups:
        given = f"device={config.compute.device} and precision={config.compute.precision}"
        cause = f" with {given}: it computes in float32 on the CPU"
        if not algorithm.has_compiled_kernel(config, threads):
            cause = f": {algorithm.name} has none for this config"
        source = resolved.sources["compute.kernel"]
        raise ConfigError(f"kernel=compiled is not possible{cause}; use torch or auto [{source}]")
    num_workers = choose_num_workers(config, backend, spec, pace)
    acting_rows = choose_acting_rows(config.num_envs, count_groups(config, backend, num_workers))
    resolved = _fill(
        resolved,
        {
            "compute.threads": threads,
            "vector.num_workers": num_workers,
            "compute.acting": "numpy" if layout.has_numpy_form else "torch",
            "compute.acting_rows": config.vector.num_agents * acting_rows,
        },
    )
    share = choose_actor_workers(resolved.config, backend, int(resolved.config.vector.num_workers))
    if share is not None and resolved.config.vector.actor_workers is None:
        resolved = resolved.with_values({"vector.actor_workers": share}, "plan")
    setup = setups[0]
    if len(setups) > 1:
        setup = _measure_setups(resolved, setups, environment)
    elif cause := verify_device(_with_setup(resolved, setup).settled, spec):
        raise ConfigError(
            f"device={setup.device} is not possible: it does not compute the loss of {algorithm.name}:"
            f" {cause}; use cpu [{resolved.sources['compute.device']}]"
        )
    settled = _with_setup(resolved, setup)
    if resolved.config.compute.overlap == "auto":
        overlap = choose_overlap(settled.settled, backend, algorithm).value
        settled = settled.with_values({"compute.overlap": overlap}, "plan")
    return settled, [*notes, *dropped]


def _fill(resolved: Resolved, values: dict[str, Any]) -> Resolved:
    """Set the values at those paths that are still `auto`."""
    left = {path: value for path, value in values.items() if resolved.config.value(path) == "auto"}
    return resolved.with_values(left, "plan") if left else resolved


def _with_setup(resolved: Resolved, setup: LearnerSetup) -> Resolved:
    """The config with a learner setup, and without overlap if that is open."""
    values = {f"compute.{name}": value for name, value in setup._asdict().items()}
    return _fill(resolved, values | {"compute.overlap": "off"})


def _measure_setups(resolved: Resolved, setups: list[LearnerSetup], environment: Environment) -> LearnerSetup:
    """The fastest learner setup; ConfigError, before a learner is made, if memory is short."""
    spec, algorithm = environment.spec, algorithm_of(resolved.config)
    backend = load_backend(resolved.config.vector.vector)
    wanted = resolved.config.compute.overlap

    def measure(setup: LearnerSetup) -> float:
        config = _with_setup(resolved, setup).settled
        if cause := verify_device(config, spec):
            raise RuntimeError(cause)
        learner = make_learner(config, spec)
        with device_memory(config):
            return algorithm.measure_update_s(learner, config, spec)

    def overlaps(setup: LearnerSetup) -> bool:
        chosen = choose_overlap(_with_setup(resolved, setup).settled, backend, algorithm).value
        return (chosen if wanted == "auto" else wanted) == "on"

    first = _with_setup(resolved, setups[0]).settled
    check_memory(first, backend, spec, algorithm)
    collect_s = environment.step_s / spec.num_agents / first.vector.num_workers
    return choose_setup(measure_setups(setups, resolved.config, spec, measure), collect_s, overlaps)


def find_unusable_values(resolved: Resolved, environment: Environment) -> list[str]:
    """A problem for each explicit value that a run on this environment can't use."""
    config, sources, spec = resolved.config, resolved.sources, environment.spec
    algorithm, compute = algorithm_of(config), config.compute
    layout = algorithm.layout(config, spec)
    is_auto = config.vector.vector == "auto"
    facts = RunFacts(
        config,
        environment.backend if is_auto else load_backend(config.vector.vector),
        has_vector_leaves=any(leaf.kind == "vector" for leaf in spec.leaves),
        has_box_actions=spec.action.num_reals > 0,
        acts_with_torch=compute.acting == "torch" or not layout.has_numpy_form,
        has_sequences=any(leaf.kind == "sequence" for leaf in spec.leaves),
    )
    problems = find_unused(resolved, facts) + algorithm.refuse(resolved, spec)
    problems += [
        f"{name}={value} is not possible: the network is not a plain MLP; use torch or auto"
        f" [{sources[f'compute.{name}']}]"
        for name, value, exists in (
            ("acting", compute.acting, layout.has_numpy_form),
            ("kernel", compute.kernel, layout.has_compiled_form),
        )
        if value not in ("auto", "torch") and not exists
    ]
    rows, agents = compute.acting_rows, config.vector.num_agents
    if rows != "auto" and rows % agents:
        problems.append(
            f"acting_rows={rows} would split the {agents} agents of an environment, which act together;"
            f" use a multiple of {agents}, or auto [{sources['compute.acting_rows']}]"
        )
    if config.policy.recurrent != "none" and algorithm.why_no_memory:
        problems.append(
            f"recurrent={config.policy.recurrent} is not possible with algo={algorithm.name}:"
            f" {algorithm.why_no_memory}; use ppo, or --wrap frame-stack:4 [{sources['policy.recurrent']}]"
        )
    if compute.precision == "bf16" and not algorithm.has_bf16:
        problems.append(
            f"precision=bf16 is not possible: {algorithm.name} learns in float32 only; remove it"
            f" [{sources['compute.precision']}]"
        )
    if compute.device != "auto" and not device_exists(compute.device):
        problems.append(
            f"device={compute.device} is not available to torch; use cpu or auto"
            f" [{sources['compute.device']}]"
        )
    return problems


def verify_device(config: Settled, spec: EnvSpec) -> str:
    """Compare a gradient step on the config's device with the CPU's, and a captured step with a plain one;
    the cause if they differ, else an empty string."""
    if config.compute.device == "cpu":
        return ""
    own = tuple(config.algorithm.model_dump().items())
    key = (config.policy, own, config.compute.device, config.compute.precision, spec.signature)
    if key not in _verified:
        set_up_torch(config)
        with device_memory(config):
            _verified[key] = algorithm_of(config).verify_device(config, spec)
    return _verified[key]


def drop_wrong_kernel(
    resolved: Resolved, spec: EnvSpec, remedy: str = "use torch or auto"
) -> tuple[Resolved, int, list[str]]:
    """Verify the compiled kernel if it may be used. One that does not compute the loss is replaced by torch,
    with a note; if it is explicit, ConfigError has the remedy. Also returns the learner's threads."""
    config, algorithm = resolved.config, algorithm_of(resolved.config)
    has_form, compute = algorithm.layout(config, spec).has_compiled_form, config.compute
    resolved, threads, notes = _choose_threads(resolved, spec, has_form)
    on_cpu = compute.device in ("auto", "cpu") and compute.precision in ("auto", "float32")
    may_compile = has_form and on_cpu and compute.kernel != "torch"
    if not may_compile or not algorithm.has_compiled_kernel(config, threads):
        return resolved, threads, notes
    if not (cause := algorithm.verify_compiled_kernel(config, spec, threads)):
        return resolved, threads, notes
    if resolved.explicit("compute.kernel"):
        raise ConfigError(
            f"kernel=compiled is not possible: it does not compute the loss of {algorithm.name}: {cause};"
            f" {remedy} [{resolved.sources['compute.kernel']}]"
        )
    note = f"the compiled kernel is left out, and torch trains: {cause}"
    resolved = resolved.with_values({"compute.kernel": "torch"}, f"plan: {note}")
    resolved, threads, busy = _choose_threads(resolved, spec, has_form)
    return resolved, threads, [*notes, note, *busy]


def _choose_threads(
    resolved: Resolved, spec: EnvSpec, has_compiled_form: bool
) -> tuple[Resolved, int, list[str]]:
    """The learner's threads at the present load. If it makes them fewer, the number is set, with a note."""
    config, threads = resolved.config, resolved.config.compute.threads
    if threads != "auto":
        return resolved, threads, []
    threads = choose_threads(config, spec, algorithm_of(config), has_compiled_form)
    if threads == 1 or not (cause := prefer_one_thread(config, threads)):
        return resolved, threads, []
    note = (
        f"1 thread for the learner: {cause}; an equal run on an idle machine uses {threads}, and its numbers"
        " differ in the last digits; --threads fixes the number"
    )
    return resolved.with_values({"compute.threads": 1}, f"plan: {cause}"), 1, [note]
