"""What the checks of an environment share."""

from __future__ import annotations

from dataclasses import dataclass, field

from gymnasium.envs.registration import EnvSpec as GymSpec

from mission_gym.check.traces import Survey
from mission_gym.data import EnvSpec
from mission_gym.env.factory import EnvRequest, Factory


@dataclass(slots=True)
class Exam:
    """An environment, what was seen of it, and what is not known of it."""

    request: EnvRequest
    factory: Factory
    spec: EnvSpec
    survey: Survey
    registered: GymSpec | None  # as the environment has it
    doubt: str = "whether episodes can be repeated was not tried, for time"  # "" where they can
    carries_over: bool = False  # what an instance has played changes what it plays next
    skipped: list[str] = field(default_factory=list)
