"""From an environment's name to something that builds it.

A name is a Gymnasium id, `module:Id` (the module registers the id), `module:callable` (called with the
kwargs; what it gives may also be a parallel environment of several agents) or `envpool:Id`. In: EnvRequest or
a callable of the user's. Out: a factory without arguments, or for environments that are vectorised themselves
one that takes their number. The current folder is importable.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from mission_gym.env.agents import AgentsEnv, ParallelWrapper, is_parallel, takes_turns
from mission_gym.env.displays import describe_drawing
from mission_gym.env.known_ids import is_of_old_gym, name_home, register_declared
from mission_gym.env.old_api import OLD_API, is_old
from mission_gym.env.wrapping import check_arguments, name_code, read_wrapper
from mission_gym.errors import EnvContractError, MissionGymError, UsageError, nearest
from mission_gym.names import judge, make_importable
from mission_gym.procs.companions import Companion, CompanionNeeded

Env = gym.Env[Any, Any]
VectorEnv = gym.vector.VectorEnv[Any, Any, Any]
Factory = Callable[[], Env]

_ENVPOOL = "envpool:"
COMPANION = "companion_process"  # of a class or function: what declares a companion
_TRUSTED = ("gymnasium.envs.classic_control.", "mission_gym.missions.")
_TRUSTED_WRAPPERS = ("gymnasium.wrappers.common", "mission_gym.")  # others may hold functions of the user's


@dataclass(frozen=True, slots=True)
class EnvRequest:
    """An environment as a config names it."""

    env_id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrap: tuple[str, ...] = ()  # texts of wrappers (`wrapping`), innermost first
    calls: tuple[str, ...] | None = None  # that may be more than classes (`store/trusted.py`); None: all
    told: dict[str, Any] = field(
        default_factory=dict
    )  # by its companion: more kwargs (`procs/companions.py`)


def make_factory(request: EnvRequest | Factory, render_mode: str | None = None) -> Factory:
    """Return what builds one environment; it is picklable if the request or the callable is."""
    if isinstance(request, EnvRequest):
        return partial(_make, request, render_mode)
    build: Callable[..., Any] = request
    if render_mode is not None:
        build = partial(build, render_mode=render_mode)
    return partial(_build_one, str(getattr(request, "__qualname__", None) or repr(request)), build)


def make_vector_factory(request: EnvRequest) -> Callable[[int], VectorEnv]:
    """Return what builds the environment's own vector form with the given number of environments."""
    if request.wrap:
        raise UsageError(
            f"wrappers {', '.join(request.wrap)} can't be applied to a batched environment; "
            "drop them or use another vector [--wrap with --vector batched]"
        )
    return partial(_make_vector, request)


def names_trusted(request: EnvRequest) -> bool:
    """Whether the name alone says that the environment is Gymnasium's classic control or one of ours."""
    name = request.env_id
    if ":" not in name and name in gym.registry:
        entry = gym.registry[name].entry_point
        name = entry if isinstance(entry, str) else ""
    module = name.partition(":")[0] + "."
    wrappers = name_code(request.wrap)
    return module.startswith(_TRUSTED) and all(wrap.startswith(_TRUSTED_WRAPPERS) for wrap in wrappers)


def find_snapshot_kwargs(request: EnvRequest) -> dict[str, Any]:
    """Keywords that name files which the environment reads without being told, so that a run can own them.

    A built-in environment's class says them: `snapshot_kwargs(**kwargs)`.
    """
    if not names_trusted(request):  # asking the class would import the user's module here
        return {}
    hook = getattr(_find_creator(_find(request.env_id, request.calls)), "snapshot_kwargs", None)
    return {} if hook is None else hook(**request.kwargs)


def is_trusted(env: Env) -> bool:
    """Whether every layer of the environment is Gymnasium's classic control or a mission of ours."""
    while isinstance(env, gym.Wrapper):
        if not type(env).__module__.startswith(_TRUSTED_WRAPPERS):
            return False
        env = env.env
    return type(env).__module__.startswith(_TRUSTED)


def _make(request: EnvRequest, render_mode: str | None) -> Env:
    kwargs = dict(request.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    if request.env_id.startswith(_ENVPOOL):
        raise UsageError(f"{request.env_id!r} is vectorised itself; use --vector batched [--vector]")
    target = _find(request.env_id, request.calls)
    kwargs |= _hear_companion(target, request)
    make = target if callable(target) else partial(gym.make, target)
    env = _build(request.env_id, partial(make, **kwargs))
    for text in request.wrap:
        call = read_wrapper(text)
        wrapper = _find(call.name, request.calls)
        if not callable(wrapper):
            raise UsageError(f"wrapper {text!r} is not a callable; give module:callable [--wrap]")
        check_arguments(text, wrapper, call)
        if is_parallel(env) and isinstance(wrapper, type) and issubclass(wrapper, gym.Wrapper):
            raise UsageError(
                f"wrapper {text!r} is for environments of one agent, and {request.env_id!r} has several; use "
                "one that takes and gives a parallel environment [--wrap]"
            )
        env = _build(text, partial(wrapper, env, *call.args, **call.kwargs), "; a wrapper gives one [--wrap]")
    return _unite(request.env_id, env)


def _make_vector(request: EnvRequest, num_envs: int) -> VectorEnv:
    from mission_gym.env.foreign import FromEnvPool, FromSB3, is_sb3  # workers have no use for them

    if request.env_id.startswith(_ENVPOOL):
        envpool, task_id = _import("envpool", request.env_id), request.env_id.removeprefix(_ENVPOOL)
        pool: VectorEnv = _guard(
            request.env_id, partial(FromEnvPool, envpool, task_id, num_envs, request.kwargs)
        )
        return pool
    target = _find(request.env_id, request.calls)
    kwargs = request.kwargs | _hear_companion(target, request)
    if callable(target):
        build = partial(target, num_envs=num_envs, **kwargs)
    else:
        if target in gym.registry and gym.registry[target].vector_entry_point is None:
            raise UsageError(
                f"{request.env_id!r} has no vector form (no vector_entry_point is registered); "
                "use another vector, such as serial [--vector batched]"
            )
        mode = gym.VectorizeMode.VECTOR_ENTRY_POINT
        build = partial(gym.make_vec, target, num_envs, mode, **kwargs)
    made = _guard(request.env_id, build)
    if is_sb3(made):
        return FromSB3(made)
    if not isinstance(made, gym.vector.VectorEnv):
        raise EnvContractError(
            f"{request.env_id!r} gave a {type(made).__name__}, no gymnasium.vector.VectorEnv; a batched "
            "environment must be one; use another vector, such as serial [--vector batched]"
        )
    return made


def _find_creator(target: Callable[..., Any] | str) -> Any:
    """The class or function behind a name that `_find` gave."""
    if callable(target) or target not in gym.registry:
        return target
    entry = gym.registry[target].entry_point
    return load_env_creator(entry) if isinstance(entry, str) else entry


def _hear_companion(target: Callable[..., Any] | str, request: EnvRequest) -> dict[str, Any]:
    """What the environment's companion told; CompanionNeeded if it has one that nobody has started."""
    if request.told:
        return request.told
    hook = getattr(_guard(request.env_id, partial(_find_creator, target)), COMPANION, None)
    if hook is None:
        return {}
    companion = _guard(request.env_id, partial(hook, **request.kwargs))
    if companion is None:
        return {}
    if not isinstance(companion, Companion):
        raise EnvContractError(
            f"{COMPANION}() of {request.env_id!r} gave a {type(companion).__name__}; it must give a "
            "mission_gym.Companion, or None"
        )
    raise CompanionNeeded(companion)


def _build(name: str, build: Callable[[], Any], hint: str = "") -> Any:
    """One environment: Gymnasium's, or a parallel one of several agents."""
    made = _guard(name, build)
    if isinstance(made, gym.Env) or is_parallel(made):
        return made
    if isinstance(made, gym.vector.VectorEnv):
        hint = "; it is vectorised itself: use --vector batched"
    elif takes_turns(made):
        hint = (
            "; its agents take turns (AEC), and only those that act at once can be trained: give its "
            "parallel_env, or what pettingzoo.utils.conversions.aec_to_parallel makes of it"
        )
    elif is_old(made):
        hint = f"; {OLD_API}"
    raise EnvContractError(f"{name!r} gave a {type(made).__name__}, no gymnasium.Env{hint}")


def _unite(name: str, made: Any) -> Env:
    """The environment itself, or one of Gymnasium's around a parallel one."""
    if isinstance(made, gym.Env):
        return made
    united: Env = _guard(name, partial(AgentsEnv, made, name))
    return united


def _build_one(name: str, build: Callable[[], Any]) -> Env:
    return _unite(name, _build(name, build))


def _find(name: str, calls: tuple[str, ...] | None) -> Callable[..., Any] | str:
    """Return the callable a name means, or the id to give to Gymnasium; TrustError for a function that nobody
    allowed."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        return name
    module = _import(module_name, name)
    target = getattr(module, attribute, None)
    if callable(target):
        if calls is not None:
            judge(name, target, (gym.Env, gym.vector.VectorEnv, ParallelWrapper), calls)
        found: Callable[..., Any] = target
        return found
    if attribute not in gym.registry:
        _guard(name, partial(register_declared, module_name))
    if attribute in gym.registry:
        return attribute
    if is_of_old_gym(attribute):
        raise UsageError(
            f"{attribute!r} is registered with gym, not with Gymnasium; run: pip install shimmy, and "
            f"name it shimmy:GymV26Environment-v0 --env-kwargs env_id={name} (GymV21Environment-v0 if its "
            f"step() gives four values) [{name}]"
        )
    known = [key for key, value in vars(module).items() if callable(value)] + list(gym.registry)
    raise UsageError(
        f"module {module_name!r} has no callable and registers no environment "
        f"{attribute!r}{nearest(attribute, known)}; name the module whose import registers it, or one of its "
        f"callables [{name}]"
    )


def _import(module_name: str, name: str) -> ModuleType:
    folder = make_importable()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        parent, _, child = missing.rpartition(".")
        is_named = f"{module_name}.".startswith(f"{missing}.")  # rather than imported by what is named
        if is_named and parent in sys.modules:
            inside = [module.name for module in iter_modules(getattr(sys.modules[parent], "__path__", ()))]
            raise UsageError(
                f"package {parent!r} is here and has no module {child!r}{nearest(child, inside)} [{name}]"
            ) from error
        if is_named:
            raise UsageError(
                f"no module named {missing!r}; install it, or start in the folder that holds it "
                f"(now {folder}) [{name}]"
            ) from error
        remedy = '; run: pip install "setuptools<81"' if missing == "pkg_resources" else ""
        raise UsageError(
            f"module {module_name!r} needs {missing!r}, which is not installed{remedy} [{name}]"
        ) from error
    except Exception as error:  # border: the user's module
        what = describe_drawing(error)
        raise EnvContractError(f"importing {module_name!r} raised {what} [{name}]") from error


def _guard(name: str, build: Callable[[], Any]) -> Any:
    """Build, with every failure turned into one that says what to do."""
    try:
        return build()
    except MissionGymError:
        raise
    except gym.error.UnregisteredEnv as error:
        remedy = name_home(name) or "give a registered id, module:Id or module:callable"
        hint = "" if name_home(name) else nearest(name, gym.registry)
        raise UsageError(f"unknown environment {name!r}{hint}; {remedy} ({error})") from error
    except gym.error.DependencyNotInstalled as error:
        extra = re.search(r"gymnasium\[[\w-]+\]", str(error))
        remedy = f'; run: pip install "{extra.group()}"' if extra else ""
        raise UsageError(f"{name!r} needs a package that is not installed: {error}{remedy}") from error
    except Exception as error:  # border: the user's constructor
        raise EnvContractError(f"building {name!r} raised {describe_drawing(error)}") from error
