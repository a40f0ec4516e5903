"""From the flags of a sweep to its question; everything that is wrong is told at once, before it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from mission_gym.config.layers import Resolved, apply_image_profile, find_settings
from mission_gym.config.plain_yaml import to_plain
from mission_gym.config.rules import apply_rules, fix_num_envs
from mission_gym.config.sizes import parse_count, parse_duration_s
from mission_gym.errors import ConfigError, TrustError, UsageError
from mission_gym.fleet.sweep.space import cut_rollouts, fit_values, list_axes, make_choice, read_axes
from mission_gym.plan.cache import find_max_rollout, size_paths
from mission_gym.procs import usable_cores
from mission_gym.store.sweeps import DEFAULT, Axis, Question, Start, Values

if TYPE_CHECKING:
    from mission_gym.run.preview import SweepPreview

MOST_TRIALS = 1000
_DEFAULT_TRIALS = 40
_MOST_SEEDS = 100
Resolve = Callable[[Mapping[str, Any]], Resolved]
Say = Callable[[str], None]


class Wish(NamedTuple):
    """What is asked for, as the user wrote it."""

    trials: str | None = None
    budget: str | None = None
    over: str | None = None
    seeds_per_trial: str = "1"
    retest: str = "3"
    retest_seeds: str = "5"
    pruner: str = "none"


class Numbers(NamedTuple):
    """How much is asked for."""

    trials: int | None
    budget_s: float | None
    num_seeds: int
    retest: int
    num_retest_seeds: int


def read_numbers(wish: Wish, problems: list[str]) -> Numbers:
    """The numbers of a wish; what is wrong with them is added to the problems."""

    def read(name: str, text: str, least: int, most: int) -> int:
        try:
            number = parse_count(text)
        except ConfigError as error:
            problems.append(f"{name}: {error} [--{name.replace('_', '-')}]")
            return least
        if not least <= number <= most:
            problems.append(f"{name}={text} is not from {least} to {most} [--{name.replace('_', '-')}]")
        return max(number, least)

    budget_s = None
    if wish.budget is not None:
        try:
            budget_s = parse_duration_s(wish.budget)
        except ConfigError as error:
            problems.append(f"budget: {error} [--budget]")
    trials = wish.trials or (None if wish.budget else str(_DEFAULT_TRIALS))
    if wish.pruner not in (names := get_args(Question.model_fields["pruner"].annotation)):
        problems.append(f"pruner={wish.pruner} is not one of {', '.join(names)} [--pruner]")
    return Numbers(
        None if trials is None else read("trials", trials, 1, MOST_TRIALS),
        budget_s,
        read("seeds_per_trial", wish.seeds_per_trial, 1, _MOST_SEEDS),
        read("retest", wish.retest, 1, MOST_TRIALS),
        read("retest_seeds", wish.retest_seeds, 2, _MOST_SEEDS),  # one has no interval
    )


def make_question(wish: Wish, values: Values, resolve: Resolve, say: Say) -> Question:
    """The question of a new sweep; ConfigError with everything that is wrong. values: those given, by the
    names of flags; resolve: makes a config of such."""
    problems: list[str] = []
    numbers = read_numbers(wish, problems)
    base = _try_resolve(values, resolve, problems)
    scheme = base or _find_scheme(values, resolve)
    axes = read_axes(wish.over, scheme, problems) if wish.over else list_axes(scheme)
    question = None
    if base is not None:
        if base.config.evaluation.eval_freq == 0:
            problems.append("eval_freq=0 makes no evaluations, and trials are ranked by them [--eval-freq]")
        question = _look(wish, values, base, axes, numbers, resolve, problems, say)
    if problems or question is None:
        raise ConfigError(list(dict.fromkeys(problems)))
    return question


def _try_resolve(values: Values, resolve: Resolve, problems: list[str]) -> Resolved | None:
    try:
        return fix_num_envs(resolve(values))
    except ConfigError as error:
        problems += error.problems
    return None


def _find_scheme(values: Values, resolve: Resolve) -> Resolved:
    """A config in which --over can be read, where that of the sweep is wrong."""
    return _try_resolve({"algo": values.get("algo")} if "algo" in values else {}, resolve, []) or resolve({})


def _look(
    wish: Wish,
    values: Values,
    base: Resolved,
    axes: list[Axis],
    numbers: Numbers,
    resolve: Resolve,
    problems: list[str],
    say: Say,
) -> Question | None:
    """What a look at the environment adds: problems, or the whole question."""
    from mission_gym.run.preview import preview_sweep  # loads torch

    # A value that asks for nothing (none, 0, false) is never refused.
    probes = {axis.path: next(filter(None, [*axis.choices, axis.high, axis.low])) for axis in axes}
    try:
        preview = preview_sweep(base, probes)
    except TrustError:
        raise
    except UsageError as error:
        problems += error.problems if isinstance(error, ConfigError) else [str(error)]
        return None
    base, config = preview.resolved, preview.resolved.config
    least_s = preview.least_s * -(-numbers.num_seeds // usable_cores())
    if numbers.budget_s is not None and numbers.budget_s < least_s:
        problems.append(
            f"budget={wish.budget} is below one trial: {config.run.timesteps:,} steps of {config.env.env_id}"
            f" take at least {least_s:.0f} s here, without learning; give more, or fewer --timesteps"
            " [--budget]"
        )
    unused = [axis for axis in axes if axis.path in preview.misfits]
    if wish.over:
        problems += [
            f"{axis.name} is not searched: runs on this environment do not use it [--over]" for axis in unused
        ]
    elif unused:
        say(f"not searched, since these runs do not use them: {', '.join(axis.name for axis in unused)}")
    rollout = max(find_max_rollout(config), config.rollout_size)
    axes = cut_rollouts(
        [axis for axis in axes if axis not in unused],
        size_paths(config)[1],
        rollout // config.num_columns,
        problems,
    )
    if not axes and not problems:
        problems.append("nothing is left to search; name fields that are not given as flags [--over]")
    if problems:
        return None
    told = values | {"n_envs": config.num_envs}  # the same rollouts in every trial, and with the preset
    if config.vector.num_agents > 1:
        told |= {"num_agents": config.vector.num_agents}
    first = config.run.seed
    last = first + numbers.num_seeds
    return Question(
        asked=values, values=told, over=wish.over or "", axes=axes,
        starts=_list_starts(preview, axes, values, resolve), measure=preview.main_outcome or "return",
        trials=numbers.trials, budget_s=numbers.budget_s, seeds=list(range(first, last)),
        retest=numbers.retest, retest_seeds=list(range(last, last + numbers.num_retest_seeds)),
        pruner=cast(Any, wish.pruner), folder=os.getcwd(),
    )  # fmt: skip


def _list_starts(preview: SweepPreview, axes: list[Axis], values: Values, resolve: Resolve) -> list[Start]:
    """What the search begins with: what is trained without it; what would be without a preset and without the
    searched fields that were given; and the defaults of the schema. Each once, if it fits what was given."""
    base, sees_images = preview.resolved, preview.sees_images
    plain = apply_rules(base)[0]
    starts = [Start(source=DEFAULT, values=_pick(plain, axes), given={})]
    if below := _try_finish(lambda: _drop_choices(preview, axes, values, resolve)):
        shipped = find_settings(base.config.env.env_id)
        source = "shipped settings" if shipped else "without preset and flags"
        if given := _tell_apart(below, plain):
            starts.append(Start(source=source, values=_pick(below, axes), given=given))
    algorithm = base.config.algorithm
    defaults = {field.path: field.default for field in base.schema.fields} | dict(algorithm.PROFILE)
    defaults |= algorithm.IMAGE_PROFILE if sees_images else {}
    chosen = {axis.path: defaults[axis.path] for axis in axes}
    if fitted := _try_finish(lambda: base.with_values(chosen, "sweep")):
        found = _pick(fitted, axes)
        if found not in [start.values for start in starts]:
            given = fit_values(base, {axis.path: fitted.config.value(axis.path) for axis in axes})
            starts.append(Start(source="defaults of the schema", values=found, given=given))
    return starts


def _try_finish(make: Callable[[], Resolved]) -> Resolved | None:
    try:
        return apply_rules(make())[0]
    except ConfigError:
        return None


def _drop_choices(preview: SweepPreview, axes: list[Axis], values: Values, resolve: Resolve) -> Resolved:
    """The config without a preset, and without the searched fields that were given."""
    base, names = preview.resolved, {axis.name for axis in axes}
    aliases = {alias for field in base.schema.fields if field.name in names for alias in field.aliases}
    others = {key: value for key, value in values.items() if key not in {"preset", *names, *aliases}}
    agents = {"vector.num_agents": base.config.vector.num_agents}
    dropped = fix_num_envs(resolve(others)).with_values(agents, "environment")
    return apply_image_profile(dropped) if preview.sees_images else dropped


def _tell_apart(resolved: Resolved, plain: Resolved) -> Values:
    """What a run is told to learn as in one config, where it would learn as in the other."""
    algo = plain.config.run.algo
    paths = ["vector.n_envs", *(path for path in plain.sources if path.split(".")[0] in (algo, "policy"))]
    values = {path: resolved.config.value(path) for path in paths}
    different = {path: value for path, value in values.items() if value != plain.config.value(path)}
    return {path.split(".")[1]: to_plain(value) for path, value in different.items()}


def _pick(resolved: Resolved, axes: list[Axis]) -> Values:
    return {axis.name: make_choice(resolved.config.value(axis.path)) for axis in axes}
