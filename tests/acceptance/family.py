"""Runs inside a layer of `acceptance.py`: lists the ids of a family, or opens and steps ids in turn.

`list FAMILY`: a JSON list. `step SECONDS ID...`: a line `["ID", "PROBLEM"]` for each, with an empty problem
where the doctor, in a short look, found no error; one that takes longer than SECONDS ends the process. An ID
may be followed by arguments: `Meta-World/MT1 env_name=reach-v3`.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import gymnasium as gym
import yaml

from mission_gym.check.environment import check_environment
from mission_gym.env.factory import EnvRequest
from mission_gym.env.user_code import register_declared

LOOK_S = 2.0
NUM_EPISODES = 2


def list_ids(family: Mapping[str, Any]) -> list[str]:
    """The ids that are named, or those registered with such an id and entry point, with their module."""
    if "ids" in family:
        return list(family["ids"])
    module, pattern = family["module"], f"{family['id']} {family['entry']}"
    importlib.import_module(module)
    register_declared(module)
    prefix = "" if module == "gymnasium" else f"{module}:"
    registered = gym.registry.items()
    return [prefix + name for name, spec in registered if fnmatchcase(f"{name} {name_entry(spec)}", pattern)]


def name_entry(spec: gym.envs.registration.EnvSpec) -> str:
    """`module:name` of what builds a single environment; empty for those that are vectors only."""
    entry = spec.entry_point
    while isinstance(entry, partial):
        entry = entry.func
    if entry is None or isinstance(entry, str):
        return entry or ""
    return f"{entry.__module__}:{getattr(entry, '__qualname__', '')}"


def look(text: str) -> str:
    """What is wrong with an id, or an empty string."""
    name, *pairs = text.split()
    kwargs = {key: yaml.safe_load(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    try:
        findings = check_environment(EnvRequest(name, kwargs), num_episodes=NUM_EPISODES, budget_s=LOOK_S)
    except Exception as error:  # noqa: BLE001  border: whatever comes out of the doctor would be a traceback
        return f"traceback: {type(error).__name__}: {error}"
    errors = [f"{finding.name}: {finding.what}" for finding in findings if finding.level == "error"]
    return errors[0].replace(name, "ID") if errors else ""


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what environments print is no part of the result
    command, first, *names = sys.argv[1:]
    if command == "list":
        print(json.dumps(list_ids(json.loads(first))), file=out, flush=True)
    for name in names:
        faulthandler.dump_traceback_later(
            float(first), exit=True
        )  # by a thread that needs no lock of Python's
        print(json.dumps([name, look(name)]), file=out, flush=True)
    os._exit(0)  # some leave threads and windows behind
