"""Imports and calls the user's environment code; every failure becomes an error that suggests a remedy.

It knows third-party packages by their ids, environments of the old gym package, and missing displays.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import tomllib
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path, PurePath
from pkgutil import iter_modules
from types import MethodType, ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

import mission_gym
from mission_gym.errors import EnvContractError, MissionGymError, UsageError, describe, nearest
from mission_gym.names import make_importable

OLD_API = (
    "environments of the old gym package need shimmy: write a function that returns "
    "shimmy.GymV26CompatibilityV0(env=...), or GymV21CompatibilityV0 if step() returns four values "
    '(pip install "shimmy[gym-v26]" or "shimmy[gym-v21]")'
)
_DISPLAYS = {  # environment variable for rendering without a display -> errors of the library without it
    "PYGLET_HEADLESS=true": ("NoSuchDisplayException",),
    "SDL_VIDEODRIVER=dummy": ("No available video device", "video system not initialized"),
    "MUJOCO_GL=egl": (
        "DISPLAY environment variable is missing", "gladLoadGL", "OpenGL platform library"
    ),
}  # fmt: skip
_VERSION = re.compile(r"-v\d+$")
_LINE = re.compile(r'File "(.+)", line (\d+)')
# Code of these folders is not the user's.
_OTHERS = (
    Path(mission_gym.__file__).parent,
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


@cache
def read_packages() -> dict[str, Any]:
    """Return the known third-party packages: name for pip -> module and patterns of ids."""
    return tomllib.loads(Path(__file__).with_name("known_packages.toml").read_text("utf-8"))


def import_named(module_name: str, name: str) -> ModuleType:
    """Import a module; the current folder is importable. name: the user's name for it, for messages."""
    folder = make_importable()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        parent, _, child = missing.rpartition(".")
        if not f"{module_name}.".startswith(f"{missing}."):  # it is imported by the named module
            remedy = '; run: pip install "setuptools<81"' if missing == "pkg_resources" else ""
            what = f"module {module_name!r} needs {missing!r}, which is not installed{remedy}"
        elif parent in sys.modules:
            hint = nearest(child, list_modules(sys.modules[parent]))
            kind = "package" if hasattr(sys.modules[parent], "__path__") else "module"
            what = f"{kind} {parent!r} was found, but has no module {child!r}{hint}"
        else:
            remedy = f"{name_package(missing)}, or start in the folder that contains it"
            what = f"no module named {missing!r}; {remedy} (now {folder})"
        raise UsageError(f"{what} [{name}]") from error
    except (Exception, SystemExit) as error:  # border: the user's module
        what = describe_user_error(error)
        raise EnvContractError(f"importing {module_name!r} raised {what} [{name}]") from error


def list_modules(package: ModuleType) -> list[str]:
    """List the modules inside a package; none for a plain module."""
    return [module.name for module in iter_modules(getattr(package, "__path__", ()))]


def guard(name: str, build: Callable[[], Any]) -> Any:
    """Call `build`; every failure becomes an error that suggests a remedy."""
    try:
        return build()
    except MissionGymError:
        raise
    except gym.error.UnregisteredEnv as error:
        raise UsageError(_describe_unknown(name, error)) from error
    except gym.error.DependencyNotInstalled as error:
        extra = re.search(r"gymnasium\[[\w-]+\]", str(error))
        remedy = f'; run: pip install "{extra.group()}"' if extra else ""
        raise UsageError(f"{name!r} needs a package that is not installed: {error}{remedy}") from error
    except ModuleNotFoundError as error:
        named = re.search(r"No module named '([\w.]+)'", str(error))
        missing = error.name or (named[1] if named else str(error))
        raise UsageError(f"{name!r} needs the module {missing!r}, which is not installed") from error
    except (Exception, SystemExit) as error:  # border: the user's constructor
        hint = _suggest_keyword(error, build)
        raise EnvContractError(f"building {name!r} raised {describe_user_error(error)}{hint}") from error


def complete_reset(made: Any) -> Any:
    """Give every layer of an environment the `reset(*, seed=None, options=None)` of Gymnasium, if it lacks an
    argument, and return the environment."""
    layer = made
    while layer is not None:
        with suppress(TypeError, ValueError):  # a builtin has no signature
            arguments = inspect.signature(layer.reset).parameters
            takes_all = any(each.kind is each.VAR_KEYWORD for each in arguments.values())
            missing = {"seed", "options"} - arguments.keys()
            if missing and not takes_all and not inspect.iscoroutinefunction(layer.reset):
                layer.reset = MethodType(_make_reset(missing), layer)  # a copy of the layer gets its own
        layer = layer.env if isinstance(layer, gym.Wrapper) else None
    return made


def _make_reset(missing: set[str]) -> Callable[..., Any]:
    """Make a reset around that of a class, which lacks these arguments.

    Without `seed`, the seed goes to the old API's seed(), or to np_random as in `gymnasium.Env.reset`.
    """

    def reset(self: Any, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        given = {"seed": seed, "options": options}
        if "options" in missing and options:
            name = type(self).__name__
            raise EnvContractError(f"{name}.reset() takes no options, but got {options}; add options=None")
        if "seed" in missing and seed is not None:
            if callable(getattr(type(self), "seed", None)):
                self.seed(seed)
            elif isinstance(self, gym.Env):
                gym.Env.reset(self.unwrapped, seed=seed)
        return type(self).reset(self, **{name: given[name] for name in given if name not in missing})

    return reset


def describe_user_error(error: BaseException) -> str:
    """Describe an exception; if a display is missing, add the remedy."""
    text = describe(error)
    for variable, signs in _DISPLAYS.items():
        if any(sign in text for sign in signs):
            return f"{text}; there is no display: set {variable}, or give --env-kwargs render_mode=rgb_array"
    return text


def is_old_gym(thing: Any) -> bool:
    """Return whether an environment or a space is from the old gym package, which may not be installed."""
    return any(kind.__module__.partition(".")[0] == "gym" for kind in type(thing).__mro__)


def is_registered_with_old_gym(env_id: str) -> bool:
    """Return whether the old gym package is loaded and has this id."""
    envs = getattr(sys.modules.get("gym"), "envs", None)
    registry = getattr(envs, "registry", {})
    return env_id in getattr(registry, "env_specs", registry)  # a dict since gym 0.26


def find_creator(target: Callable[..., Any] | str) -> Any:
    """Return the class or function of a callable or a registered id."""
    if callable(target) or target not in gym.registry:
        return target
    entry = gym.registry[target].entry_point
    return load_env_creator(entry) if isinstance(entry, str) else entry


@cache
def register_declared(module_name: str) -> None:
    """Register, once, ids that a package's import does not register: by the module's `register_envs`, or by
    its plugin, which Gymnasium has not loaded since 1.0."""
    top = module_name.partition(".")[0]
    plugins = [
        plugin for plugin in entry_points(group="gymnasium.envs") if plugin.module.partition(".")[0] == top
    ]
    own = getattr(sys.modules[module_name], "register_envs", None)
    for register in dict.fromkeys([own, *(plugin.load() for plugin in plugins)]):
        # Gymnasium's own function has the same name, and packages import it.
        if callable(register) and register.__module__.partition(".")[0] == top != "gymnasium":
            register()


def name_home(env_id: str) -> str:
    """Explain how to install and name an environment of a known package; empty for other ids."""
    for name, package in read_packages().items():
        if any(fnmatchcase(env_id, pattern) for pattern in package["ids"]):
            module = package["module"]
            is_installed = importlib.util.find_spec(module.partition(".")[0])
            get = "" if is_installed else f"{_show_install(name)}, and "
            return f"it belongs to the package {name}: {get}name it {module}:{env_id}"
    return ""


def name_package(module: str) -> str:
    """Explain how to install a missing module."""
    top = module.partition(".")[0]
    names = [name for name, each in read_packages().items() if each["module"].partition(".")[0] == top]
    return _show_install(names[-1]) if names else "install it"


def _show_install(name: str) -> str:
    return f"run: pip install {repr(name) if '[' in name else name}"


def name_callable(module: str) -> str:
    """Explain how to name an environment of a module, if only the module was named."""
    return f"name a callable of the module, such as {module}:make, or PettingZoo's {module}:parallel_env"


def name_file(file: str, attribute: str) -> str:
    """Explain how to name an environment of a Python file. attribute: its name there, or empty."""
    path = Path(file)
    folder = "" if path.parent == Path() else f", in the folder {path.parent}"
    return f"give its module and a callable: {path.stem}:{attribute or _guess_callable(path)}{folder}"


def _guess_callable(path: Path) -> str:
    """Return the first class of a file that looks like an environment, without running it, or `make`."""
    with suppress(OSError, SyntaxError, ValueError):
        classes = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.ClassDef)]
        for node in classes:
            if {"reset", "step"} <= {getattr(part, "name", "") for part in node.body}:
                return node.name
    return "make"


def nearest_id(name: str, known: Iterable[str]) -> str:
    """Like `errors.nearest`, for ids: compares them without their versions, but prefers the same version.

    A name with a version never means a callable.
    """
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


def find_unknown(name: str) -> str:
    """Describe an id that Gymnasium does not know, with a suggestion; "" if it does."""
    try:
        gym.spec(name)
    except gym.error.UnregisteredEnv as error:
        return _describe_unknown(name, error)
    return ""


def _describe_unknown(name: str, error: Exception) -> str:
    return f"unknown environment {name!r}{_suggest_name(name, error)}"


def _suggest_name(name: str, error: Exception) -> str:
    """Suggest a name for an environment that Gymnasium does not know."""
    if home := name_home(name):
        return f"; {home}"
    if (file := Path(f"{name.replace('.', '/')}.py")).is_file():
        return f"; {file.name} is a file here: name it {name}:{_guess_callable(file)}"
    if "." in name and all(part.isidentifier() for part in name.split(".")):
        return f"; if it is a module, {name_callable(name)}"
    hint = nearest_id(name, gym.registry)
    return f"{hint}; give a registered id, module:Id or module:callable ({error})"


def _suggest_keyword(error: BaseException, build: Callable[[], Any]) -> str:
    """Suggest the nearest keyword for one that the constructor does not have."""
    wrong = re.search(r"unexpected keyword argument '(\w+)'", describe(error))
    if not isinstance(error, TypeError) or wrong is None or not isinstance(build, partial):
        return ""
    target: Any = build.func
    if build.args and build.args[0] in gym.registry:  # an id, for a function that makes registered ones
        target = find_creator(build.args[0])
    with suppress(TypeError, ValueError):  # a builtin has no signature
        return nearest(wrong[1], inspect.signature(target).parameters)
    return ""


def find_line(error: BaseException) -> str:
    """Return the line of the user's code that led to an exception, empty if it has no traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return _choose((frame.filename, frame.lineno or 0) for frame in reversed(frames))


def find_line_in_stack(stack: str) -> str:
    """Return the line of the user's code in a stack that faulthandler printed, the newest call first."""
    return _choose((file, int(line)) for file, line in _LINE.findall(stack))


def _choose(lines: Iterable[tuple[str, int]]) -> str:
    """Return the innermost line in the user's code, else the innermost line. lines: the innermost first."""
    found = list(lines)
    own = [line for line in found if not _is_of_others(line[0])]
    if not found:
        return ""
    file, number = (own or found)[0]
    return f"{PurePath(file).name}:{number}"


def _is_of_others(file: str) -> bool:
    return file.startswith("<frozen ") or any(Path(file).is_relative_to(folder) for folder in _OTHERS)
