"""From plain values to what rich prints: plans, runs, configs, evaluations, findings, benchmarks.

Tables have no frames, so that they are text in a file, and fold at any width rather than break.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from mission_gym.report.formats import MISSING, show_count, show_number, show_rate, show_value

Document = Mapping[str, Any]
_LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "ok": "green"}


def make_pairs(rows: Sequence[tuple[str, ...]]) -> Table:
    """Names and values in two columns, and reasons in a third where there are any."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    for style in ("", "dim")[: max(map(len, rows), default=2) - 1]:
        table.add_column(style=style, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def make_table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    """An empty table without frames; `numbers` are set to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return table


def view_plan(plan: Document) -> RenderableType:
    """The facts of a plan with their reasons."""
    return make_pairs([(fact["name"], fact["value"], fact["reason"]) for fact in plan["facts"]])


def view_wrappers(rows: Sequence[Document]) -> RenderableType:
    """`wrappers`."""
    return make_pairs([(row["usage"], row["text"], row["wrapper"]) for row in rows])


def view_runs(rows: Sequence[Document]) -> RenderableType:
    """`runs list`."""
    numbers = ("step", "steps/s", "return")
    table = make_table("run", "state", *numbers, numbers=numbers)
    for row in rows:
        table.add_row(
            row["name"],
            row["state"] or MISSING,
            show_count(row["step"]),
            show_count(row["fps"]),
            show_number(row["return_mean"]),
        )
    return table


def show_failures(status: Document) -> str:
    """Episodes that were lost, and processes that were replaced."""
    lost, restarts = show_count(status.get("env_failures")), show_count(status.get("worker_restarts"))
    return f"{lost} of environments; {restarts} workers replaced"


def list_stage(status: Document) -> list[tuple[str, str]]:
    """The stage of the curriculum that a run is in; no row without one."""
    stage = status.get("stage")
    return [("stage", f"{stage['number']} of {stage['of']}: {stage['name']}")] if stage else []


def show_confirmed(episodes: int | None) -> str:
    """On how many more episodes the best was confirmed, as the end of a sentence."""
    return f", confirmed on {show_count(episodes)} more episodes" if episodes else ""


def view_run(document: Document) -> RenderableType:
    """`runs show`."""
    state = document["state"] or MISSING
    of_total = f" of {show_count(document['total'])}" if document["total"] else ""
    rows = [
        ("run", document["name"]),
        ("path", document["path"]),
        ("environment", show_value(document["env_id"] or MISSING)),
        ("state", f"{state}: {document['cause']}" if document["cause"] else state),
        ("steps", f"{show_count(document['step'])}{of_total}"),
        *list_stage(document),
        ("updates", f"{show_count(document['updates'])}"),
        ("gradient steps", show_count(document["gradient_steps"])),
        ("episodes", show_count(document["episodes"])),
        ("failures", show_failures(document)),
        ("rate", f"{show_count(document['fps'])} steps/s, evaluations and checkpoints included"),
        ("training", _show_prediction(document["train_fps"], document["predicted_fps"])),
        ("return", f"{show_number(document['return_mean'])} over the last 100 episodes of training"),
        ("best", f"step {show_count(document['best_step'])}{show_confirmed(document['best_confirmed'])}"),
        ("checkpoints", ", ".join(show_count(step) for step in document["checkpoints"]) or "none"),
    ]
    if document["parent"]:
        rows.append(("branch of", f"{document['parent']} at step {show_count(document['parent_step'])}"))
    rows += list_verdict(document["verdict"])
    if document["notes"]:
        rows.append(("notes", show_value(document["notes"])))
    views: list[RenderableType] = [make_pairs(rows)]
    if document["evals"]:
        table = make_table(
            "evaluated at", "suite", "episodes", "return", numbers=("evaluated at", "episodes")
        )
        for result in document["evals"]:
            table.add_row(
                show_count(result["step"]),
                result["suite"],
                show_count(result["episodes"]),
                show_interval(result, "return"),
            )
        views += [Text(), table]
    return Group(*views)


def list_verdict(verdict: Document | None) -> list[tuple[str, str]]:
    """What bounds a run, and what to change; no row where nothing is known."""
    if not verdict:
        return []
    return [
        ("bound by", f"{verdict['bound']}: {verdict['evidence']}"),
        *(("try" if not number else "", text) for number, text in enumerate(verdict["advice"])),
    ]


def _show_prediction(achieved: float | None, predicted: float | None) -> str:
    """The rate of collecting and learning beside what the plan said."""
    off = f", {100 * (achieved / predicted - 1):+.0f} %" if achieved and predicted else ""
    return f"{show_count(achieved)} steps/s (predicted {show_count(predicted)}{off})"


def view_comparison(document: Document) -> RenderableType:
    """`runs compare`: a column per run."""
    runs = document["runs"]
    table = make_table("", *(run["name"] for run in runs))
    table.add_row("state", *(run["state"] or MISSING for run in runs))
    table.add_row("steps", *(show_count(run["step"]) for run in runs))
    table.add_row("steps/s", *(show_count(run["fps"]) for run in runs))
    table.add_row("return", *(show_number(run["return_mean"]) for run in runs))
    table.add_row("best evaluation", *(show_interval(run["best"], "return") for run in runs))
    table.add_row("at step", *(show_count(run["best"]["step"]) for run in runs))
    for path, values in document["differences"].items():
        table.add_row(path, *(show_value(value) for value in values))
    return table


def view_lineage(document: Document) -> RenderableType:
    """`runs lineage`: the eldest ancestor at the root."""
    nodes: dict[str, Tree] = {}
    above: Tree | None = None
    for ancestor in reversed(document["ancestors"]):
        name = ancestor["name"] + ("" if ancestor["exists"] else " (removed)")
        above = nodes[ancestor["name"]] = Tree(name) if above is None else above.add(name)
    title = Text(document["run"], style="bold")
    steps = [ancestor["step"] for ancestor in document["ancestors"]]
    if above is not None and steps:
        title.append(f" from step {show_count(steps[0])}", style="dim")
    own = Tree(title) if above is None else above.add(title)
    nodes[document["run"]] = own
    for child in document["descendants"]:
        label = Text(child["name"]).append(f" from step {show_count(child['step'])}", style="dim")
        nodes[child["name"]] = nodes[child["parent"]].add(label)
    return next(iter(nodes.values()))


def view_config(document: Mapping[str, Document]) -> RenderableType:
    """`config`: each value with its source."""
    table = make_table("field", "value", "source")
    for path, entry in document.items():
        table.add_row(path, show_value(entry["value"]), Text(entry["source"], style="dim"))
    return table


def show_interval(result: Document, name: str) -> str:
    """A mean with its 95 % interval, as far as they are there."""
    mean, low, high = (result.get(f"{name}_{part}") for part in ("mean", "low", "high"))
    bounds = f" ({show_number(low)} to {show_number(high)})" if low is not None else ""
    return f"{show_number(mean)}{bounds}"


def show_outcome(rate: Document) -> str:
    """A rate with its 95 % interval."""
    return f"{show_rate(rate['rate'])} ({show_rate(rate['low'])} to {show_rate(rate['high'])})"


def show_metric(metric: Document) -> str:
    """A mean with its 95 % interval."""
    return show_interval({f"x_{part}": value for part, value in metric.items()}, "x")


def view_results(results: Mapping[str, Document]) -> RenderableType:
    """Evaluations side by side, a column each; `eval`, `baselines` and `demo`."""
    outcomes = dict.fromkeys(name for result in results.values() for name in result["outcomes"])
    table = make_table("", *results)
    table.add_row("return", *(show_interval(result, "return") for result in results.values()))
    table.add_row("length", *(show_number(result["length_mean"]) for result in results.values()))
    for name in outcomes:
        rates = (result["outcomes"].get(name) for result in results.values())
        table.add_row(name, *(show_outcome(rate) if rate else MISSING for rate in rates))
    told = [result.get("metrics", {}) for result in results.values()]
    for name in dict.fromkeys(name for each in told for name in each):
        if any(each[name]["mean"] for each in told if name in each):  # the others never happened
            table.add_row(name, *(show_metric(each[name]) if name in each else MISSING for each in told))
    for kind in dict.fromkeys(kind for result in results.values() for kind in result.get("agents", {})):
        types = [result.get("agents", {}).get(kind) for result in results.values()]
        shown = (show_interval(each, "return") if each else MISSING for each in types)
        table.add_row(f"return of one {kind}", *shown)
        for name in dict.fromkeys(name for each in types if each for name in each["outcomes"]):
            rates = (each["outcomes"].get(name) if each else None for each in types)
            table.add_row(f"{kind} {name}", *(show_outcome(rate) if rate else MISSING for rate in rates))
    counts = {result["episodes"] for result in results.values()}
    caption = f"{show_count(min(counts))} episodes each, seeds of the report suite, 95 % intervals"
    return Group(table, Text(caption, style="dim"))


def view_findings(findings: Sequence[Document]) -> RenderableType:
    """`check`: a paragraph per finding, what and why and the fix."""
    views: list[RenderableType] = []
    for finding in findings:
        level = (f"{finding['level']:<8}", _LEVEL_STYLES.get(finding["level"], "cyan"))
        views.append(Text.assemble(level, f"{finding['name']}: {finding['what']}"))
        more = [finding["why"], f"fix: {finding['fix']}" if finding["fix"] else ""]
        views += [Padding(Text(text, style="dim"), (0, 0, 0, 8), expand=False) for text in more if text]
    return Group(*views)


def view_bench(rows: Sequence[Document]) -> RenderableType:
    """`bench`: ours beside the best peer; below it every further key, and the machines once."""
    table = make_table("case", "ours", "unit", "peer", "ratio", numbers=("ours", "peer", "ratio"))
    details: list[RenderableType] = []
    machines = ("machine", "peers_machine")
    hidden = ("case", "ours", "ratio", "unit", *machines)
    for row in rows:
        # The ratio says which way is better.
        peers = [number for number in row["peers"].values() if number is not None]
        more_is_better = bool(peers and row["ratio"]) and (row["ours"] >= max(peers)) == (row["ratio"] >= 1)
        best = (max if more_is_better else min)(peers) if peers else None
        table.add_row(
            row["case"], show_number(row["ours"]), row["unit"], show_number(best), show_number(row["ratio"])
        )
        more = {key: value for key, value in row.items() if key not in hidden and value not in ("", {}, None)}
        if more:
            text = "; ".join(f"{key.replace('_', ' ')} {_show_deep(value)}" for key, value in more.items())
            details.append(Text(f"{row['case']}: {text}", style="dim"))
    for key in machines:
        machine = next((row[key] for row in rows if key in row), None)
        if machine:
            details.append(Text(f"{key.replace('_', ' ')}: {_show_deep(machine)}", style="dim"))
    return Group(table, Text(), *details)


def view_faults(rows: Sequence[Document]) -> RenderableType:
    """`bench faults`: how many faults of each group were tried and held; below it those that did not."""
    table = make_table("group", "tried", "held", numbers=("tried", "held"))
    for row in rows:
        table.add_row(row["case"].removeprefix("faults: "), str(row["tried"]), str(row["held"]))
    table.add_row("all", *(str(sum(row[key] for row in rows)) for key in ("tried", "held")))
    details = [
        Text(f"{name}: {what}", style=style)
        for row in rows
        for key, style in (("failures", "red"), ("skipped", "dim"))
        for name, what in row[key].items()
    ]
    return Group(table, Text(), *details)


def _show_deep(value: Any) -> str:
    """Numbers in four digits, wherever they are."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_show_deep(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_show_deep(item) for item in value)
    if isinstance(value, float):
        return show_number(value)
    return show_value(value)
