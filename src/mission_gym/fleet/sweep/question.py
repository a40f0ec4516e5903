"""From the flags of a sweep to its question; all problems are reported at once, before it starts.

The searched fields and their ranges are those of the schema, or of `--over learning_rate=1e-5..1e-2`. The
study stores values as they are trained with. The sampler draws on its own scale: powers of two by their
exponent, a discount by its distance to 1.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from mission_gym.config.layers import Resolved, apply_image_profile, find_settings
from mission_gym.config.plain_yaml import to_plain
from mission_gym.config.rules import apply_rules, fix_num_envs
from mission_gym.config.schema import Scale
from mission_gym.config.sizes import parse_count, parse_duration_s
from mission_gym.errors import ConfigError, TrustError, UsageError, nearest
from mission_gym.plan.cache import find_max_rollout, size_paths
from mission_gym.procs import usable_cores
from mission_gym.report.formats import show_value
from mission_gym.store.sweeps import DEFAULT, Axis, Question, StartingPoint, Value, Values

if TYPE_CHECKING:
    from mission_gym.run.preview import SweepPreview

MOST_TRIALS = 1000
_DEFAULT_TRIALS = "40"
_MOST_SEEDS = 100
Resolve = Callable[[Mapping[str, Any]], Resolved]
Say = Callable[[str], None]
_BETWEEN = re.compile(r",(?=\s*[A-Za-z_][\w.-]*\s*=)")  # between items; `64,64|256,256` is one item
_LOG_RATIO = 100.0  # high / low from which an unknown range gets a log scale
_DIGITS = 3  # of a drawn number
_FOR_SPEED = ("vector", "compute")


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
    fixed = values | {"n_envs": config.num_envs}  # the same rollouts in every trial, and with the preset
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
    return apply_image_profile(dropped) if preview.sees_images else dropped


def _list_differences(resolved: Resolved, plain: Resolved) -> Values:
    """The values to give a run of the config `plain` so that it learns as `resolved` does."""
    algo = plain.config.run.algo
    paths = ["vector.n_envs", *(path for path in plain.sources if path.split(".")[0] in (algo, "policy"))]
    values = {path: resolved.config.value(path) for path in paths}
    different = {path: value for path, value in values.items() if value != plain.config.value(path)}
    return {path.split(".")[1]: to_plain(value) for path, value in different.items()}


def _pick(resolved: Resolved, axes: list[Axis]) -> Values:
    return {axis.name: make_choice(resolved.config.value(axis.path)) for axis in axes}


class SamplerRange(NamedTuple):
    """A range on the sampler's scale."""

    low: float
    high: float
    is_log: bool
    is_whole: bool


def list_axes(base: Resolved) -> list[Axis]:
    """The ranges of the schema, without the fields that the user gave."""
    algo = base.config.run.algo
    axes = []
    for name, span in base.config.algorithm.SEARCH.items():
        path = f"{algo}.{name}"
        if not base.explicit(path):
            ends = [base.with_values({path: end}, "schema").config.value(path) for end in span[:2]]
            axes.append(Axis(path=path, low=ends[0], high=ends[1], scale=span.scale))
    return axes


def read_axes(over: str, base: Resolved, problems: list[str]) -> list[Axis]:
    """The ranges of --over; their problems are added to the list."""
    algo = base.config.run.algo
    paths = base.schema.paths_of_names(algo)
    axes: dict[str, Axis] = {}
    for item in _BETWEEN.split(over):
        name, equals, text = (part.strip() for part in item.partition("="))
        name = name.replace("-", "_")
        path = paths.get(name)
        section = path.split(".")[0] if path else ""
        if path is None:
            problems.append(f"{name!r} is not a known field{nearest(name, paths)}; correct the name [--over]")
        elif path in axes:
            problems.append(f"{name} is given twice; keep one [--over]")
        elif section not in (algo, "policy"):
            why = "is chosen for speed" if section in _FOR_SPEED else "must be the same for all trials"
            problems.append(f"{name} can't be searched: it {why}; give it as a flag [--over]")
        elif not equals or not text:
            problems.append(f"{name} has no range; write {name}=low..high or {name}=a|b [--over]")
        else:
            try:
                axes[path] = (_read_choices if "|" in text else _read_range)(path, text, base)
            except ConfigError as error:
                problems += error.problems
    return list(axes.values())


def _read_choices(path: str, text: str, base: Resolved) -> Axis:
    name = path.split(".")[1]
    values = _parse(path, [part.strip() for part in text.split("|")], base)
    choices = list(dict.fromkeys(make_choice(value) for value in values))
    if len(choices) < 2:
        raise ConfigError(f"{name}={text} is one choice; give two values or more [--over]")
    return Axis(path=path, choices=choices)


def _read_range(path: str, text: str, base: Resolved) -> Axis:
    name = path.split(".")[1]
    low_text, dots, high_text = text.partition("..")
    if not dots:
        raise ConfigError(f"{name}={text} is not a range; write {name}=low..high or {name}=a|b [--over]")
    if not low_text.strip() or not high_text.strip():
        raise ConfigError(f"{name}={text} lacks an end; write {name}=low..high [--over]")
    low, high = _parse(path, [low_text.strip(), high_text.strip()], base)
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)):
        raise ConfigError(f"{name}={text} is not a range of numbers; write its values as a|b [--over]")
    if low >= high:
        raise ConfigError(f"{name}={text} is empty: {low} is not below {high}; correct the ends [--over]")
    return Axis(path=path, low=low, high=high, scale=_find_scale(name, low, high, base))


def _parse(path: str, texts: Sequence[str], base: Resolved) -> list[Any]:
    """The values in the types of the schema; ConfigError with all problems."""
    values, problems = [], []
    for text in texts:
        try:
            values.append(base.with_values({path: text}, "--over").config.value(path))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return values


def _find_scale(name: str, low: float, high: float, base: Resolved) -> Scale:
    known = base.config.algorithm.SEARCH.get(name)
    if known is None:
        return "log" if low > 0 and high / low >= _LOG_RATIO else "linear"
    has_powers = low >= 1 and math.ceil(math.log2(low)) < math.floor(math.log2(high))
    fits = {"linear": True, "log": low > 0, "gap": high < 1, "power": has_powers}
    return known.scale if fits[known.scale] else "linear"


def make_choice(value: Any) -> Value:
    """A value as a choice: a scalar as it is, anything else as the text of its flag."""
    return value if isinstance(value, bool | int | float | str | None) else show_value(value)


def limit_rollouts(axes: Sequence[Axis], path: str, most: int, problems: list[str]) -> list[Axis]:
    """The axes, with `path` (the steps of an environment per rollout) limited to `most`."""
    found = []
    for axis in axes:
        if axis.path == path and not axis.choices and axis.high > most:
            if axis.low >= most:
                problems.append(
                    f"{axis.name}={axis.low}..{axis.high} makes rollouts that leave a trial too few updates;"
                    f" stay below {most}, or give more --timesteps [--over]"
                )
            axis = axis.model_copy(update={"high": max(most, axis.low)})
        found.append(axis)
    return [axis for axis in found if axis.choices or axis.low < axis.high]


def fit_values(base: Resolved, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a setting (by path) and all algorithm values that they change, by field name. Values that
    do not fit together are adapted like those of a preset. If that is impossible, the run will be refused,
    and its trial fails."""
    given = {path.split(".")[1]: value for path, value in values.items()}
    try:
        plain, fitted = apply_rules(base)[0].config, apply_rules(base.with_values(values, "sweep"))[0].config
    except ConfigError:
        return given
    own = {name: (getattr(plain.algorithm, name), value) for name, value in fitted.algorithm}
    return given | {name: value for name, (before, value) in own.items() if name in given or value != before}


def sampler_range(axis: Axis) -> SamplerRange:
    """The range that the sampler draws from."""
    if axis.scale == "power":
        return SamplerRange(math.ceil(math.log2(axis.low)), math.floor(math.log2(axis.high)), False, True)
    if axis.scale == "gap":
        return SamplerRange(1.0 - axis.high, 1.0 - axis.low, True, False)
    return SamplerRange(axis.low, axis.high, axis.scale == "log", axis.is_whole)


def to_sampler(axis: Axis, value: float) -> float:
    """A value on the sampler's scale, clipped to the range."""
    value = min(max(value, axis.low), axis.high)
    if axis.scale == "power":
        low, high, *_ = sampler_range(axis)
        return min(max(round(math.log2(value)), low), high)
    return 1.0 - value if axis.scale == "gap" else value


def from_sampler(axis: Axis, drawn: float) -> Value:
    """The value of a draw, with a few digits."""
    if axis.scale == "power":
        return int(2 ** round(drawn))
    if axis.is_whole:
        return round(drawn)
    number = float(f"{drawn:.{_DIGITS}g}")
    if axis.scale == "gap":
        number = float(f"{1.0 - number:.12g}")
    return min(max(number, float(axis.low)), float(axis.high))
