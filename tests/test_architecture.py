"""The import table of ARCHITECTURE.md as data: rooms import downwards only, and heavy libraries stay put."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mission_gym.algorithms import ALGORITHMS, load_algorithm

ROOT = Path(__file__).parent.parent / "src"
SOURCE = ROOT / "mission_gym"
# From the bottom up; a room may import its own level's rooms only where named. A dot names a folder inside a
# room that has rules of its own.
LEVELS = [
    {"errors", "actions", "data", "clock", "streams", "compiled", "team", "names", "intervals"},
    {"config", "store", "procs", "bridge"},
    {"env", "store.sinks"},
    {"vector", "policy"},
    {"rollout"},
    {"check"},  # below what may be broken where it looks: no learner, no run, no plan
    {"ray"},
    {"learner"},
    {"algorithms"},
    {"plan"},
    {"run"},
    {"video"},
    {"fleet", "report"},
    {"report.screen", "report.dashboard", "fleet.sweep"},
    {"api", "api_flags", "api_results", "cli", "scripts", "__main__"},
]
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
MOST_FILES_OF_A_WALK = 20  # of ARCHITECTURE.md
MOST_ROOMS = 20  # folders of the package, and the modules of the lowest level as one
SIDEWAYS = {
    ("data", "actions"),
    ("names", "errors"),
    ("intervals", "streams"),
    ("clock", "data"),
    ("team", "compiled"),
    ("team", "data"),
    ("bridge", "procs"),
    ("vector", "ray"),  # the table of backends names its record
    ("scripts", "cli"),
    ("__main__", "cli"),
    ("cli", "api"),
    ("api", "api_flags"),
    ("api", "api_results"),
}
DISK_ROOMS = {"store", "fleet", "report"}  # import only store and below, and never torch
DISK_ROOMS_EXTRA = {("fleet", "ray")}  # jobs on a cluster
TORCH_ROOMS = {"policy", "learner", "algorithms", "check", "plan", "run"}
# The other packages of the distribution: what each may import of this one, and who may import it.
PACKAGES = {
    "mission_gym_missions": (LEVELS[0] | LEVELS[1], {"__init__", "cli"}),
    "mission_gym_bench": (set(LEVEL), {"cli"}),
}
# Tables of what varies: nobody else asks by name. table -> (rooms that may, rooms that may load records).
TABLES = {
    "mission_gym.algorithms:ALGORITHMS": ({"algorithms"}, {"algorithms", "run", "api", "cli"}),
    "mission_gym.vector.backends:BACKENDS": ({"vector", "ray"}, {"vector", "ray", "run", "api", "cli"}),
    "mission_gym.store.sinks:SINKS": ({"store.sinks"}, {"store.sinks", "run"}),
}
NAMES_ALLOWED: dict[str, set[str] | None] = {  # room or file -> homonyms there; None: all names
    "scripts": None,
    "config/schema.py": None,  # the choices of a field are data
    "cli/jobs.py": {"ray"},  # where jobs run
    "cli/train.py": {"workers"},  # --subproc is another word for it
    "check/machine.py": {"threads"},  # of the learner: a finding's name
    "run/alarms.py": {"workers"},  # a kind of alarm
    "store/rundir.py": {"tensorboard"},  # the name of a folder
    "run/config.py": {"tensorboard"},  # a field of the config
    "run/preview.py": {"threads"},  # of the learner: compute.threads
    "plan/tuner.py": {"threads"},
    "report/scaling.py": {"threads"},
}
LONG_FILES = {  # path -> why it may pass 400 lines
    "mission_gym/bridge/clients/mission_gym_bridge.py": "users copy it: a client library is one file"
}


def modules(package: str = "mission_gym") -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def name_room(parts: Sequence[str]) -> str:
    """The room of a module, by the parts of its name behind that of the package."""
    inner = ".".join(parts[:2])
    return inner if inner in LEVEL else parts[0]


def room_of(path: Path) -> str:
    return name_room(path.relative_to(SOURCE).with_suffix("").parts)


# A string that names a module of ours, as children are told what to run: `mission_gym.room.module:callable`.
NAMED = re.compile(r"(mission_gym(?:_missions|_bench)?(?:\.\w+)+)(?::\w+)?")


def imports_of(source: str, package: str) -> set[str]:
    """What a module of `package` imports, by statements, relative ones included, and by strings."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            parts = [*base, *([node.module] if node.module else [])]
            names |= {".".join([*parts, alias.name]) for alias in node.names}
        elif isinstance(node, ast.JoinedStr):  # f"mission_gym.room.{module}"
            head = node.values[0] if node.values else None
            if isinstance(head, ast.Constant) and (named := NAMED.match(str(head.value))):
                names.add(named[1])
        elif isinstance(node, ast.Constant) and (named := NAMED.fullmatch(str(node.value))):
            names.add(named[1])
    return names


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import mission_gym.run.start", "mission_gym.run.start"),
        ("from mission_gym.run import start", "mission_gym.run.start"),
        ("from . import start", "mission_gym.check.start"),
        ("from .start import begin", "mission_gym.check.start.begin"),
        ("from .. import run", "mission_gym.run"),
        ("from ..run.start import begin", "mission_gym.run.start.begin"),
        ("Child('mission_gym.run.start:begin')", "mission_gym.run.start"),
        ("import_module('mission_gym.run')", "mission_gym.run"),
        ("import_module(f'mission_gym.run.{name}')", "mission_gym.run"),
    ],
)
def test_every_way_to_import_is_seen(source: str, name: str) -> None:
    assert imports_of(source, "mission_gym.check") == {name}


def test_a_sentence_names_no_module() -> None:
    assert not imports_of("'see mission_gym.run.start'; 'mission_gym_missions.'", "mission_gym.check")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_downwards(path: Path) -> None:
    room = room_of(path)
    package = ".".join(path.relative_to(ROOT).parts[:-1])
    for name in imports_of(path.read_text("utf-8"), package):
        parts = name.split(".")
        if parts[0] in PACKAGES:
            assert room in PACKAGES[parts[0]][1], f"{path}: {room} may not import {parts[0]}"
        if parts[0] == "mission_gym" and len(parts) > 1 and parts[1] != "__version__" and room != "__init__":
            other = name_room(parts[1:])
            if other == room:
                continue
            assert other in LEVEL, f"{path}: {other} is in no room"
            below = LEVEL[other] < LEVEL[room]
            assert below or (room, other) in SIDEWAYS, f"{path}: {room} may not import {other}"
            if room == "report.dashboard":
                is_allowed = other == "report" or LEVEL[other] <= LEVEL["store"]
                assert is_allowed, f"{path}: the dashboard imports only report, store and below"
            if room in DISK_ROOMS:
                is_allowed = LEVEL[other] <= LEVEL["store"] or (room, other) in DISK_ROOMS_EXTRA
                assert is_allowed, f"{path}: {room} imports only store and below"
        if parts[0] in ("torch", "tensorboardX"):
            is_allowed = room in TORCH_ROOMS or path == SOURCE / "store" / "sinks" / "tensorboard.py"
            assert is_allowed, f"{path}: {room} may not touch torch"


@pytest.mark.parametrize("package", PACKAGES)
def test_other_packages_import_what_they_may(package: str) -> None:
    rooms, _ = PACKAGES[package]
    for path in modules(package):
        for name in imports_of(path.read_text("utf-8"), ".".join(path.relative_to(ROOT).parts[:-1])):
            parts = name.split(".")
            if parts[0] == "mission_gym" and len(parts) > 1:
                other = name_room(parts[1:])
                assert other in rooms | {"__version__"}, f"{path} may not import {other}"


def test_a_newcomer_sees_few_rooms() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert len(folders) + 1 <= MOST_ROOMS, sorted(folders)


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


def literals_of(path: Path) -> set[str]:
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize("table", TABLES)
def test_nobody_asks_by_name(table: str) -> None:
    """No string equal to a name of the table outside its folders; sentences are longer than a name."""
    module, _, attribute = table.partition(":")
    records = getattr(importlib.import_module(module), attribute)
    # Sinks that are always on have names of events and files.
    names = {name for name in records if getattr(records[name], "switch", name)}
    folders, _ = TABLES[table]
    for path in modules():
        room, place = room_of(path), str(path.relative_to(SOURCE))
        allowed = NAMES_ALLOWED.get(place, NAMES_ALLOWED.get(room, set()))
        if room not in folders and allowed is not None:
            found = names & literals_of(path) - allowed
            assert not found, f"{place}: {sorted(found)}; ask the record for a fact instead of the name"


def test_pages_name_no_algorithm_and_none_of_its_metrics() -> None:
    """The metric tables declare the charts of the dashboard."""
    names = set(ALGORITHMS)
    for algo in ALGORITHMS:
        names |= {metric.name.partition("/")[2] for metric in load_algorithm(algo).metrics}
    folders = (SOURCE / "report" / "templates", SOURCE / "report" / "dashboard" / "static")
    for path in (path for folder in folders for path in folder.rglob("*.*") if "uplot" not in path.parts):
        found = names & set(re.findall(r"\w+", path.read_text("utf-8")))
        assert not found, f"{path}: {sorted(found)}; declare the chart in a metric table"


@pytest.mark.parametrize("table", TABLES)
def test_few_rooms_load_records(table: str) -> None:
    """The others are handed records; the type of a record anybody above may name."""
    module, (_, loaders) = table.partition(":")[0], TABLES[table]
    for path in modules():
        if room_of(path) in loaders | {"__init__"}:
            continue
        named = imports_of(path.read_text("utf-8"), "mission_gym")
        loaded = {name for name in named if f"{name}.".startswith(f"{module}.")}
        assert not loaded, f"{path} loads {loaded}"


def read_walks() -> dict[str, list[tuple[str, list[str]]]]:
    """The walks of ARCHITECTURE.md: by title, each file with the names that its line mentions."""
    page = (ROOT.parent / "ARCHITECTURE.md").read_text("utf-8")
    section = page.partition("\n## Four walks\n")[2].partition("\n## ")[0]
    walks = {}
    for part in section.split("\n### ")[1:]:
        items = re.findall(r"^\d+\. (?:\w+\. )?`([^`]+)`: (.*)$", part, re.MULTILINE)
        walks[part.splitlines()[0]] = [(file, re.findall(r"`([^`]+)`", line)) for file, line in items]
    return walks


@pytest.mark.parametrize("title", ["One transition", "One config value", "One metric", "One checkpoint"])
def test_a_walk_names_few_files_and_functions_that_exist(title: str) -> None:
    walk = read_walks()[title]
    assert 10 < len({file for file, _ in walk}) <= MOST_FILES_OF_A_WALK
    for file, names in walk:
        paths = [base / file for base in (SOURCE, ROOT.parent) if (base / file).is_file()]
        assert paths, f"{title}: {file} does not exist"
        assert names, f"{title}: the line of {file} names no function"
        text = paths[0].read_text("utf-8")
        for name in (part for dotted in names for part in dotted.split(".")):
            defined = rf"(?m)(?:\b(?:def|class|function) |^\s*){re.escape(name)}\b"
            assert re.search(defined, text), f"{title}: {file} does not define {name}"


def test_no_file_is_long_without_a_reason() -> None:
    paths = [path for package in ("mission_gym", *PACKAGES) for path in modules(package)]
    long = {str(path.relative_to(ROOT)) for path in paths if len(path.read_text().splitlines()) > 400}
    assert long == set(LONG_FILES)


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("mission_gym", {"torch", "numba"}),
        ("mission_gym.vector.make_vec", {"torch", "numba"}),
        ("mission_gym.rollout.collector", {"torch"}),
        ("mission_gym.policy", {"torch"}),
        ("mission_gym.store.resolve", {"torch", "numba"}),
        ("mission_gym.report.terminal", {"torch", "numba"}),
        ("mission_gym.report.screen.live", {"torch", "numba"}),
        ("mission_gym.report.dashboard.serve", {"torch", "numba"}),
        ("mission_gym.cli.watch", {"torch", "numba"}),
        ("mission_gym.fleet.supervisor", {"torch", "numba", "scipy"}),
        ("mission_gym.cli.jobs", {"torch", "numba"}),
        ("mission_gym.store.sinks", {"torch", "numba", "tensorboardX"}),
        ("mission_gym.cli.main", {"torch", "numba", "tyro", "pydantic"}),
        # gymnasium, and with it NumPy, is loaded by the package itself unless its command is this one.
        ("mission_gym.cli.doctor", {"torch", "numba", "scipy", "psutil", "tyro", "rich", "pydantic", "yaml"}),
    ],
)
def test_heavy_libraries_are_not_loaded(module: str, forbidden: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({forbidden!r} & sys.modules.keys()))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not loaded.strip(), f"importing {module} loads {loaded}"


def test_the_architecture_page_lists_every_room_at_its_level() -> None:
    page = (ROOT.parent / "ARCHITECTURE.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(len(LEVELS)))
    assert [set(re.findall(r"`([\w.]+)`", rooms)) for _, rooms in rows] == LEVELS
