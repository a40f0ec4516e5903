"""The routes: three pages, the JSON of their charts, panels as HTML, videos, and event streams.

Every response is made from the present runs folder. Names in addresses are looked up in the index; they never
become paths.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from mission_gym.errors import MissionGymError
from mission_gym.report.dashboard.follow import Follower, encode, read_status, stamp_files
from mission_gym.report.dashboard.guard import Guard
from mission_gym.report.dashboard.index import Index, read_first_event
from mission_gym.report.dashboard.rows import find_last, make_columns, read_part
from mission_gym.report.documents import best_evaluation, compare_runs
from mission_gym.report.groups import RunSet, compare_groups, render_groups
from mission_gym.report.pages import describe_panels, list_videos, make_templates, render_panels
from mission_gym.report.sweeps import render_sweep
from mission_gym.store.evals import SELECT, read_baselines, read_evals
from mission_gym.store.groups import GroupDir
from mission_gym.store.metrics import Metric
from mission_gym.store.rundir import RunDir

_STATIC = Path(__file__).with_name("static")
_EVAL_KEYS = ("step", "episodes", "return_mean", "return_low", "return_high", "outcomes")
_NUM_COMPARED = 40  # runs of one comparison
_NUM_LOOKED_UP = 1000
_NUM_KEPT = 16  # runs whose panels are cached as HTML
_NUM_TIMED = 500  # rows that the times of a long run are estimated from


class _Pages:
    """The responses; each method is one route."""

    def __init__(self, index: Index, metrics: Sequence[Metric], is_ending: Callable[[], bool]) -> None:
        self._index, self._follower = index, Follower(index, is_ending)
        self._metrics = [metric._asdict() for metric in metrics]
        self._templates = make_templates()
        self._lock = threading.Lock()
        self._panels: dict[Path, tuple[Any, dict[str, str]]] = {}  # their source, and their HTML

    def routes(self) -> list[Route | Mount]:
        pages: Mapping[str, Callable[[Request], Any]] = {
            "/": self.runs,
            "/run/{name}": self.run,
            "/compare": self.compare,
            "/api/runs": self.list_runs,
            "/api/metrics": self.list_metrics,
            "/api/run/{name}": self.describe,
            "/api/run/{name}/rows": self.rows,
            "/api/run/{name}/panels": self.panels,
            "/api/run/{name}/video/{video}": self.video,
            "/api/compare": self.differences,
            "/events": self.index_events,
            "/events/{name}": self.run_events,
            "/static/style.css": self.style,
        }
        made: list[Route | Mount] = [Route(path, endpoint) for path, endpoint in pages.items()]
        return [*made, Mount("/static", StaticFiles(directory=_STATIC))]

    def refuse(self, request: Request, code: int, text: str) -> Response:
        """A page with the problem and what to do."""
        return self._page("message.html", code=code, text=text)

    def runs(self, request: Request) -> Response:
        return self._page("runs.html", folder=str(self._index.runs_dir))

    def run(self, request: Request) -> Response:
        run = self._find(request)
        group = self._index.find_group_of(run.name)
        return self._page("run.html", name=run.name, group=group, panels=self._render_panels(run))

    def compare(self, request: Request) -> Response:
        return self._page("compare.html")

    def list_runs(self, request: Request) -> Response:
        return _json(self._index.changes(0))

    def style(self, request: Request) -> Response:
        return Response(self._templates.get_template("style.css").render(), media_type="text/css")

    def list_metrics(self, request: Request) -> Response:
        return _json(self._metrics)

    def describe(self, request: Request) -> Response:
        """The data of a run's charts."""
        run = self._find(request)
        part = read_part(run.metrics_jsonl)
        rows = {"columns": make_columns(part.rows), "end": part.end, "is_sample": part.is_sample}
        return _json(rows | {"status": read_status(run)} | _describe_context(run))

    def rows(self, request: Request) -> Response:
        """The rows between two steps, for a zoomed chart."""
        low, high = (_number(request.query_params.get(name)) for name in ("low", "high"))
        part = read_part(self._find(request).metrics_jsonl, low, high)
        return _json({"columns": make_columns(part.rows), "is_sample": part.is_sample})

    def panels(self, request: Request) -> Response:
        """The panels as HTML, and the data of the charts that are not rows."""
        run = self._find(request)
        return _json({"panels": self._render_panels(run)} | _describe_context(run))

    def video(self, request: Request) -> Response:
        run, name = self._find(request), request.path_params["video"]
        if name not in [video["name"] for video in list_videos(run)]:
            raise HTTPException(404, f"run {run.name} has no video {name!r}")
        return FileResponse(run.path / name)

    def differences(self, request: Request) -> Response:
        """The results of runs and the values that differ, as HTML."""
        names = request.query_params.getlist("run")[:_NUM_LOOKED_UP]
        runs = [run for name in names if (run := self._index.find(name)) is not None]
        try:
            document = compare_runs(runs[:_NUM_COMPARED], lambda text: None)
        except MissionGymError as error:
            raise HTTPException(409, str(error)) from error
        html = self._templates.get_template("panels/compare.html").render(
            document, num_left_out=max(0, len(runs) - _NUM_COMPARED)
        )
        groups = (self._index.find_group(name) for name in request.query_params.getlist("group"))
        own = [self._render_group(group) for group in groups if group is not None]
        return _json({"html": "".join([*own, html])})

    def _render_group(self, group: GroupDir) -> str:
        """The trials of a sweep, or the variants of another group."""
        try:
            if group.read().kind == "sweep":
                return render_sweep(self._templates, group)
            sets: dict[str, list[RunDir]] = {}
            for job in group.read_jobs().values():
                run = self._index.find(job.run.name) if job.run is not None else None
                if run is not None:
                    sets.setdefault(job.request.variant, []).append(run)
            compared = compare_groups([RunSet(name, tuple(runs)) for name, runs in sets.items()])
            return render_groups(self._templates, compared, title=group.path.name, with_charts=False)
        except MissionGymError as error:
            raise HTTPException(409, str(error)) from error

    def index_events(self, request: Request) -> Response:
        self._check_streams()
        version = _last_seen(request, "since")
        return _stream(self._follower.follow_index(version))

    def run_events(self, request: Request) -> Response:
        self._check_streams()
        run = self._find(request)
        offset = _last_seen(request, "offset")
        return _stream(self._follower.follow_run(run.name, offset))

    def _check_streams(self) -> None:
        if self._follower.is_full:
            raise HTTPException(503, "too many pages are open; close some of them")

    def _find(self, request: Request) -> RunDir:
        run = self._index.find(request.path_params["name"])
        if run is None:
            raise HTTPException(404, f"there is no run {request.path_params['name']!r} in this folder")
        return run

    def _render_panels(self, run: RunDir) -> dict[str, str]:
        """The panels of a run, cached until one of its files changes."""
        with self._lock:  # several tabs ask at once
            source = (read_status(run), stamp_files(run, "", "checkpoints", run.metrics_jsonl.name))
            known = self._panels.pop(run.path, None)
            html = known[1] if known is not None and known[0] == source else self._make_panels(run)
            self._panels[run.path] = (source, html)
            for path in list(self._panels)[:-_NUM_KEPT]:
                del self._panels[path]
        return html

    def _make_panels(self, run: RunDir) -> dict[str, str]:
        """Render the panels; times of a long run are scaled up from a sample."""
        part = read_part(run.metrics_jsonl, num_rows=_NUM_TIMED)
        last = (find_last(run.metrics_jsonl, kind) for kind in ("timeline", "end"))
        took = part.rows[-1].get("time/time_elapsed") if part.is_sample and part.rows else None
        whole_s = float(took) if isinstance(took, int | float) else None
        panels = describe_panels(run, [*part.rows, *filter(None, last)], whole_s)
        return render_panels(self._templates, panels)

    def _page(self, template: str, *, code: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(code=code, **values), code)


def make_app(
    index: Index,
    metrics: Sequence[Metric],
    token: str,
    host: str,
    is_ending: Callable[[], bool],
    *,
    in_notebook: bool = False,
) -> ASGIApp:
    """The server of one runs folder. metrics: the texts of the charts. is_ending: whether event streams
    should end."""
    pages = _Pages(index, metrics, is_ending)

    async def explain(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return pages.refuse(request, error.status_code, error.detail)
        return pages.refuse(request, 500, "see the error in the terminal of `mission-gym watch`")

    app = Starlette(routes=pages.routes(), exception_handlers={HTTPException: explain, Exception: explain})
    return Guard(app, token, host, pages.refuse, in_notebook=in_notebook)


def _describe_context(run: RunDir) -> dict[str, Any]:
    """The data of the charts that are not rows."""
    first, best = read_first_event(run), best_evaluation(run)
    return {
        "main_outcome": first.main_outcome,
        "stages": first.stages,
        "evals": _list_evals(run),
        "best": None
        if best is None
        else {key: best.get(key) for key in (*_EVAL_KEYS, "confirmed", "chosen_from")},
        "baselines": read_baselines(run),
    }


def _list_evals(run: RunDir) -> list[dict[str, Any]]:
    """The evaluations of the selection suite, by step."""
    chosen = (result for result in read_evals(run) if result["suite"] == SELECT)
    return [{key: result.get(key) for key in _EVAL_KEYS} for result in chosen]


def _json(document: Any) -> Response:
    return Response(encode(document), media_type="application/json")


_stream = partial(StreamingResponse, media_type="text/event-stream")


def _number(text: str | None) -> int | None:
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) < 19
    return int(text) if text and is_number else None


def _last_seen(request: Request, name: str) -> int:
    """Where a stream continues: the id of the last event, or else the start given by the page."""
    last = _number(request.headers.get("last-event-id"))
    return last if last is not None else _number(request.query_params.get(name)) or 0
