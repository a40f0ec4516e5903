"""The environments of `bench defaults`, none with shipped settings, and how long each is trained."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

# Extras of ours -> the module that tells whether they are installed.
_MODULES = {"box2d": "Box2D", "mujoco": "mujoco"}


@dataclass(frozen=True, slots=True)
class Case:
    """An environment of the arena, and its budget."""

    name: str
    timesteps: int
    random: float  # the return of random actions: exact for toys, else the mean of 100 episodes
    known: str  # what is known to be reached
    extra: str = ""  # that it needs

    @property
    def env_id(self) -> str:
        return f"mission_gym_bench.arena:{self.name}"

    @property
    def is_there(self) -> bool:
        """Whether the package that it needs is installed."""
        return not self.extra or importlib.util.find_spec(_MODULES[self.extra]) is not None


# In the order of importance, in which peers were measured.
CASES = (
    Case("lunar_lander", 300_000, -188.0, "200 is solved", "box2d"),
    Case("hopper", 300_000, 16.0, "2,410 in RL Zoo after 1M", "mujoco"),
    Case("half_cheetah", 300_000, -277.0, "5,819 in RL Zoo after 1M", "mujoco"),
    Case("pendulum", 100_000, -1234.0, "about -150"),
    Case("cart_pole", 100_000, 23.0, "500"),
    Case("acrobot", 200_000, -500.0, "about -72"),
    Case("lunar_lander_continuous", 300_000, -220.0, "200 is solved", "box2d"),
    Case("LargeRewards", 100_000, -89_406.0, "91,000"),
    Case("RarePrizes", 100_000, 650.0, "1,000"),
    Case("LargeObservations", 100_000, 50 / 3, "50"),
    Case("FarOffset", 100_000, 50 / 3, "50"),
    Case("SparseGoal", 100_000, 0.261, "1"),
    Case("Continuing", 100_000, 304.0, "1,650"),
    Case("bipedal_walker", 300_000, -99.0, "300 is solved", "box2d"),
    Case("mountain_car", 200_000, -200.0, "about -100"),
    Case("mountain_car_continuous", 200_000, -33.0, "about 94"),
    Case("CatchPixels", 100_000, -5.0, "10"),
    Case("CatchPlanes", 100_000, -5.0, "10"),
)
