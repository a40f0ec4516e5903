"""From an environment's name to a factory.

A name is a Gymnasium id, `module:Id` (the module registers the id), `module:callable` (called with the
kwargs; its result may also be a parallel environment of several agents), `envpool:Id`, or `bridge:COMMAND` (a
game in another process). Coroutines become plain functions when an environment is built (`coroutines`). In:
EnvRequest or the user's callable. Out: a factory without arguments, or for environments that are vectors
themselves one that takes their number. The current folder is importable.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator
from gymnasium.wrappers import TimeLimit

from mission_gym.config.calls import NamedCall
from mission_gym.env.agents import AgentsEnv, ParallelEnv, is_parallel, takes_turns
from mission_gym.env.coroutines import (
    CoroutineEnv,
    adapt,
    coroutines_wanted,
    has_coroutines,
    is_coroutine,
    offers_form,
)
from mission_gym.env.user_code import (
    OLD_API,
    complete_reset,
    find_creator,
    guard,
    import_named,
    is_old_gym,
    is_registered_with_old_gym,
    list_modules,
    name_callable,
    name_file,
    name_home,
    nearest_id,
    register_declared,
)
from mission_gym.env.wrapper_names import RENDERS_ITSELF, check_arguments, name_code, read_wrapper
from mission_gym.errors import EnvContractError, TrustError, UsageError
from mission_gym.names import BRIDGE, judge, read_variables
from mission_gym.procs.companions import Companion, CompanionNeeded

Env = gym.Env[Any, Any]
VectorEnv = gym.vector.VectorEnv[Any, Any, Any]
Factory = Callable[[], Env]

_ENVPOOL = "envpool:"
COMPANION = "companion_process"  # method of a class or function that declares a companion
_TRUSTED = ("gymnasium.envs.classic_control.", "mission_gym_missions.")
_TRUSTED_WRAPPERS = ("gymnasium.wrappers.common", "mission_gym.")  # others may call the user's functions


@dataclass(frozen=True, slots=True)
class EnvRequest:
    """An environment as a config names it."""

    env_id: str
    kwargs: dict[str, Any] = field(default_factory=dict)  # as stored; `read_kwargs` has the values
    wrap: tuple[str, ...] = ()  # texts of wrappers (`wrapper_names`), innermost first
    calls: tuple[str, ...] | None = None  # names that may be functions (`store/trusted.py`); None: all
    timeout_s: float | None = None  # of a message over a bridge; None: its own default
    companion_kwargs: dict[str, Any] = field(default_factory=dict)  # from its companion (procs/companions.py)

    def read_kwargs(self) -> dict[str, Any]:
        """Return the arguments of the constructor: those of the config, with the values of variables."""
        return read_variables(self.kwargs)


def make_factory(request: EnvRequest | Factory, render_mode: str | None = None) -> Factory:
    """Return a factory of one environment; it is picklable if the request or the callable is."""
    if isinstance(request, EnvRequest):
        return partial(_make, request, render_mode)
    build: Callable[..., Any] = request
    if render_mode is not None:
        build = partial(build, render_mode=render_mode)
    return partial(_build_one, str(getattr(request, "__qualname__", None) or repr(request)), build)


def limit_steps(factory: Factory, max_steps: int) -> Env:
    """Build an environment whose episodes are truncated after `max_steps`."""
    return TimeLimit(factory(), max_steps)


def make_vector_factory(request: EnvRequest) -> Callable[[int], VectorEnv]:
    """Return a factory of the environment's own vector form, which takes the number of environments."""
    if request.wrap:
        raise UsageError(
            f"wrappers {', '.join(request.wrap)} can't be applied to a batched environment; "
            "drop them or use another vector [--wrap with --vector batched]"
        )
    return partial(_make_vector, request)


def names_trusted(request: EnvRequest) -> bool:
    """Return whether the name alone shows that the environment is Gymnasium's classic control or ours."""
    name = request.env_id
    if ":" not in name and name in gym.registry:
        entry = gym.registry[name].entry_point
        name = entry if isinstance(entry, str) else ""
    module = name.partition(":")[0] + "."
    wrappers = name_code(request.wrap)
    return module.startswith(_TRUSTED) and all(wrap.startswith(_TRUSTED_WRAPPERS) for wrap in wrappers)


def find_snapshot_kwargs(request: EnvRequest) -> dict[str, Any]:
    """Return keyword arguments for files that the environment reads by default, so that a run can copy them.

    The class of a built-in environment returns them: `snapshot_kwargs(**kwargs)`.
    """
    if not names_trusted(request):  # or the user's module would be imported here
        return {}
    hook = getattr(find_creator(_find(request, request.env_id)), "snapshot_kwargs", None)
    return {} if hook is None else hook(**request.kwargs)


def is_trusted(env: Env) -> bool:
    """Return whether every layer of the environment is Gymnasium's classic control or ours."""
    while isinstance(env, gym.Wrapper):
        if not type(env).__module__.startswith(_TRUSTED_WRAPPERS):
            return False
        env = env.env
    inner = env.coroutines if isinstance(env, CoroutineEnv) else env
    return type(inner).__module__.startswith(_TRUSTED)


def as_coroutines(factory: Factory) -> Factory:
    """Return a factory of the environment's coroutine form; building raises UsageError if it has none."""
    return partial(_build_coroutines, factory)


def _build_coroutines(factory: Factory) -> Env:
    with coroutines_wanted():
        env = factory()
    if not has_coroutines(env):
        name = type(env.unwrapped).__name__
        env.close()
        raise UsageError(
            f"{name} is a plain environment: its step() is not a coroutine, so while one waits, all others "
            "on the event loop wait too; use --vector threads, where each waits in its own thread, or write "
            "reset() and step() as `async def` [--vector]"
        )
    return env


def _make(request: EnvRequest, render_mode: str | None) -> Env:
    if request.env_id.startswith(_ENVPOOL):
        raise UsageError(f"{request.env_id!r} is already vectorised; use --vector batched [--vector]")
    target = _find(request, request.env_id)
    wrappers = [(text, *_find_wrapper(request, text)) for text in request.wrap]
    rendering = {} if render_mode is None else {"render_mode": render_mode}
    kwargs = request.read_kwargs() | _read_companion_kwargs(target, request)
    if not any(hasattr(wrapper, RENDERS_ITSELF) for _, wrapper, _ in wrappers):
        kwargs |= rendering
    make = target if callable(target) else partial(_make_registered, target)
    env = _build(request.env_id, partial(make, **kwargs))
    for text, wrapper, call in wrappers:
        given = {**call.kwargs, **(rendering if hasattr(wrapper, RENDERS_ITSELF) else {})}
        if isinstance(env, CoroutineEnv) and is_coroutine(wrapper):
            env = env.coroutines  # the wrapper awaits its steps itself
        if is_parallel(env) and isinstance(wrapper, type) and issubclass(wrapper, gym.Wrapper):
            raise UsageError(
                f"wrapper {text!r} is for environments of one agent, and {request.env_id!r} has several; use "
                "a wrapper of parallel environments [--wrap]"
            )
        env = _build(text, partial(wrapper, env, *call.args, **given), "; a wrapper returns one [--wrap]")
    return _unite(request.env_id, env)


def _find_wrapper(request: EnvRequest, text: str) -> tuple[Callable[..., Any], NamedCall]:
    call = read_wrapper(text)
    wrapper = _find(request, call.name)
    if not callable(wrapper):
        raise UsageError(f"wrapper {text!r} is not a callable; give module:callable [--wrap]")
    check_arguments(text, wrapper, call)
    return wrapper, call


def _make_registered(env_id: str, /, **kwargs: Any) -> Env:
    """Like `gymnasium.make`, which does not support coroutines: they become plain before it checks."""
    spec = gym.registry.get(env_id)
    entry: Any = None if spec is None else spec.entry_point
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    is_plain = isinstance(creator, type) and issubclass(creator, gym.Env)
    is_plain = is_plain and not is_coroutine(creator) and not offers_form(creator)
    if spec is None or creator is None or is_plain:
        return gym.make(env_id, **kwargs)
    create: Any = partial(_create_plain, creator)
    if hasattr(creator, "metadata"):
        create.metadata = creator.metadata
    env = gym.make(replace(spec, entry_point=create), **kwargs)
    assert env.unwrapped.spec is not None
    env.unwrapped.spec.entry_point = entry
    return env


def _create_plain(creator: Callable[..., Any], /, **kwargs: Any) -> Any:
    return adapt(creator(**kwargs))


def _make_vector(request: EnvRequest, num_envs: int) -> VectorEnv:
    from mission_gym.env.vector_envs import FromEnvPool, FromSB3, is_sb3  # workers do not need them

    name = request.env_id
    if name.startswith(_ENVPOOL):
        envpool, task_id = import_named("envpool", name), name.removeprefix(_ENVPOOL)
        pool: VectorEnv = guard(name, partial(FromEnvPool, envpool, task_id, num_envs, request.read_kwargs()))
        return pool
    if name.startswith(BRIDGE):
        raise UsageError(
            f"{name!r} needs no vector form: other vectors step all games of one process with one message; "
            "leave it out [--vector batched]"
        )
    target = _find(request, name)
    kwargs = request.read_kwargs() | _read_companion_kwargs(target, request)
    if callable(target):
        build = partial(target, num_envs=num_envs, **kwargs)
    else:
        if target in gym.registry and gym.registry[target].vector_entry_point is None:
            raise UsageError(
                f"{name!r} has no vector form (no vector_entry_point is registered); "
                "use another vector, such as serial [--vector batched]"
            )
        mode = gym.VectorizeMode.VECTOR_ENTRY_POINT
        build = partial(gym.make_vec, target, num_envs, mode, **kwargs)
    try:
        made = guard(name, build)
    except EnvContractError as error:
        if callable(target) and "'num_envs'" in str(error):  # Python names the unexpected argument so
            raise _explain_single(name, partial(target, **kwargs)) from error
        raise
    if is_sb3(made):
        return FromSB3(made)
    if not isinstance(made, gym.vector.VectorEnv):
        raise EnvContractError(
            f"{name!r} returned a {type(made).__name__}, not a gymnasium.vector.VectorEnv; a batched "
            "environment must be one; use another vector, such as serial [--vector batched]"
        )
    return made


def _explain_single(name: str, build: Callable[[], Any]) -> UsageError:
    """Explain why a callable without `num_envs` can't be batched."""
    made = _build(name, build)
    with suppress(Exception):  # border: failing to close a temporary environment is harmless
        made.close()
    what = "one parallel environment of several agents" if is_parallel(made) else "a single environment"
    return UsageError(
        f"{name!r} returns {what}, and has no vector form (it takes no num_envs); use another vector, such "
        "as serial or workers [--vector batched]"
    )


def _read_companion_kwargs(target: Callable[..., Any] | str, request: EnvRequest) -> dict[str, Any]:
    """Return the keyword arguments from the environment's companion; CompanionNeeded if it is not running."""
    if request.companion_kwargs:
        return request.companion_kwargs
    hook = getattr(guard(request.env_id, partial(find_creator, target)), COMPANION, None)
    companion = None if hook is None else guard(request.env_id, partial(hook, **request.read_kwargs()))
    if companion is None:
        return {}
    if not isinstance(companion, Companion):
        raise EnvContractError(
            f"{COMPANION}() of {request.env_id!r} returned a {type(companion).__name__}; it must return a "
            "mission_gym.Companion or None"
        )
    raise CompanionNeeded(companion)


def _build(name: str, build: Callable[[], Any], hint: str = "") -> Any:
    """Build one environment: Gymnasium's, or a parallel one of several agents."""
    built = guard(name, build)
    made = guard(name, lambda: adapt(built))
    if isinstance(made, gym.Env) or is_parallel(made):
        return complete_reset(made)
    if isinstance(made, gym.vector.VectorEnv):
        hint = "; it is already vectorised: use --vector batched"
    elif takes_turns(made):
        hint = (
            "; its agents take turns (AEC), but only agents that act at once can be trained: give its "
            "parallel_env, or the result of pettingzoo.utils.conversions.aec_to_parallel"
        )
    elif is_old_gym(made):
        hint = f"; {OLD_API}"
    elif callable(getattr(made, "reset", None)) and callable(getattr(made, "step", None)):
        hint = "; it has reset() and step(), so write a function that returns a gymnasium.Env around it"
    raise EnvContractError(f"{name!r} returned a {type(made).__name__}, not a gymnasium.Env{hint}")


def _unite(name: str, made: Any) -> Env:
    """Return the environment itself, or a Gymnasium environment around a parallel one."""
    if isinstance(made, gym.Env):
        return made
    united: Env = guard(name, partial(AgentsEnv, made, name))
    return united


def _build_one(name: str, build: Callable[[], Any]) -> Env:
    return _unite(name, _build(name, build))


def _find(request: EnvRequest, name: str) -> Callable[..., Any] | str:
    """Return the callable of a name, or the id for Gymnasium; TrustError for a function that is not
    allowed."""
    if name.startswith(BRIDGE):
        return _find_bridge(request, name)
    module_name, colon, attribute = name.partition(":")
    if module_name.endswith(".py"):
        raise UsageError(f"{module_name!r} is a file; {name_file(module_name, attribute)} [{name}]")
    if not colon:
        return name
    module = import_named(module_name, name)
    target = getattr(module, attribute, None)
    if callable(target):
        if request.calls is not None:
            judge(name, target, (gym.Env, gym.vector.VectorEnv, ParallelEnv), request.calls)
        found: Callable[..., Any] = target
        return found
    if attribute not in gym.registry:
        guard(name, partial(register_declared, module_name))
    if attribute in gym.registry:
        return attribute
    if is_registered_with_old_gym(attribute):
        raise UsageError(
            f"{attribute!r} is registered with gym, not with Gymnasium; run: pip install shimmy, and "
            f"name it shimmy:GymV26Environment-v0 --env-kwargs env_id={name} "
            '"make_kwargs={disable_env_checker: true}" (GymV21Environment-v0 if its step() returns four '
            f"values; the checker is gym's, and fails with NumPy 2) [{name}]"
        )
    known = [key for key, value in vars(module).items() if callable(value)] + list(gym.registry)
    hint = (
        f"{nearest_id(attribute, known)}; name the module whose import registers it, or one of its callables"
    )
    if attribute in list_modules(module):
        hint = f"; {name_callable(f'{module_name}.{attribute}')}"
    elif (home := name_home(attribute)) and not home.endswith(f" {name}"):  # in another module
        hint = f"; {home}"
    raise UsageError(
        f"module {module_name!r} has no callable and registers no environment {attribute!r}{hint} [{name}]"
    )


def _find_bridge(request: EnvRequest, name: str) -> Callable[..., Any]:
    if request.calls is not None and name not in request.calls:
        raise TrustError(f"{name} is a command", name)
    from mission_gym.bridge.env import DEADLINE_S, BridgeEnv

    timeout_s = request.timeout_s or DEADLINE_S
    return partial(BridgeEnv, name.removeprefix(BRIDGE), timeout_s=timeout_s)
