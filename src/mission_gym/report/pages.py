"""Pages: the Jinja2 templates with our number formats, and the values of a run's panels.

Templates escape all values. The dashboard and the report have the same panels.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mission_gym.clock import ROLES
from mission_gym.config.plain_yaml import read_stored
from mission_gym.errors import MissionGymError
from mission_gym.report.documents import describe_run_fully
from mission_gym.report.formats import (
    run_argument,
    show_count,
    show_duration,
    show_number,
    show_path,
    show_rate,
    show_value,
)
from mission_gym.report.scaling import Guide, make_guide
from mission_gym.report.tables import list_verdict, show_choice, show_interval, show_outcome, show_unseen
from mission_gym.report.terminal import find_callable, list_next_commands
from mission_gym.report.timeline import check_time, list_machine, list_phases, sum_phases
from mission_gym.store.files import read_json, read_tail
from mission_gym.store.rundir import RunDir

Row = Mapping[str, Any]
_NUM_EPISODES, _NUM_LINES = 40, 200
_VIDEO = re.compile(r"[\w.-]+\.(mp4|gif)")
# Escape sequences and control characters of a terminal.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def make_templates() -> Environment:
    """The environment of all pages: every name in a template must exist, and its value is escaped."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_strip_control,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "count": show_count, "number": show_number, "rate": show_rate, "duration": show_duration,
        "value": show_value, "outcome": show_outcome, "choice": show_choice, "unseen": show_unseen,
        "interval": lambda result: show_interval(result, "return"),
    }  # fmt: skip
    return templates


def _strip_control(value: Any) -> Any:
    """A value without control characters, since a page may be printed in a terminal."""
    return type(value)(_CONTROL.sub("", value)) if isinstance(value, str) else value


def make_file(title: str, part: str) -> str:
    """A page in one file. part: HTML."""
    return make_templates().get_template("plain.html").render(title=title, part=part)


def make_timeline_html(document: Row) -> str:
    """The page of `runs timeline`: the last updates, and the phases of the whole run."""
    panels = {"timeline": _describe_lanes(document), "time": _describe_phases(document)}
    return make_file(document["run"], "".join(render_panels(make_templates(), panels).values()))


def describe_panels(
    run: RunDir, rows: Sequence[Row], whole_s: float | None = None
) -> dict[str, dict[str, Any]]:
    """The values of every panel by name. rows: progress, the last `timeline` and `end`. whole_s: the duration
    of the run if the rows are a sample."""
    problems: list[str] = []
    try:
        document = describe_run_fully(run, problems.append)
    except MissionGymError as error:
        document, problems = {}, [str(error)]
    try:
        lanes = _describe_lanes(check_time(sum_phases(row for row in rows if row.get("event") == "timeline")))
    except MissionGymError:  # the row is damaged
        lanes = {"lanes": {}, "cores": []}
    return {
        "evaluations": _describe_evals(document),
        "time": _describe_phases(sum_phases(rows, whole_s)) | {"is_estimate": whole_s is not None},
        "timeline": lanes,
        "episodes": {"episodes": read_episodes(run)},
        "about": {"facts": _describe_about(run, document)},
        "failed": _describe_failed(run, document),
        "failures": _describe_failures(run, document, problems),
        "videos": {"videos": list_videos(run)},
        "commands": {"commands": list_commands(run, document)},
        "plan": _describe_plan(run),
        "config": _describe_config(run),
        "lineage": {key: document.get(key) for key in ("parent", "parent_step", "notes", "checkpoints")},
        "log": {"lines": _read_lines(run.log_txt)},
    }


def _describe_about(run: RunDir, document: Row) -> list[tuple[str, str]]:
    """The facts that identify a run, for its header."""
    created = document.get("created")
    try:
        machine = read_json(run.plan_json)["versions"].get("machine")
    except (MissionGymError, KeyError, TypeError, AttributeError):
        machine = None
    facts = {
        "environment": document.get("env_id"),
        "algorithm": document.get("algo"),
        "seed": document.get("seed"),
        "started": f"{datetime.fromtimestamp(created):%Y-%m-%d %H:%M}" if created else None,
        "machine": machine,
        "branch of": document.get("parent"),
        "notes": document.get("notes"),
    }
    return [(name, show_value(value)) for name, value in facts.items() if value not in (None, "")]


def render_panels(templates: Environment, panels: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Each panel as HTML."""
    return {
        name: templates.get_template(f"panels/{name}.html").render(values) for name, values in panels.items()
    }


def list_videos(run: RunDir) -> list[dict[str, str]]:
    """The MP4 and GIF files of the run, by name."""
    found = sorted(path for path in run.path.iterdir() if path.is_file() and not path.is_symlink())
    names = [path.name for path in found if _VIDEO.fullmatch(path.name)]
    return [{"name": name, "kind": "video" if name.endswith("mp4") else "image"} for name in names]


def list_commands(run: RunDir, document: Row) -> list[tuple[str, str]]:
    """Useful commands for the run, each with its effect."""
    state, step, cause = document.get("state"), document.get("step") or 0, document.get("cause") or ""
    name = run_argument(run.path)
    commands = [(f"mission-gym runs show {name}", "all details")]
    if not document.get("checkpoints"):
        return commands
    end = {"state": state, "step": step, "goal": cause.startswith("goal reached") or None}
    following = list_next_commands(run, document, end)
    if not find_callable(run):
        following.append((f"mission-gym record {name}", "a video of its best checkpoint"))
    return [*following, *commands]


def read_episodes(run: RunDir) -> list[dict[str, str]]:
    """The last finished training episodes, the newest first."""
    names = ("r", "l", "t", "outcome", "env", "seed")
    lines = csv.reader(_read_lines(run.monitor_csv))
    rows = [row for row in lines if len(row) == len(names) and row[0] != "r"]
    return [dict(zip(names, row, strict=True)) for row in reversed(rows[-_NUM_EPISODES:])]


def _read_lines(path: Path, num_lines: int = _NUM_LINES) -> list[str]:
    """The last lines of a text file, without control characters."""
    return [_CONTROL.sub("", line) for line in read_tail(path)[-num_lines:]]


def _describe_evals(document: Row) -> dict[str, Any]:
    """Evaluations, the latest first; `best` is the index of the best checkpoint's."""
    evals = sorted(document.get("evals") or [], key=lambda result: (-result["step"], result["suite"] or ""))
    best = (place for place, result in enumerate(evals) if result["step"] == document["best_step"])
    is_alive = document.get("state") in ("starting", "running")
    return {"evals": evals, "best": next(best, None), "is_alive": is_alive}


def _describe_phases(document: Row) -> dict[str, Any]:
    """The panel `time`: the phases of the whole run."""
    wall_s, roles = document["wall_s"], document["roles"]
    return {
        "phases": list_phases(document) if wall_s else [],
        "bars": {
            role: [(name, spent, spent / wall_s) for name, spent in phases.items() if spent > 0]
            for role, phases in roles.items()
            if wall_s
        },
        "machine": list_machine(document["machine"]) if document["machine"] else [],
        "verdict": list_verdict(document["verdict"]),
        "overlap": document["overlap"],
        "roles": list(ROLES),
        "is_estimate": False,
    }


def _describe_lanes(document: Row) -> dict[str, Any]:
    """The panel `timeline`: the phases of each role in the last updates, and the use of each core."""
    known = {phase for phases in ROLES.values() for phase in (*phases, "collect")}
    spans = [span for span in document["spans"] if span[1] in known and 0.0 <= span[2] <= span[3]]
    whole = max((end for *_, end in spans), default=0.0)
    lanes = {role: [span[1:] for span in spans if span[0] == role] for role in ROLES}
    return {
        "lanes": lanes if whole > 0 else {},
        "whole": whole,
        "updates": document["updates"] or (None, None),
        "phases": list(dict.fromkeys(span[1] for span in spans)),
        "cores": [share for share in document["cores"] if isinstance(share, float) and 0.0 <= share <= 1.0],
    }


def _describe_failed(run: RunDir, document: Row) -> dict[str, Any]:
    """The panel `failed`: the first line of the cause, the failures of environments, and the rest."""
    cause, _, details = _CONTROL.sub("", document.get("cause") or "").partition("\n")
    kinds = document.get("failures") or []
    return {
        "failure": cause,
        "place": "; ".join(f"{kind['text']}: {kind['place']}" for kind in kinds),
        "repros": _list_repros(run),
        "details": details,
    }


def _list_repros(run: RunDir) -> list[str]:
    """The commands that replay the failures of environments."""
    paths = sorted(run.path.glob("repro-env*-episode*.json"))
    return [f"mission-gym check --repro {shlex.quote(show_path(path))}" for path in paths]


def _describe_failures(run: RunDir, document: Row, problems: list[str]) -> dict[str, Any]:
    cause = document.get("cause") or ""
    return {
        "failures": document.get("env_failures"),
        "restarts": document.get("worker_restarts"),
        "cause": _CONTROL.sub("", cause) if document.get("state") == "failed" else "",
        "kinds": document.get("failures") or [],
        "problems": problems,
        "repros": _list_repros(run),
        "output": _read_lines(run.env_output),
        "warnings": [
            line for line in _read_lines(run.log_txt, 1000) if " warning " in line or " failure " in line
        ][-20:],
    }


def _describe_plan(run: RunDir) -> dict[str, Any]:
    try:
        plan = read_json(run.plan_json)
        facts = [
            {key: str(fact.get(key, "")) for key in ("name", "value", "reason")} for fact in plan["facts"]
        ]
        notes = [str(note) for note in plan["notes"]]
        versions = {str(name): str(version) for name, version in (plan.get("versions") or {}).items()}
    except (MissionGymError, KeyError, TypeError, AttributeError):
        return {"facts": [], "notes": [], "versions": {}, "guide": None}
    return {"facts": facts, "notes": notes, "versions": versions, "guide": _find_guide(plan)}


def _find_guide(plan: Row) -> Guide | None:
    """The scaling guide of a tuned run; None if there is none or it can't be read."""
    try:
        return make_guide(plan["tuning"]) if plan.get("tuning") else None
    except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError, IndexError):
        return None


def _describe_config(run: RunDir) -> dict[str, Any]:
    try:
        stored = read_stored(run.config_yaml)
    except MissionGymError as error:
        return {"sections": {}, "problem": str(error)}
    sections: dict[str, list[tuple[str, Any, str]]] = {}
    for path, entry in stored.items():
        section, _, name = path.partition(".")
        sections.setdefault(section, []).append((name, entry.value, entry.source))
    return {"sections": sections, "problem": ""}
