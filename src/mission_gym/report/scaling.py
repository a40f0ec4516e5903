"""The scaling table of `tune`: environments against steps per second and memory, as text and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from math import log2
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mission_gym.report.curves import find_ticks
from mission_gym.report.formats import show_count, show_duration
from mission_gym.report.tables import make_pairs, make_table

Document = Mapping[str, Any]
_BAR = 14  # characters of the longest bar: the table fits a terminal of 80
_SIZE, _LEFT, _RIGHT, _TOP, _BOTTOM = (1120, 640), 130, 60, 120, 80
_INK, _QUIET, _LINE, _MARK = "#1b1f24", "#8a929c", "#2f6db5", "#d1542b"


def view_advice(document: Document) -> RenderableType:
    """`tune`: the plan, why, and the table."""
    times = ", ".join(f"{name} {show_duration(s)}" for name, s in document["predicted_s"].items())
    threads = f", {document['threads']} threads" if document["threads"] > 1 else ""
    source = "kept from before" if document["cached"] else f"measured in {document['spent_s']:.0f} s"
    rows = [
        ("environment", document["env_id"]),
        ("environments", f"{document['n_envs']} x {document['n_steps_per_env']} steps"),
        ("backend", document["how"]),
        ("learner", f"{document['kernel']} kernel on {document['device']}{threads}"),
        ("expected", f"{show_count(document['predicted_steps_per_s'])} steps/s of training, {source}"),
        ("times", times),
        ("memory", f"{document['memory_bytes'] / 1e9:.2f} GB"),
        *(("" if number else "reasons", reason) for number, reason in enumerate(document["reasons"])),
        *(("" if number else "changes", change) for number, change in enumerate(document["changes"])),
    ]
    parts: list[RenderableType] = [make_pairs(rows), Text(), _make_table(document["scaling"])]
    if "cluster" in document:
        parts += [Text(), view_cluster(document["cluster"])]
    return Group(*parts)


def view_cluster(document: Document) -> RenderableType:
    """The nodes and versions of a cluster, and the measured cost of its messages."""
    costs = document["costs"]
    nodes = ", ".join(f"{node['host']} {node['num_cpus']} CPUs" for node in document["nodes"])
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    return make_pairs(
        [
            ("cluster", f"{document['address']}: {nodes}"),
            ("versions", versions),
            (
                "messages",
                f"{1e3 * costs['latency_s']:.1f} ms per call, {1e3 * costs['call_s']:.2f} ms of the driver;"
                f" put {1e3 * costs['put_s']:.1f} ms + {1e9 * costs['put_byte_s']:.2f} ms per MB, get"
                f" {1e9 * costs['get_byte_s']:.2f}, between nodes {1e9 * costs['carry_byte_s']:.2f}",
            ),
        ]
    )


def _make_table(points: Sequence[Document]) -> Table:
    numbers = ("environments", "steps/s", "memory")
    table = make_table(*numbers, "how", "", numbers=numbers)
    most = max(point["steps_per_s"] for point in points)
    for point in points:
        bar = "#" * max(1, round(_BAR * point["steps_per_s"] / most))
        mark = " <- knee" if point["knee"] else "" if point["fits"] else " does not fit in memory"
        table.add_row(
            show_count(point["n_envs"]),
            show_count(point["steps_per_s"]),
            f"{point['memory_bytes'] / 1e9:.2f} GB",
            point["how"],
            bar + mark,
        )
    return table


def make_scaling_png(document: Document) -> bytes:
    """The table as a PNG: steps per second over environments, doubling; the knee and memory marked."""
    from PIL import Image, ImageDraw, ImageFont

    points = document["scaling"]
    image = Image.new("RGB", _SIZE, "white")
    draw = ImageDraw.Draw(image)
    font, large = ImageFont.load_default(20), ImageFont.load_default(26)
    (width, height), most = _SIZE, max(point["steps_per_s"] for point in points)
    most = find_ticks(0.0, most)[-1]
    spans = max(log2(points[-1]["n_envs"]), 1.0)

    def place(n_envs: int, rate: float) -> tuple[float, float]:
        across = (width - _LEFT - _RIGHT) * log2(n_envs) / spans
        return _LEFT + across, height - _BOTTOM - (height - _TOP - _BOTTOM) * rate / most

    draw.text((_LEFT, 22), f"{document['env_id']}: training rate on this machine", _INK, large)
    draw.text((_LEFT, 56), "steps/s over environments, predicted from measured parts", _QUIET, font)
    for rate in find_ticks(0.0, most):
        y = place(1, rate)[1]
        draw.line((_LEFT, y, width - _RIGHT, y), "#e3e6ea", 1)
        draw.text((_LEFT - 14, y), show_count(rate), _QUIET, font, anchor="rm")
    places = [place(point["n_envs"], point["steps_per_s"]) for point in points]
    draw.line(places, _LINE, 4, joint="curve")
    for point, (x, y) in zip(points, places, strict=True):
        color, size = (_MARK, 9) if point["knee"] else (_LINE if point["fits"] else _QUIET, 6)
        draw.ellipse((x - size, y - size, x + size, y + size), color)
        draw.text((x, height - _BOTTOM + 14), show_count(point["n_envs"]), _INK, font, anchor="ma")
        memory = f"{point['memory_bytes'] / 1e9:.2f} GB"
        draw.text((x, height - _BOTTOM + 40), memory, _QUIET, font, anchor="ma")
        if point["knee"]:
            label = f"knee: {show_count(point['steps_per_s'])} steps/s"
            draw.text((x, y - 16), label, _MARK, font, anchor="mb" if _LEFT + 90 < x < width - 130 else "lb")
    stream = BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
