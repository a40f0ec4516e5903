"""The stages of a config as environments: what builds them, what a run owns of their files, a look at each.

Without a curriculum there is one environment, and no stages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mission_gym.config.curriculum import Curriculum, Stage, find_stage
from mission_gym.config.schema import Config
from mission_gym.data import EnvSpec
from mission_gym.env.factory import EnvRequest, Factory, make_factory
from mission_gym.env.pace import Pace
from mission_gym.env.stages import Stages, StageVariant, check_alike
from mission_gym.errors import ConfigError, MissionGymError, TrustError, UsageError, nearest
from mission_gym.procs import CompanionNeeded

EnvSource = Callable[..., Any] | None  # a callable of the user's that can't be imported
_PREFIX = "stages."
_PATIENCE = 0.9  # of a worker's deadline: a game over a bridge that hangs is told, and ended, before it


class Parts(NamedTuple):
    """What an environment is made from: with a curriculum that of the stage which evaluations are on, and the
    stages that training goes through."""

    request: EnvRequest
    factory: Factory
    stages: Stages | None = None
    played: StageVariant | None = None  # in evaluations; None without a curriculum


def make_parts(
    config: Config,
    kwargs: dict[str, Any],
    source: EnvSource,
    calls: tuple[str, ...] | None,
    files: Mapping[str, str],
    told: dict[str, Any],
) -> Parts:
    """What builds the environment of a config. kwargs: of all stages. files: the run's own copies, where a
    keyword of a stage names one (`name_file`). told: by the companion."""
    patience_s = _PATIENCE * config.vector.env_timeout
    plain = EnvRequest(config.env.env_id, kwargs, config.env.wrap, calls, patience_s, told)
    curriculum = config.env.curriculum
    if curriculum is None:
        return Parts(plain, _build(plain, source))
    variants: list[StageVariant] = []
    for number, stage in enumerate(curriculum.stages):
        own = {key: files.get(name_file(number, key), value) for key, value in stage.kwargs.items()}
        request = replace(plain, kwargs=kwargs | own)
        same = next((each for each in variants if each.request == request), None)
        factory = _build(request, source) if same is None else same.factory
        variants.append(StageVariant(request, factory, dict(stage.options) or None))
    at = find_stage(curriculum, config.evaluation.eval_stage, "--eval-stage")
    stages = Stages(tuple(variants), curriculum.earlier)
    return Parts(variants[at].request, variants[at].whole, stages, variants[at])


def _build(request: EnvRequest, source: EnvSource) -> Factory:
    return make_factory(request if source is None else lambda: source(**request.kwargs))


def name_file(stage: int, key: str) -> str:
    """The name of a keyword of a stage, among those that name files."""
    return f"{_PREFIX}{stage}.{key}"


def list_staged(curriculum: Curriculum, stages: Stages) -> dict[str, Any]:
    """The keywords of all stages under such names, with their values."""
    return {
        name_file(number, key): variant.request.kwargs[key]
        for number, (stage, variant) in enumerate(zip(curriculum.stages, stages.variants, strict=True))
        for key in stage.kwargs
    }


def pick_common(files: Mapping[str, str]) -> dict[str, str]:
    """Of files by their names, those of all stages."""
    return {key: path for key, path in files.items() if not key.startswith(_PREFIX)}


def has_several_arguments(curriculum: Curriculum | None) -> bool:
    """Whether environments must be built anew on the way through the stages."""
    stages: Sequence[Stage] = () if curriculum is None else curriculum.stages
    return len({json.dumps(stage.kwargs, sort_keys=True) for stage in stages}) > 1


def look_at_stages(
    curriculum: Curriculum, parts: Parts, look: Callable[[Factory], tuple[EnvSpec, Pace | None]]
) -> tuple[EnvSpec, Pace | None]:
    """Look at the environment of every stage: what is found of the one that evaluations are on. All that do
    not fit are told at once."""
    assert parts.stages is not None
    found: tuple[EnvSpec, Pace | None] | None = None
    wrong: dict[int, MissionGymError] = {}
    variants = list(enumerate(parts.stages.variants))
    variants.sort(key=lambda item: item[1] is not parts.played)  # the others are held against it
    for number, variant in variants:
        try:
            seen = look(variant.whole)
            found = found or seen
            check_alike(found[0], seen[0])
        except (TrustError, CompanionNeeded):
            raise
        except MissionGymError as error:
            wrong[number] = error
    if wrong:
        raise _join(curriculum, wrong)
    assert found is not None
    return found


def _join(curriculum: Curriculum, wrong: dict[int, MissionGymError]) -> MissionGymError:
    """What is wrong with stages as one error; what is the same in all of them does not come from any."""
    told = {str(error) for error in wrong.values()}
    if len(told) == 1 and len(wrong) == len(curriculum.stages):
        return next(iter(wrong.values()))
    problems = [
        f"stage {number + 1} ({curriculum.labels[number]}): {wrong[number]} [{curriculum.place(number)}]"
        for number in sorted(wrong)
    ]
    kinds = [type(error) for error in wrong.values() if not isinstance(error, UsageError)]
    return kinds[0]("\n".join(problems)) if kinds else ConfigError(problems)


def check_metrics(curriculum: Curriculum, spec: EnvSpec) -> None:
    """Refuse rules whose metric is neither a return, a length, an outcome that the environment declares, nor
    one of its episode metrics."""
    known = ["return", "length", *spec.outcomes]
    problems = []
    for number, stage in enumerate(curriculum.stages):
        for kind, rule in (("until", stage.until), ("back", stage.back)):
            compared = None if rule is None else rule.comparison
            if compared is None or compared.name in known or compared.name.startswith("episode/"):
                continue
            hint = nearest(compared.name, known)
            problems.append(
                f"{kind} of stage {number + 1}: {compared.name!r} is not a metric{hint}; use one of"
                f" {', '.join(known)} (outcomes are those of metadata['outcomes']), or episode/NAME for what"
                f" info['episode_metrics'] tells [{curriculum.place(number)}]"
            )
    if problems:
        raise ConfigError(problems)
