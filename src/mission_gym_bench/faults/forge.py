"""What a stranger can do to a run before he hands it on: edit values, and make the checksums fit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import yaml

from mission_gym.store.rundir import RunDir


def edit_values(run: RunDir, section: str, **values: object) -> None:
    """Change values of config.yaml, and of the config that each checkpoint carries."""
    config = yaml.safe_load(run.config_yaml.read_text())
    config[section] |= values
    run.config_yaml.write_text(yaml.safe_dump(config))
    for state in run.checkpoints.glob("step_*/state.json"):
        document = json.loads(state.read_text())
        document["config"] |= {f"{section}.{name}": value for name, value in values.items()}
        state.write_text(json.dumps(document))
        sign(state)


def sign(file: Path) -> None:
    """Give a checkpoint the checksum of one of its files as it is now, and its head one of its own."""
    meta = file.parent / "meta.json"
    head = json.loads(meta.read_bytes())
    if file.name in head["files"]:
        head["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    head.pop("sha256", None)
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()
    meta.write_text(json.dumps(head | {"sha256": digest}))
