"""Writes the generated blocks of the documentation: tables of fields, presets, settings, commands, metrics.
Also writes the types of flags for Python.

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`. `make docs` runs this; a test compares.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import mission_gym.config.layers as layers
from mission_gym.algorithms import list_metrics, load_algorithm
from mission_gym.cli.main import COMMANDS
from mission_gym.config.fields import FieldInfo
from mission_gym.intervals import compute_sign_test
from mission_gym.report.formats import show_value
from mission_gym.run.config import schema
from mission_gym.store.metrics import Metric, read_metrics
from mission_gym_bench.defaults.main import judge

ROOT = Path(__file__).parent.parent
FLAGS = ROOT / "src" / "mission_gym" / "api_flags.pyi"
_FLAGS = '''"""The types of flags as arguments of `train`, `iterate` and `branch`. `make docs` writes this."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

class Flags(TypedDict, total=False):
    """Every flag of a run; docs/configuration.md describes them."""

    preset: str
    config: str | PathLike[str]
    set: str | Sequence[str]
    trust: bool
'''
_BLOCK = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def find_pages() -> list[Path]:
    """Every page of the documentation."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def render(text: str) -> str:
    """The page with every generated block as it should be; KeyError for a block of another name."""
    blocks = _make_blocks()
    return _BLOCK.sub(lambda match: f"{match[1]}{blocks[match[2]]}\n{match[3]}", text)


def _make_blocks() -> dict[str, str]:
    return {
        "commands": _table(
            ("command", "what it does"),
            ((f"`mission-gym {name}`", command.text) for name, command in COMMANDS.items()),
        ),
        "fields": _render_fields(),
        **_render_shipped("presets", layers.read_presets()),
        **_render_shipped("settings", layers.read_settings()),
        "metrics": _render_metrics(list_metrics()),
        **{f"{algo}-metrics": _render_metrics(_metrics_of(algo)) for algo in schema().algorithms},
        "faults": _render_faults(_read_rows("faults")),
        "defaults": _render_defaults(_read_rows("defaults")),
        "acceptance": _render_acceptance(_read_rows("acceptance")),
    }


def _read_rows(name: str) -> list[dict[str, Any]]:
    """What a benchmark kept for the documentation."""
    rows: list[dict[str, Any]] = json.loads((ROOT / "docs" / f"{name}.json").read_text("utf-8"))
    return rows


def _render_faults(rows: Sequence[Mapping[str, Any]]) -> str:
    """What `bench faults` kept: the counts, what did not hold or could not be tried, and the machine."""
    counts = [(row["case"].removeprefix("faults: "), str(row["tried"]), str(row["held"])) for row in rows]
    total = ("all", *(str(sum(row[key] for row in rows)) for key in ("tried", "held")))
    machine = rows[0]["machine"]
    where = ", ".join(f"{name} {machine[name]}" for name in ("cores", "python", "torch", "numpy"))
    lines = [_table(("group", "tried", "held"), [*counts, total]), ""]
    lines.append(f"`{rows[0]['command']}` on {machine['cpu']}; {where}. {rows[0].get('note', '')}".rstrip())
    for key, text in (("failures", "Did not hold"), ("skipped", "Not tried")):
        names = [name for row in rows for name in row[key]]
        if names:
            lines += ["", f"{text}: {'; '.join(names)}."]
    return "\n".join(lines)


def _render_defaults(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results of `bench defaults`: scores, verdicts and the time to SB3's score; toys apart."""
    toys = [row for row in rows if row["case"][0].isupper()]
    parts = [
        _render_cases([row for row in rows if row not in toys]),
        "",
        "Toys:",
        "",
        _render_cases(toys),
        "",
    ]
    names = ("cores", "python", "torch", "numpy", "gymnasium", "stable_baselines3", "box2d", "mujoco")
    for whose, key in (("Ours", "machine"), ("Peers", "peers_machine")):
        machine = rows[0][key]
        shown = ", ".join(f"{name} {machine[name]}" for name in names if name in machine)
        parts.append(f"{whose}: {machine['cpu']}, {shown}.")
    return "\n".join(parts)


def _render_cases(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of cases, and a sign test over them for each peer."""
    sides = {"ours": "Mission Gym", "sb3": "SB3's defaults", "cleanrl": "CleanRL's values"}
    peers = [side for side in sides if side != "ours"]
    table = []
    for row in rows:
        time, scores = row["s_to_score"].get("sb3", {}), row["scores"]
        verdicts = (judge(scores["ours"], scores[peer]) if peer in scores else "" for peer in peers)
        seconds = (_show_number(time.get(key)) if time else "" for key in ("ours", "peer", "ratio"))
        shown = (_show_scores(scores.get(side, [])) for side in sides)
        table.append((row["case"], _show_number(row["random"]), *shown, *verdicts, *seconds))
    head = ("environment", "random", *sides.values(), "against SB3", "against CleanRL")
    lines = [_table((*head, "s to SB3's score", "SB3", "ratio"), table), ""]
    seeds = {name: {len(row["scores"].get(side, [])) for row in rows} for side, name in sides.items()}
    counted = (f"{' or '.join(map(str, sorted(counts)))} of {name}" for name, counts in seeds.items())
    lines.append(f"Seeds: {', '.join(counted)}.")
    for peer in peers:
        gaps = [
            fmean(row["scores"]["ours"]) - fmean(row["scores"][peer])
            for row in rows
            if row["scores"].get(peer)
        ]
        wins, losses = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
        lines.append(
            f"Compared with {sides[peer]}, by the means: ahead in {wins}, behind in {losses}, equal in"
            f" {len(gaps) - wins - losses}; sign test p = {compute_sign_test(wins, losses):.2g}."
        )
    return "\n".join(lines)


def _show_scores(scores: Sequence[float]) -> str:
    """The mean over seeds with their range."""
    if not scores:
        return ""
    ends = " to ".join(map(_show_number, (min(scores), max(scores))))
    return f"{_show_number(fmean(scores))} ({'one seed' if len(scores) == 1 else ends})"


def _show_number(number: float | None) -> str:
    """Three digits, or whole thousands with commas; "never" for what was not reached."""
    if number is None:
        return "never"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{round(number, 3) + 0.0:.3g}"


def _render_acceptance(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the acceptance list kept: a row for each package, then what other ids of its family said."""
    seen = Counter(pair for row in rows for pair in row["versions"].items())
    usual = {(name, version) for (name, version), count in seen.items() if count > len(rows) / 2}
    counts = Counter(row["verdict"] for row in rows)
    ids = sum(row["family"].get("num_tried", 0) for row in rows)
    odd = sum(len(names) for row in rows for names in row["family"].get("problems", {}).values())
    table = [
        (
            row["package"],
            ", ".join(" ".join(pair) for pair in row["versions"].items() if pair not in usual),
            _code(" ".join([*row["variables"], shlex.join([row["env"], *row["flags"]])])),
            row["verdict"],
            _show_family(row["family"]),
            _escape("; ".join(filter(None, (_say_why(row), row["note"])))),
            row["date"],
        )
        for row in rows
    ]
    lines = [f"{len(rows)} packages: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}."]
    lines.append(f"Of {ids} other ids {ids - odd} were opened and stepped without an error.")
    lines += [f"Unless said otherwise: {', '.join(sorted(map(' '.join, usual)))}.", ""]
    head = ("package", "versions", "id and flags", "verdict", "other ids", "why, and notes", "tried on")
    lines += [_table(head, table), "", "### Other ids that are refused, or that `check` faults", ""]
    for row in rows:
        for problem, names in row["family"].get("problems", {}).items():
            shown = ", ".join(map(_code, names[:5])) + (
                f" and {len(names) - 5} more" if len(names) > 5 else ""
            )
            lines.append(f"- {row['package']}, {shown}: {_escape(problem)}")
    return "\n".join(lines)


def _show_family(family: Mapping[str, Any]) -> str:
    if not family:
        return ""
    return f"{family['num_tried'] - sum(map(len, family['problems'].values()))} of {family['num_tried']}"


def _say_why(row: Mapping[str, Any]) -> str:
    """Why a package is not simply there: the last command that did not end well."""
    commands: Mapping[str, Mapping[str, Any]] = row["commands"]
    if row["fault"] and commands["check"]["exit"] != 0:
        return f"`check` finds an error: {row['fault']}"
    if row["verdict"] == "accused":
        return f"`check`: {'; '.join(commands['check']['errors'])}"
    bad = [(name, told) for name, told in commands.items() if told["exit"] != 0]
    if not bad:
        return ""
    name, told = bad[-1]
    return f"`{name}`: {told['message'] or 'not finished in time'}"


def _escape(text: str) -> str:
    """A message as Markdown that shows it as it is."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", text)


def _metrics_of(algo: str) -> list[Metric]:
    """The numbers of training that this algorithm gives."""
    shared = [metric for metric in read_metrics() if metric.name.startswith("train/")]
    return [*load_algorithm(algo).metrics, *shared]


def _render_shipped(name: str, shipped: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """A block for each algorithm."""
    rows = {
        algo: {key: layers.values_for(row, algo, schema()) for key, row in shipped.items()}
        for algo in schema().algorithms
    }
    return {
        f"{name}-{algo}": _render_values(
            {key: row for key, row in named.items() if row},
            {key: origin for key, row in shipped.items() if (origin := layers.origin_of(row, algo))},
        )
        for algo, named in rows.items()
    }


def _render_fields() -> str:
    parts: list[str] = []
    for section, holder in schema().sections.items():
        rows = [
            (_show_flags(field), _code(field.type_text), _show_default(field), field.description)
            for field in schema().fields
            if field.section == section
        ]
        parts += [f"### `{section}:`", str(holder.__doc__)]
        parts.append(_table(("flag", "type", "default", "meaning"), rows))
    return "\n\n".join(parts)


def _show_flags(field: FieldInfo) -> str:
    if field.name == "env_id":
        return "`ENV`"
    flags = [field.name, *field.aliases, *([f"no_{field.name}"] if field.type_text == "bool" else [])]
    return ", ".join(f"`--{flag.replace('_', '-')}`" for flag in flags)


def _show_default(field: FieldInfo) -> str:
    return "empty" if field.default in ("", (), {}) else _code(show_value(field.default))


def _render_values(named: Mapping[str, Mapping[str, Any]], origins: Mapping[str, str]) -> str:
    """A row per name, a column per field that any of them sets. origins: of rows not measured here."""
    fields = list(dict.fromkeys(field for values in named.values() for field in values))
    rows = [
        (
            _name_row(name, origins),
            *(_code(show_value(values[field])) if field in values else "" for field in fields),
        )
        for name, values in named.items()
    ]
    return _table(("", *fields), rows)


def _name_row(name: str, origins: Mapping[str, str]) -> str:
    return _code(name) + (f" ({origins[name]})" if name in origins else "")


def _render_metrics(metrics: Iterable[Metric]) -> str:
    rows = [(_code(metric.name), metric.unit, metric.text, metric.bad) for metric in metrics]
    if not any(row[3] for row in rows):
        return _table(("name", "unit", "meaning"), [row[:3] for row in rows])
    return _table(("name", "unit", "meaning", "when it is bad"), rows)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def render_flags() -> str:
    """The module with the types of the Python functions' flags."""
    kinds: dict[str, dict[str, None]] = {}  # by name; algorithms may share one
    for field in schema().fields:
        for name in (field.name, *field.aliases):
            if name != "env_id":
                kinds.setdefault(name, {}).update(dict.fromkeys(_list_types(field)))
    lines = [f"    {name}: {' | '.join(_join_literals(found))}" for name, found in kinds.items()]
    return _FLAGS + "\n".join(lines) + "\n"


def _list_types(field: FieldInfo) -> list[str]:
    """The Python types that a field accepts, texts such as "200k" and "2h" included."""
    many, base = field.type_text.endswith(" ..."), field.type_text.removesuffix(" ...")
    if base == "key=value":
        return ["Mapping[str, Any]", "Sequence[str]", "str"]
    if many:
        return ["Sequence[str]", "str"]
    if base == "int,...":
        return ["Sequence[int]", "str"]
    if "FILE" in base:
        return ["Any"]  # a name, a file, False, or the stages themselves
    if ":N" in base:
        return ["str"]
    known = {"none": "None", "str": "str", "int": "int", "float": "float", "bool": "bool"}
    types = [known.get(part, f"{part!r}") for part in base.split("|")]
    section = schema().sections[field.section]
    for text in ("1k", "1h") if {"int", "float"} & set(types) else ():
        with suppress(ValueError):
            section.model_validate({field.name: text})
            return [*(each for each in types if not each.startswith("'")), "str"]
    return types


def _join_literals(types: Iterable[str]) -> list[str]:
    """The types in a fixed order, with all names in one Literal; None comes last."""
    found = list(types)
    names = [] if "str" in found else [each.replace("'", '"') for each in found if each.startswith("'")]
    plain = sorted((each for each in found if not each.startswith("'")), key=lambda each: each == "None")
    return [f"Literal[{', '.join(names)}]", *plain] if names else plain


if __name__ == "__main__":
    FLAGS.write_text(render_flags(), "utf-8")
    for page in find_pages():
        page.write_text(render(page.read_text("utf-8")), "utf-8")
