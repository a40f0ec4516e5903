"""The acceptance list: third-party packages, each installed into a virtual environment and tried in full.

In: packages.toml. For each package: `check`, a short `train`, `eval` and `resume` of one id from an empty
folder, each with a deadline; the other ids of a large family are opened and stepped (`family.py`). Out: a row
of docs/acceptance.json, from which docs/acceptance.md is generated. It installs, so it is run by hand:

    python tests/acceptance/acceptance.py --scratch /tmp/acceptance [--only minigrid ...] [--go-on]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import mission_gym

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "docs" / "acceptance.json"
TRACEBACK = "Traceback (most recent call last)"
HUNG = "Timeout ("  # as faulthandler says it
INSTALL_S = 900.0
LIST_S = 300.0  # for imports, and the list of a family's ids
ID_S = 60.0  # for one of them
_SHOWN = 300  # characters of a message that are kept
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+@-]+/)*(?:site-packages/)?(?=[\w.+@-])")
_BASE = ("mission-gym", "gymnasium", "numpy", "torch")
_READ_VERSIONS = """
import importlib.metadata, json, platform, re, sys
names = [re.match("[A-Za-z0-9_.-]+", text)[0] for text in sys.argv[1:]]
versions = {name: importlib.metadata.version(name) for name in names}
print(json.dumps({**versions, "python": platform.python_version()}))
"""

Row = dict[str, Any]


@dataclass(frozen=True)
class Package:
    """A row of packages.toml."""

    name: str
    env: str  # as the commands take it
    install: tuple[str, ...] = ()  # requirements; empty for what the project's own extras hold
    env_flags: tuple[str, ...] = ()  # of `check` and `train`
    train_flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)  # of the process
    files: tuple[str, ...] = ()  # of this repository, copied into the folder that the commands run in
    timesteps: int = 4096  # of `train`, which whole rollouts must fit into; `resume` goes on to twice as many
    deadline_s: float = 600.0  # of each command
    family: Mapping[str, Any] = field(
        default_factory=dict
    )  # `ids`, or `module`, `id` and `entry` (family.py)
    fault: str = ""  # of the package, which `check` is right to call an error
    note: str = ""  # for the page


def read_packages(path: Path = HERE / "packages.toml") -> list[Package]:
    """The packages, in the order of the file."""
    rows = tomllib.loads(path.read_text("utf-8"))["package"]
    return [
        Package(**{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()}) for row in rows
    ]


@dataclass(frozen=True)
class Ended:
    """A process that came to its end, or to its deadline (`code` None)."""

    code: int | None
    seconds: float
    out: str
    err: str


class Layer:
    """A virtual environment over the one that runs this: packages installed in it win, the rest is shared."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self.log = folder.with_suffix(".log")
        homes = {name: str(folder / "home") for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
        self.variables = {**os.environ, **homes, **variables}

    def install(self, requirements: Sequence[str]) -> Ended:
        """Make it anew and install into it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.log.unlink(missing_ok=True)
        venv.create(self.folder / "venv")
        (self.folder / "home").mkdir()
        shared = [str(Path(mission_gym.__file__).parents[1])]
        shared += [entry for entry in sys.path if Path(entry).name == "site-packages"]
        site = next((self.folder / "venv" / "lib").glob("python*/site-packages"))
        (site / "base.pth").write_text("\n".join(dict.fromkeys(shared)))
        if not requirements:
            return Ended(0, 0.0, "", "")
        pip = (sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet")
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        asked = (*requirements, *project["dependencies"])  # ours are there, and must not be put back
        return run((*pip, "-c", str(ROOT / "constraints.txt"), *asked), self.folder, INSTALL_S)

    def run(self, args: Sequence[str], folder: str, deadline_s: float) -> Ended:
        """Run its Python in a folder of its own, and keep what was printed in a log beside the layer."""
        place = self.folder / folder
        place.mkdir(exist_ok=True)
        ended = run((str(self.python), *args), place, deadline_s, self.variables)
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(args)}\n{ended.out}{ended.err}exit code {ended.code}\n\n")
        return ended


def run(
    args: Sequence[str], folder: Path, deadline_s: float, variables: Mapping[str, str] | None = None
) -> Ended:
    """Run a process and, at its deadline, end it with all that it started."""
    start = time.monotonic()
    process = subprocess.Popen(
        args, cwd=folder, env=variables, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    code: int | None = None
    try:
        out, err = process.communicate(timeout=deadline_s)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    except BaseException:  # we were told to stop
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Ended(code, time.monotonic() - start, out, err)


def try_package(package: Package, layer: Layer) -> Row:
    """All that the page tells of one package."""
    row: Row = {
        "package": package.name, "env": package.env, "fault": package.fault, "note": package.note,
        "date": date.today().isoformat(),
        "variables": [f"{name}={tidy(value)}" for name, value in package.variables.items()],
        "flags": [*package.env_flags, *package.train_flags], "versions": {}, "commands": {}, "family": {},
    }  # fmt: skip
    installed = layer.install(package.install)
    if installed.code != 0:
        row["commands"]["install"] = describe(installed)
        return row | {"verdict": "not installed"}
    asked = layer.run(("-c", _READ_VERSIONS, *package.install, *_BASE), "home", LIST_S)
    row["versions"] = json.loads(asked.out)
    (layer.folder / "empty").mkdir()
    for file in package.files:
        shutil.copy(ROOT / file, layer.folder / "empty")
    for name, args in name_commands(package).items():
        ended = layer.run(("-m", "mission_gym", name, *args), "empty", package.deadline_s)
        row["commands"][name] = describe(ended, findings=name == "check")
        if ended.code != 0 and name == "train":
            break
    if package.family:
        row["family"] = try_family(package.family, layer)
    return row | {"verdict": judge(row)}


def name_commands(package: Package) -> dict[str, Sequence[str]]:
    """The commands with their arguments, in order."""
    short = ("--timesteps", str(package.timesteps), "--n-epochs", "1", "--eval-freq", "0", "--no-tensorboard")
    return {
        "check": (package.env, *package.env_flags, "--json"),
        "train": (package.env, *short, *package.env_flags, *package.train_flags),
        "eval": ("latest", "--episodes", "2", "--json"),
        "resume": ("latest", "--timesteps", str(2 * package.timesteps)),
    }


def describe(ended: Ended, *, findings: bool = False) -> Row:
    """What is kept of a command; findings: its output is those of `check`.

    A traceback within a message of exit code 3 is the environment's own, which it quotes.
    """
    lines = [line for line in ended.err.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("mission-gym: ", "ERROR: Cannot install"))]
    said = told or lines
    row: Row = {
        "exit": ended.code, "seconds": round(ended.seconds, 1),
        "message": tidy(said[-1]) if said and ended.code != 0 else "",
        "traceback": ended.code != 3 and has_traceback(ended.err),
    }  # fmt: skip
    if findings and ended.code in (0, 2) and ended.out.lstrip().startswith("["):
        found = [finding for finding in json.loads(ended.out) if finding["level"] == "error"]
        row["errors"] = [tidy(f"{finding['name']}: {finding['what']}") for finding in found]
    return row


def has_traceback(text: str) -> bool:
    """Whether something was raised that nobody caught; what Python ignores in destructors does not count."""
    pairs = pairwise(["", *text.splitlines()])
    return any(
        line.startswith(TRACEBACK) and not before.startswith("Exception ignored") for before, line in pairs
    )


def tidy(message: str) -> str:
    """A message for the page: in plain letters, not too long, without the folders of this machine."""
    text = _FOLDERS.sub("", message.removeprefix("mission-gym: ")).encode("ascii", "replace").decode()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def judge(row: Row) -> str:
    """works, works with flags, refused, accused (by `check`, and it trains), failed.

    A refusal is one message and exit code 2 of `train`, or 3 if `check` had found an error. All else that is
    not right, a traceback above all, is a failure of ours or of the package.
    """
    commands = row["commands"]
    if any(command["traceback"] or command["exit"] in (None, 1) for command in commands.values()):
        return "failed"
    codes = {name: command["exit"] for name, command in commands.items()}
    if codes["train"] == 2 or (codes["train"] == 3 and codes["check"] == 2):
        return "refused"
    if any(code != 0 for name, code in codes.items() if name != "check"):
        return "failed"
    if codes["check"] != 0 and not row["fault"]:
        return "accused"
    return "works with flags" if row["variables"] or row["flags"] else "works"


def try_family(family: Mapping[str, Any], layer: Layer) -> Row:
    """Open and step every id of a family in one process, in the next one after what crashed or hung."""
    script = str(HERE / "family.py")
    asked = layer.run((script, "list", json.dumps(dict(family))), "family", LIST_S)
    if asked.code != 0:
        return {"num_tried": 0, "problems": {describe(asked)["message"]: ["its list"]}}
    ids: list[str] = json.loads(asked.out)
    told: dict[str, str] = {}
    while left := [name for name in ids if name not in told]:
        ended = layer.run((script, "step", str(ID_S), *left), "family", LIST_S + ID_S * len(left))
        told |= dict(json.loads(line) for line in ended.out.splitlines())
        stuck = next((name for name in left if name not in told), None)
        if stuck is not None:
            told[stuck] = "it hung" if HUNG in ended.err else f"it ended its process with code {ended.code}"
        print(f"    {len(told)} of {len(ids)} ids", file=sys.stderr, flush=True)
    problems: dict[str, list[str]] = {}
    for name, problem in told.items():
        if problem:
            problems.setdefault(tidy(problem), []).append(name)
    return {"num_tried": len(ids), "problems": problems}


def merge(rows: Sequence[Row], new: Row, order: Sequence[str]) -> list[Row]:
    """The rows with a new one in place of its package's old one, in the order of the list."""
    by_name = {row["package"]: row for row in (*rows, new)}
    return [by_name[name] for name in order if name in by_name]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the list; 1 if a package did not end in a way that the page calls right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scratch", type=Path, required=True, help="a folder for the virtual environments")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these packages")
    parser.add_argument("--go-on", action="store_true", help="leave out what this scratch folder has tried")
    parser.add_argument("--keep", action="store_true", help="keep the virtual environments")
    flags = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `run`, which ends what it started
    packages = read_packages()
    unknown = set(flags.only) - {package.name for package in packages}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))} is not in packages.toml [--only]")
    chosen = [package for package in packages if not flags.only or package.name in flags.only]
    verdicts = []
    for number, package in enumerate(chosen, 1):
        folder = flags.scratch.absolute() / package.name
        done = folder.with_suffix(".json")
        if flags.go_on and done.exists():
            continue
        print(f"{number}/{len(chosen)} {package.name}: {package.env}", file=sys.stderr, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        row = try_package(package, Layer(folder, package.variables))
        rows = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
        merged = merge(rows, row, [package.name for package in packages])
        RESULTS.write_text(json.dumps(merged, indent=1) + "\n", "utf-8")
        done.write_text(json.dumps(row), "utf-8")
        if not flags.keep:
            shutil.rmtree(folder)
        seconds = sum(command["seconds"] for command in row["commands"].values())
        print(f"    {row['verdict']}, {seconds:.0f} s of commands", file=sys.stderr, flush=True)
        verdicts.append(row["verdict"])
    return int(any(verdict in ("accused", "failed") for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
