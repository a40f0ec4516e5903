"""Ids of third-party environments: which package they are of, who registers them, and which id was meant."""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import entry_points
from typing import NamedTuple

_VERSION = re.compile(r"-v\d+$")


class _Home(NamedTuple):
    patterns: tuple[str, ...]
    module: str  # that registers the ids
    package: str


_HOMES = (
    _Home(("ALE/*", "*NoFrameskip-v[04]", "*Deterministic-v[04]"), "ale_py", "ale-py"),
    _Home(("MiniGrid-*", "BabyAI-*"), "minigrid", "minigrid"),
    _Home(("Panda*-v*",), "panda_gym", "panda-gym"),
    _Home(
        ("Fetch*-v*", "Hand*-v*", "PointMaze_*", "AntMaze_*", "AdroitHand*", "FrankaKitchen*"),
        "gymnasium_robotics",
        "gymnasium-robotics",
    ),
    _Home(
        ("highway-*", "merge-*", "roundabout-*", "parking-*", "intersection-*", "racetrack-*", "exit-v*"),
        "highway_env",
        "highway-env",
    ),
    _Home(("Meta-World/*",), "metaworld", "metaworld"),
    _Home(("MinAtar/*",), "minatar.gym", "minatar"),
    _Home(("Vizdoom*",), "vizdoom.gymnasium_wrapper", "vizdoom"),
    _Home(("miniwob/*",), "miniwob", "miniwob"),
    _Home(("popgym-*",), "popgym", "popgym"),
    _Home(("mo-*", "deep-sea-treasure-*"), "mo_gymnasium", "mo-gymnasium"),
    _Home(("gym_pusht/*",), "gym_pusht", "gym-pusht"),
    _Home(("FlappyBird-*",), "flappy_bird_gymnasium", "flappy-bird-gymnasium"),
    _Home(("forex-v*", "stocks-v*"), "gym_anytrading", "gym-anytrading"),
    _Home(("Safety*-v*",), "safety_gymnasium", "safety-gymnasium"),
    _Home(("gym_aloha/*",), "gym_aloha", "gym-aloha"),
    _Home(("gym_xarm/*",), "gym_xarm", "gym-xarm"),
    _Home(("gym_hil/*",), "gym_hil", "gym-hil"),
    _Home(("dm_control/*",), "shimmy", '"shimmy[dm-control]"'),
    _Home(("GymV2*Environment-v0",), "shimmy", "shimmy"),
    _Home(("gymnasium_2048/*",), "gymnasium_2048", "gymnasium-2048"),
    _Home(("tetris_gymnasium/*",), "tetris_gymnasium.envs", "tetris-gymnasium"),
    _Home(("PyFlyt/*",), "PyFlyt.gym_envs", "pyflyt"),
    _Home(("rware-*",), "rware", "rware"),
    _Home(("Foraging-*",), "lbforaging", "lbforaging"),
    _Home(("NetHack*-v*",), "nle", "nle"),
    _Home(("MiniHack-*",), "minihack", "minihack"),
    _Home(("MiniWorld-*",), "miniworld", "miniworld"),
    _Home(("*BulletEnv-v*",), "pybullet_envs_gymnasium", "pybullet-envs-gymnasium"),
    _Home(("Buffalo-*",), "buffalo_gym", "buffalo-gym"),
    _Home(("Cont-*-v*", "Finite-*-v*"), "gym_electric_motor", "gym-electric-motor"),
    _Home(
        ("DescentEnv-v*", "*CREnv-v*", "PlanWaypointEnv-v*", "StaticObstacleEnv-v*", "MergeEnv-v*"),
        "bluesky_gym",
        "bluesky-gym",
    ),
)


def name_home(env_id: str) -> str:
    """How to get and name an environment that another package registers; empty if none is known."""
    for patterns, module, package in _HOMES:
        if any(fnmatchcase(env_id, pattern) for pattern in patterns):
            top = module.partition(".")[0]
            get = "" if importlib.util.find_spec(top) else f"run: pip install {package}, and "
            return f"it is of the package {package}: {get}name it {module}:{env_id}"
    return ""


def name_package(module: str) -> str:
    """What to install for a module that is not here: its package, where that is known."""
    tops = {home.module.partition(".")[0]: home.package for home in _HOMES}
    package = tops.get(module.partition(".")[0])
    return "install it" if package is None else f"run: pip install {package}"


def nearest_id(name: str, known: Iterable[str]) -> str:
    """As `errors.nearest`, for ids: versions make no two names alike, but the same version is preferred, and
    who gives one means no callable."""
    version = _VERSION.search(name)
    stems: dict[str, list[str]] = {}
    for each in known:
        if not version or _VERSION.search(each):
            stems.setdefault(_VERSION.sub("", each).lower(), []).append(each)
    close = difflib.get_close_matches(_VERSION.sub("", name).lower(), list(stems), n=1, cutoff=0.6)
    if not close:
        return ""
    found = stems[close[0]]
    best = next((each for each in found if version and each.endswith(version.group())), found[-1])
    return f" (did you mean {best!r}?)"


def name_callable(module: str) -> str:
    """How to name an environment of a module, for who named the module alone."""
    return f"name a callable of the module, such as {module}:make, of PettingZoo's {module}:parallel_env"


@cache
def register_declared(module_name: str) -> None:
    """Register, once, ids of a package that its import does not: by `register_envs` of the module, or as the
    plugin that it declares; Gymnasium loads none since 1.0."""
    top = module_name.partition(".")[0]
    plugins = [
        plugin for plugin in entry_points(group="gymnasium.envs") if plugin.module.partition(".")[0] == top
    ]
    own = getattr(sys.modules[module_name], "register_envs", None)
    for register in dict.fromkeys([own, *(plugin.load() for plugin in plugins)]):
        # Gymnasium's own has the same name, and packages import it.
        if callable(register) and register.__module__.partition(".")[0] == top != "gymnasium":
            register()


def is_of_old_gym(env_id: str) -> bool:
    """Whether the package gym, Gymnasium's forerunner, is loaded and has this id."""
    envs = getattr(sys.modules.get("gym"), "envs", None)
    registry = getattr(envs, "registry", {})
    return env_id in getattr(registry, "env_specs", registry)  # a dict since gym 0.26
