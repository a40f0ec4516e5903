"""Where environments' own code is imported and called: every failure becomes one that says what to do."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from mission_gym.env.displays import describe_drawing
from mission_gym.env.known_ids import name_callable, name_home, name_package, nearest_id
from mission_gym.errors import EnvContractError, MissionGymError, UsageError, describe, nearest
from mission_gym.names import make_importable


def import_named(module_name: str, name: str) -> ModuleType:
    """Import a module; `name` is what names it, for messages. The current folder is importable."""
    folder = make_importable()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        parent, _, child = missing.rpartition(".")
        is_named = f"{module_name}.".startswith(f"{missing}.")  # rather than imported by what is named
        if is_named and parent in sys.modules:
            hint = nearest(child, list_modules(sys.modules[parent]))
            raise UsageError(
                f"package {parent!r} is here and has no module {child!r}{hint} [{name}]"
            ) from error
        if is_named:
            raise UsageError(
                f"no module named {missing!r}; {name_package(missing)}, or start in the folder that holds it "
                f"(now {folder}) [{name}]"
            ) from error
        remedy = '; run: pip install "setuptools<81"' if missing == "pkg_resources" else ""
        raise UsageError(
            f"module {module_name!r} needs {missing!r}, which is not installed{remedy} [{name}]"
        ) from error
    except Exception as error:  # border: the user's module
        what = describe_drawing(error)
        raise EnvContractError(f"importing {module_name!r} raised {what} [{name}]") from error


def list_modules(package: ModuleType) -> list[str]:
    """The modules inside a package; none in a plain module."""
    return [module.name for module in iter_modules(getattr(package, "__path__", ()))]


def guard(name: str, build: Callable[[], Any]) -> Any:
    """Build, with every failure turned into one that says what to do."""
    try:
        return build()
    except MissionGymError:
        raise
    except gym.error.UnregisteredEnv as error:
        raise UsageError(f"unknown environment {name!r}{_suggest_name(name, error)}") from error
    except gym.error.DependencyNotInstalled as error:
        extra = re.search(r"gymnasium\[[\w-]+\]", str(error))
        remedy = f'; run: pip install "{extra.group()}"' if extra else ""
        raise UsageError(f"{name!r} needs a package that is not installed: {error}{remedy}") from error
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{name!r} needs the module {error.name or str(error)!r}, which is not installed"
        ) from error
    except Exception as error:  # border: the user's constructor
        hint = _suggest_keyword(error, build)
        raise EnvContractError(f"building {name!r} raised {describe_drawing(error)}{hint}") from error


def _suggest_name(name: str, error: Exception) -> str:
    """How to name an environment that Gymnasium does not know."""
    if home := name_home(name):
        return f"; {home}"
    if "." in name and all(part.isidentifier() for part in name.split(".")):
        return f"; if it is a module, {name_callable(name)}"
    hint = nearest_id(name, gym.registry)
    return f"{hint}; give a registered id, module:Id or module:callable ({error})"


def _suggest_keyword(error: Exception, build: Callable[[], Any]) -> str:
    """The nearest name for a keyword that what was built does not have."""
    wrong = re.search(r"unexpected keyword argument '(\w+)'", describe(error))
    if not isinstance(error, TypeError) or wrong is None or not isinstance(build, partial):
        return ""
    target: Any = build.func
    if build.args and build.args[0] in gym.registry:  # an id, given to what makes registered ones
        target = find_creator(build.args[0])
    with suppress(TypeError, ValueError):  # of a builtin
        return nearest(wrong[1], inspect.signature(target).parameters)
    return ""


def find_creator(target: Callable[..., Any] | str) -> Any:
    """The class or function behind a callable or a registered id."""
    if callable(target) or target not in gym.registry:
        return target
    entry = gym.registry[target].entry_point
    return load_env_creator(entry) if isinstance(entry, str) else entry
