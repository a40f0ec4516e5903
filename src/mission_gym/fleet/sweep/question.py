"""From the flags of a sweep to its question; all problems are reported at once, before it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from mission_gym.config.layers import Resolved, apply_image_profile, apply_waiting_profile, find_settings
from mission_gym.config.plain_yaml import to_plain
from mission_gym.config.rules import apply_rules, fix_num_envs
from mission_gym.config.sizes import parse_count, parse_duration_s
from mission_gym.errors import ConfigError, TrustError, UsageError
from mission_gym.fleet.sweep.space import ALGO, limit_rollouts, list_axes, make_choice, read_axes
from mission_gym.plan.cache import find_max_rollout, size_paths
from mission_gym.procs import usable_cores
from mission_gym.store.sweeps import DEFAULT, Axis, Question, StartingPoint, Values

if TYPE_CHECKING:
    from mission_gym.run.preview import SweepPreview

MOST_TRIALS = 1000
_DEFAULT_TRIALS = "40"
_MOST_SEEDS = 100
Resolve = Callable[[Mapping[str, Any]], Resolved]
Say = Callable[[str], None]


class SweepRequest(NamedTuple):
    """The flags of a sweep, as the user wrote them."""

    trials: str | None = None
    budget: str | None = None
    over: str | None = None
    seeds_per_trial: str = "1"
    retest: str = "3"
    retest_seeds: str = "5"
    pruner: str = "none"


class SweepSize(NamedTuple):
    """The size of a sweep."""

    trials: int | None
    budget_s: float | None
    num_seeds: int
    retest: int
    num_retest_seeds: int


def read_size(request: SweepRequest, problems: list[str]) -> SweepSize:
    """The numbers of a request; their problems are added to the list."""

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
    if request.budget is not None:
        try:
            budget_s = parse_duration_s(request.budget)
        except ConfigError as error:
            problems.append(f"budget: {error} [--budget]")
    trials = request.trials or (None if request.budget else _DEFAULT_TRIALS)
    if request.pruner not in (names := get_args(Question.model_fields["pruner"].annotation)):
        problems.append(f"pruner={request.pruner} is not one of {', '.join(names)} [--pruner]")
    return SweepSize(
        None if trials is None else read("trials", trials, 1, MOST_TRIALS),
        budget_s,
        read("seeds_per_trial", request.seeds_per_trial, 1, _MOST_SEEDS),
        read("retest", request.retest, 1, MOST_TRIALS),
        read("retest_seeds", request.retest_seeds, 2, _MOST_SEEDS),  # below 5 nothing is called better
    )


def make_question(request: SweepRequest, values: Values, resolve: Resolve, say: Say) -> Question:
    """The question of a new sweep; ConfigError with all problems. values: the given ones, by flag name.
    resolve: makes a config of such values."""
    problems: list[str] = []
    size = read_size(request, problems)
    base = _try_resolve(values, resolve, problems)
    algo = {"algo": values["algo"]} if "algo" in values else {}
    scheme = base or _try_resolve(algo, resolve, []) or resolve({})  # --over is read even if values are wrong
    axes = read_axes(request.over, scheme, problems) if request.over else list_axes(scheme)
    preview = _preview(base, axes, problems) if base is not None else None
    if preview is not None:
        problems += _check_budget(request, size, preview)
        axes = _drop_unused(request, preview, axes, problems, say)
        config = preview.resolved.config
        rollout = max(find_max_rollout(config), config.rollout_size)
        axes = limit_rollouts(axes, size_paths(config)[1], rollout // config.num_columns, problems)
        if not axes and not problems:
            problems.append("no field is left to search; name fields that are not given as flags [--over]")
    if problems or preview is None:
        raise ConfigError(list(dict.fromkeys(problems)))
    # The same rollouts in every trial, and with the preset; but each algorithm has its own.
    fixed = values if ALGO in (axis.path for axis in axes) else values | {"n_envs": config.num_envs}
    if config.vector.num_agents > 1:
        fixed |= {"num_agents": config.vector.num_agents}
    first = config.run.seed
    last = first + size.num_seeds
    return Question(
        asked=values, values=fixed, over=request.over or "", axes=axes,
        starts=_list_starts(preview, axes, values, resolve), measure=preview.main_outcome or "return",
        trials=size.trials, budget_s=size.budget_s, seeds=list(range(first, last)), retest=size.retest,
        retest_seeds=list(range(last, last + size.num_retest_seeds)), pruner=cast(Any, request.pruner),
        folder=os.getcwd(),
    )  # fmt: skip


def _try_resolve(values: Values, resolve: Resolve, problems: list[str]) -> Resolved | None:
    try:
        return fix_num_envs(resolve(values))
    except ConfigError as error:
        problems += error.problems
    return None


def _preview(base: Resolved, axes: list[Axis], problems: list[str]) -> SweepPreview | None:
    """Try the environment with the config and every searched field; None if a run would be refused."""
    from mission_gym.run.preview import preview_sweep  # loads torch

    if base.config.evaluation.eval_freq == 0:
        problems.append("eval_freq=0 runs no evaluations, and trials are ranked by them [--eval-freq]")
    # Values that switch a field off (none, 0, false) are never refused.
    probes = {axis.path: next(filter(None, [*axis.choices, axis.high, axis.low])) for axis in axes}
    try:
        return preview_sweep(base, probes)
    except TrustError:
        raise
    except UsageError as error:
        problems += error.problems if isinstance(error, ConfigError) else [str(error)]
    return None


def _drop_unused(
    request: SweepRequest, preview: SweepPreview, axes: list[Axis], problems: list[str], say: Say
) -> list[Axis]:
    unused = [axis for axis in axes if axis.path in preview.misfits]
    if request.over:
        problems += [f"{axis.name}: runs on this environment do not use it [--over]" for axis in unused]
    elif unused:
        say(f"not searched, since runs do not use them: {', '.join(axis.name for axis in unused)}")
    return [axis for axis in axes if axis not in unused]


def _check_budget(request: SweepRequest, size: SweepSize, preview: SweepPreview) -> list[str]:
    config = preview.resolved.config
    least_s = preview.least_s * -(-size.num_seeds // usable_cores())
    if size.budget_s is None or size.budget_s >= least_s:
        return []
    return [
        f"budget={request.budget} is too short for one trial: {config.run.timesteps:,} steps of"
        f" {config.env.env_id} take at least {least_s:.0f} s here, without learning; give more time, or fewer"
        " --timesteps [--budget]"
    ]


def _list_starts(
    preview: SweepPreview, axes: list[Axis], values: Values, resolve: Resolve
) -> list[StartingPoint]:
    """The first settings of the search, each once, if they are compatible with the given values:
    the config without a sweep; the same without a preset and without the searched flags; the defaults of the
    schema."""
    base = preview.resolved
    plain = apply_rules(base)[0]
    algorithm = base.config.algorithm
    defaults = {field.path: field.default for field in base.schema.fields} | dict(algorithm.PROFILE)
    defaults |= algorithm.IMAGE_PROFILE if preview.sees_images else {}
    chosen = {axis.path: defaults[axis.path] for axis in axes}
    starts = [StartingPoint(source=DEFAULT, values=_pick(plain, axes), given={})]

    def add(source: str, make: Callable[[], Resolved], *, only_new: bool) -> None:
        with suppress(ConfigError):
            resolved = apply_rules(make())[0]
            found, given = _pick(resolved, axes), _list_differences(resolved, plain)
            if given and not (only_new and found in [start.values for start in starts]):
                starts.append(StartingPoint(source=source, values=found, given=given))

    shipped = "shipped settings" if find_settings(base.config.env.env_id) else "without preset and flags"
    add(shipped, lambda: _drop_choices(preview, axes, values, resolve), only_new=False)
    add("defaults of the schema", lambda: base.with_values(chosen, "sweep"), only_new=True)
    return starts


def _drop_choices(preview: SweepPreview, axes: list[Axis], values: Values, resolve: Resolve) -> Resolved:
    """The config without a preset, and without the searched fields that were given."""
    base, names = preview.resolved, {axis.name for axis in axes}
    aliases = {alias for field in base.schema.fields if field.name in names for alias in field.aliases}
    others = {key: value for key, value in values.items() if key not in {"preset", *names, *aliases}}
    agents = {"vector.num_agents": base.config.vector.num_agents}
    dropped = fix_num_envs(resolve(others)).with_values(agents, "environment")
    dropped = apply_image_profile(dropped) if preview.sees_images else dropped
    return apply_waiting_profile(dropped) if preview.waits_on_loop else dropped


def _list_differences(resolved: Resolved, plain: Resolved) -> Values:
    """The values to give a run of the config `plain` so that it learns as `resolved` does."""
    algo = plain.config.run.algo
    paths = ["vector.n_envs", *(path for path in plain.sources if path.split(".")[0] in (algo, "policy"))]
    values = {path: resolved.config.value(path) for path in paths}
    different = {path: value for path, value in values.items() if value != plain.config.value(path)}
    return {path.split(".")[1]: to_plain(value) for path, value in different.items()}


def _pick(resolved: Resolved, axes: list[Axis]) -> Values:
    return {axis.name: make_choice(resolved.config.value(axis.path)) for axis in axes}
