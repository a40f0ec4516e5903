"""The import table of ARCHITECTURE.md as data: rooms import downwards only, and heavy libraries stay put."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "mission_gym"
# From the bottom up; a room may import its own level's rooms only where named.
LEVELS = [
    {"errors", "data", "clock", "streams", "compiled", "team"},
    {"config", "store", "procs"},
    {"missions", "env"},
    {"vector", "policy"},
    {"rollout"},
    {"learner"},
    {"algorithms"},
    {"pipeline"},
    {"check", "monitor"},
    {"sinks"},
    {"plan", "run"},
    {"films"},
    {"fleet", "report", "bench"},
    {"screen"},
    {"api", "cli", "scripts", "__main__"},
]
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
SIDEWAYS = {
    ("data", "errors"),
    ("clock", "data"),
    ("team", "compiled"),
    ("team", "data"),
    ("scripts", "cli"),
    ("__main__", "cli"),
    ("cli", "api"),
    ("plan", "run"),
    ("run", "plan"),
}
DISK_BANK = {"store", "fleet", "report"}  # import only store and below, and never torch
TORCH_ROOMS = {"policy", "learner", "algorithms", "pipeline", "check", "plan", "run", "bench"}
LONG_FILES: dict[str, str] = {}  # path -> why it may pass 400 lines


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_downwards(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "mission_gym" and len(parts) > 1 and parts[1] not in (room, "__version__"):
            other = parts[1]
            assert other in LEVEL, f"{path}: {other} is in no room"
            below = LEVEL[other] < LEVEL[room]
            assert below or (room, other) in SIDEWAYS, f"{path}: {room} may not import {other}"
            if room in DISK_BANK:
                assert LEVEL[other] <= LEVEL["store"], f"{path}: {room} imports only store and below"
        if parts[0] in ("torch", "tensorboardX"):
            is_allowed = room in TORCH_ROOMS or path == SOURCE / "sinks" / "tensorboard.py"
            assert is_allowed, f"{path}: {room} may not touch torch"


@pytest.mark.parametrize("path", sorted((SOURCE / "report").glob("*.py")), ids=lambda path: path.name)
def test_report_gives_views_and_neither_writes_nor_prints(path: Path) -> None:
    forbidden = {"print", "open", "write_text", "write_bytes", "mkdir", "Console", "Live"}
    forbidden |= {"write_atomic", "write_json", "write_synced", "write_status"}
    tree = ast.parse(path.read_text("utf-8"))
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    assert not called & forbidden


def test_no_file_is_long_without_a_reason() -> None:
    long = {str(path.relative_to(SOURCE)) for path in modules() if len(path.read_text().splitlines()) > 400}
    assert long == set(LONG_FILES)


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("mission_gym", {"torch", "numba"}),
        ("mission_gym.vector.api", {"torch", "numba"}),
        ("mission_gym.rollout.collector", {"torch"}),
        ("mission_gym.policy", {"torch"}),
        ("mission_gym.store.resolve", {"torch", "numba"}),
        ("mission_gym.report.terminal", {"torch", "numba"}),
        ("mission_gym.screen", {"torch", "numba"}),
        ("mission_gym.sinks.stream", {"torch", "numba", "tensorboardX"}),
        ("mission_gym.cli.main", {"torch", "numba", "tyro", "pydantic"}),
    ],
)
def test_heavy_libraries_are_not_loaded(module: str, forbidden: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({forbidden!r} & sys.modules.keys()))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not loaded.strip(), f"importing {module} loads {loaded}"
