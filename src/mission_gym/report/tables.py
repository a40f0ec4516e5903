"""From plain values to rich views: plans, runs, configs, evaluations and findings.

Tables have no frames, so that they are plain text in a file, and fold at any width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, get_args

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from mission_gym.intervals import LEVEL, MIN_SEEDS, MIN_VALUES, bound_unseen
from mission_gym.report.formats import (
    MISSING,
    show_age,
    show_count,
    show_number,
    show_rate,
    show_value,
)
from mission_gym.report.whole_table import make_table as make_table
from mission_gym.store.groups import State

Document = Mapping[str, Any]
STATE_STYLES = {
    "running": "cyan", "starting": "cyan", "done": "green", "stopped": "yellow", "silent": "yellow",
    "failed": "bold red", "damaged": "red", "refused": "red",
}  # fmt: skip
_LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "ok": "green"}


def make_pairs(rows: Sequence[tuple[str, ...]]) -> Table:
    """Names and values in two columns, and reasons in a third, if there are any."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    for style in ("", "dim")[: max(map(len, rows), default=2) - 1]:
        table.add_column(style=style, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def view_plan(plan: Document) -> RenderableType:
    """The facts of a plan with their reasons."""
    return make_pairs([(fact["name"], fact["value"], fact["reason"]) for fact in plan["facts"]])


def view_wrappers(rows: Sequence[Document]) -> RenderableType:
    """`wrappers`."""
    return make_pairs([(row["usage"], row["text"], row["wrapper"]) for row in rows])


def view_runs(rows: Sequence[Document], now: float) -> RenderableType:
    """`runs list`; columns without any value are left out."""
    cells = {
        "run": [row["name"] for row in rows],
        "environment": [show_value(row["env_id"] or MISSING) for row in rows],
        "algo": [row["algo"] or MISSING for row in rows],
        "state": [Text(row["state"] or MISSING, style=STATE_STYLES.get(row["state"], "")) for row in rows],
        "step": [show_count(row["step"]) for row in rows],
        "steps/s": [show_count(row["fps"]) for row in rows],
        "return": [show_number(row["return_mean"]) for row in rows],
        "outcome": [_show_main(row, "outcome") for row in rows],
        "best": [_show_best(row) for row in rows],
        "age": [show_age(now - row["created"]) if row["created"] else "" for row in rows],
        "group": [row["group"] or "" for row in rows],
    }
    return _Fitting({name: column for name, column in cells.items() if any(column) or not rows})


class _Fitting:
    """A table of runs with the most important columns that fit without folding a cell."""

    _NUMBERS = ("step", "steps/s", "return", "best", "age")
    _OPTIONAL = ("best", "outcome", "environment", "age", "algo", "group", "steps/s")

    def __init__(self, cells: dict[str, list[Any]]) -> None:
        self._cells = cells

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = self._cells.keys() - self._OPTIONAL
        for name in self._OPTIONAL:
            kept |= {name} if self._measure(kept | {name}) <= options.max_width else set()
        cells = {name: column for name, column in self._cells.items() if name in kept}
        table = make_table(*cells, numbers=self._NUMBERS)
        for row in zip(*cells.values(), strict=True):
            table.add_row(*row)
        yield table
        if hidden := [name for name in self._cells if name not in cells]:
            yield Text(f"not shown in {options.max_width} columns: {', '.join(hidden)}", style="dim")

    def _measure(self, names: Set[str]) -> int:
        cells = ((name, *column) for name, column in self._cells.items() if name in names)
        return sum(max(map(len, column)) + 2 for column in cells) - 2


def _show_main(row: Document, key: str) -> str:
    return "" if row[key] is None else f"{row['main_outcome']} {show_rate(row[key])}"


def _show_best(row: Document) -> str:
    """The best evaluation: its main outcome, else its return."""
    if row["best_step"] is None:
        return ""
    return show_number(row["best_return"]) if row["best_outcome"] is None else show_rate(row["best_outcome"])


def count_states(states: Sequence[str]) -> str:
    """The number of jobs in each state."""
    return ", ".join(f"{states.count(state)} {state}" for state in get_args(State) if state in states)


def list_failures(status: Document, besides: str | None = None) -> list[tuple[str, str]]:
    """The kinds of failures of environments, lost episodes and replaced workers; no row without any. besides:
    the text of a kind that is left out."""
    lost, restarts = status.get("env_failures") or 0, status.get("worker_restarts") or 0
    kinds = [
        f"{kind['text']} ({show_times(kind['count'])}, first: {kind['place']})"
        for kind in status.get("failures") or ()
        if kind["text"] != besides
    ]
    if not (lost or restarts or kinds):
        return []
    counts = f"{show_count(lost)} episodes lost, {show_count(restarts)} workers replaced"
    return [("failures", text) for text in (*kinds, counts)]


def show_times(count: int) -> str:
    """How often something happened."""
    return "once" if count == 1 else f"{show_count(count)} times"


def list_stage(status: Document) -> list[tuple[str, str]]:
    """The curriculum stage of a run; no row without one."""
    stage = status.get("stage")
    return [("stage", f"{stage['number']} of {stage['of']}: {stage['name']}")] if stage else []


def show_confirmed(episodes: int | None) -> str:
    """The number of episodes that confirmed the best checkpoint, as the end of a sentence."""
    return f", confirmed on {show_count(episodes)} more episodes" if episodes else ""


def show_choice(best: Document) -> str:
    """How the best evaluation was chosen, as the end of a sentence: the highest of several is a lucky one,
    unless further episodes confirmed it."""
    if best.get("confirmed") or (best.get("chosen_from") or 1) < 2:
        return show_confirmed(best.get("confirmed"))
    return f", the highest of {best['chosen_from']} evaluations and so too high on average"


def view_run(document: Document) -> RenderableType:
    """`runs show`."""
    state = document["state"] or MISSING
    of_total = f" of {show_count(document['total'])}" if document["total"] else ""
    rows = [
        ("run", document["name"]),
        ("path", document["path"]),
        ("environment", show_value(document["env_id"] or MISSING)),
        ("algorithm", f"{document['algo'] or MISSING}, seed {show_value(document['seed'])}"),
        ("state", f"{state}: {document['cause']}" if document["cause"] else state),
        ("steps", f"{show_count(document['step'])}{of_total}"),
        *list_stage(document),
        ("updates", f"{show_count(document['updates'])}"),
        ("gradient steps", show_count(document["gradient_steps"])),
        ("episodes", show_count(document["episodes"])),
        *list_failures(document),
        ("rate", f"{show_count(document['fps'])} steps/s, including evaluations and checkpoints"),
        ("training", _show_prediction(document["train_fps"], document["predicted_fps"])),
        ("return", f"{show_number(document['return_mean'])} over the last 100 training episodes"),
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
        numbers = ("evaluated at", "episodes")
        table = make_table("evaluated at", "suite", "episodes", "return", numbers=numbers)
        for result in document["evals"]:
            counts = show_count(result["step"]), result["suite"], show_count(result["episodes"])
            table.add_row(*counts, show_interval(result, "return"))
        fewest = min(result["episodes"] for result in document["evals"])
        note = f"95 % intervals; with {show_count(fewest)} episodes, {show_unseen(fewest)}"
        views += [Text(), table, Text(note, style="dim")]
    return Group(*views)


def list_verdict(verdict: Document | None) -> list[tuple[str, str]]:
    """The bottleneck of a run, and what to change; no row if it is unknown."""
    if not verdict:
        return []
    return [
        ("bound by", f"{verdict['bound']}: {verdict['evidence']}"),
        *(("try" if not number else "", text) for number, text in enumerate(verdict["advice"])),
    ]


def _show_prediction(achieved: float | None, predicted: float | None) -> str:
    """The rate of collecting and learning, compared with the plan."""
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
    chosen = (f"{show_interval(run['best'], 'return')}{show_choice(run['best'])}" for run in runs)
    table.add_row("best evaluation", *chosen)
    table.add_row("at step", *(show_count(run["best"]["step"]) for run in runs))
    _add_outcomes(table, [run["best"]["outcomes"] for run in runs])
    for path, values in document["differences"].items():
        table.add_row(path, *(show_value(value) for value in values))
    if others := document["of_one_algorithm"]:
        sections = sorted({path.partition(".")[0] for path in others})
        note = f"{len(others)} settings of {' and '.join(sections)} are left out; --json has them"
        return Group(table, Text(note, style="dim"))
    return table


def view_lineage(document: Document) -> RenderableType:
    """`runs lineage`: a tree with the oldest ancestor at the root."""
    ancestors = document["ancestors"]
    origin = f" from step {show_count(ancestors[0]['step'])}" if ancestors else ""
    labels: list[tuple[str, str | Text]] = [
        (each["name"], each["name"] + ("" if each["exists"] else " (removed)"))
        for each in reversed(ancestors)
    ]
    labels.append((document["run"], Text(document["run"], style="bold").append(origin, style="dim")))
    nodes: dict[str, Tree] = {}
    for name, label in labels:
        nodes[name] = list(nodes.values())[-1].add(label) if nodes else Tree(label)
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
    """A mean with its 95 % interval, or why it has none."""
    mean, low, high = (result.get(f"{name}_{part}") for part in ("mean", "low", "high"))
    episodes = result.get("episodes")
    if low is not None:
        return f"{show_number(mean)} ({show_number(low)} to {show_number(high)})"
    if mean is None or episodes is None:
        return show_number(mean)
    why = f"all {episodes} equal" if episodes >= MIN_VALUES else f"no interval below {MIN_VALUES} episodes"
    return f"{show_number(mean)} ({why})"


def show_unseen(episodes: int) -> str:
    """The limit of every interval of that many episodes: it covers the kinds of episodes that were played."""
    return f"events in under {show_rate(bound_unseen(episodes, LEVEL))} of episodes may be unseen"


def show_outcome(rate: Document) -> str:
    """A rate with its 95 % interval, if it has one."""
    bounds = f" ({show_rate(rate['low'])} to {show_rate(rate['high'])})" if rate["low"] is not None else ""
    return f"{show_rate(rate['rate'])}{bounds}"


def show_seeds(estimate: Document) -> str:
    """The result of seeds: their values below 5, the mean below 10, then the interquartile mean with its
    interval."""
    values, mean, low = (estimate.get(key) for key in ("values", "mean", "low"))
    if not values:
        return show_number(estimate["iqm"])
    if low is not None:
        bounds = f"{show_number(low)} to {show_number(estimate['high'])}"
        return f"IQM {show_number(estimate['iqm'])} (95 %: {bounds})"
    shown = ", ".join(map(show_number, values))
    if len(values) < MIN_SEEDS:
        return f"{shown} (too few for a mean)"
    if len(values) >= MIN_VALUES and values[0] == values[-1]:
        return f"{show_number(mean)} (all equal)"
    enough = (
        f"{MIN_VALUES} seeds" if len(values) < MIN_VALUES else f"{MIN_VALUES} different seeds of each job"
    )
    return f"mean {show_number(mean)} of {shown} (no interval below {enough})"


def view_results(results: Mapping[str, Document]) -> RenderableType:
    """Evaluations, a column each; `eval`, `baselines` and `demo`."""
    table = make_table("", *results)
    documents = list(results.values())
    table.add_row("return", *(show_interval(result, "return") for result in documents))
    table.add_row("length", *(show_number(result["length_mean"]) for result in documents))
    _add_outcomes(table, [result["outcomes"] for result in documents])
    metrics = [result.get("metrics", {}) for result in documents]
    for name in dict.fromkeys(name for each in metrics for name in each):
        found = [each.get(name) for each in metrics]
        cells = (each and {f"x_{key}": value for key, value in each.items()} | dict(each) for each in found)
        table.add_row(name, *(show_interval(each, "x") if each else MISSING for each in cells))
    for kind in dict.fromkeys(kind for result in documents for kind in result.get("agents", {})):
        types = [result.get("agents", {}).get(kind) for result in documents]
        shown = (show_interval(each, "return") if each else MISSING for each in types)
        table.add_row(f"return of one {kind}", *shown)
        _add_outcomes(table, [each["outcomes"] if each else {} for each in types], f"{kind} ")
    episodes = min(result["episodes"] for result in documents)
    caption = f"{show_count(episodes)} episodes each, seeds of the report suite, 95 % intervals; "
    caption += show_unseen(episodes)
    if failed := sum(result.get("failed", 0) for result in documents):
        caption += f"; {show_count(failed)} episodes failed and are not counted"
    return Group(table, Text(caption, style="dim"))


def _add_outcomes(table: Table, outcomes: Sequence[Document], prefix: str = "") -> None:
    """A row for each outcome."""
    for name in dict.fromkeys(name for each in outcomes for name in each):
        rates = (each.get(name) for each in outcomes)
        table.add_row(f"{prefix}{name}", *(show_outcome(rate) if rate else MISSING for rate in rates))


def view_findings(findings: Sequence[Document]) -> RenderableType:
    """`check`: a paragraph per finding, with its reason and its fix."""
    views: list[RenderableType] = []
    for finding in findings:
        level = (f"{finding['level']:<8}", _LEVEL_STYLES.get(finding["level"], "cyan"))
        views.append(Text.assemble(level, f"{finding['name']}: {finding['what']}"))
        more = [finding["why"], f"fix: {finding['fix']}" if finding["fix"] else ""]
        views += [Padding(Text(text, style="dim"), (0, 0, 0, 8), expand=False) for text in more if text]
    return Group(*views)
