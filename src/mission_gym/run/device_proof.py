"""Whether this machine's accelerators compute what the CPU does, for `doctor`: in a process of its own, as a
driver may crash or hang."""

from __future__ import annotations

import json
import sys

import torch

from mission_gym.config.rules import apply_rules
from mission_gym.config.schema import Settled
from mission_gym.data import EnvSpec
from mission_gym.errors import MissionGymError
from mission_gym.plan.ways import find_devices
from mission_gym.run.assemble import settle, verify_device
from mission_gym.run.config import resolve
from mission_gym.run.environment import probe_environment

_FLAGS = {
    "device": "cpu",
    "kernel": "torch",
    "precision": "float32",
    "network_arch": "256,256",
    "tune": False,
}


def prove_devices() -> dict[str, str]:
    """Every device and precision with why it is left out of trainings, empty where it is not."""
    environment, resolved = probe_environment(resolve("CartPole-v1", _FLAGS))
    config, spec = settle(apply_rules(resolved)[0], environment.spec)[0].settled, environment.spec
    cards = ["cuda", *(f"cuda:{number}" for number in range(1, torch.cuda.device_count()))]
    causes = {}
    for device, has_bf16 in find_devices(cards).items():
        for precision in ("float32", "bf16") if has_bf16 else ("float32",):
            if device != "cpu":
                causes[f"{device} {precision}"] = _prove(config, spec, device, precision)
    return causes


def _prove(config: Settled, spec: EnvSpec, device: str, precision: str) -> str:
    compute = config.compute.model_copy(update={"device": device, "precision": precision})
    try:
        return verify_device(config.model_copy(update={"compute": compute}), spec)
    except (RuntimeError, TypeError, MissionGymError) as error:  # border: drivers raise whatever they like
        return str(error).splitlines()[0]


def main() -> None:
    """Print the causes as a line of JSON."""
    sys.stdout.write(f"{json.dumps(prove_devices())}\n")
