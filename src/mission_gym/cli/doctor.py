"""`doctor`: what this machine can do. Standard library only, as tyro or rich may be what is broken."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from mission_gym.check.cluster import judge_cluster
from mission_gym.check.findings import Finding, has_errors, sort_findings
from mission_gym.check.machine import Examination, examine, judge_proof
from mission_gym.check.trials import DEADLINE_S, run_trial
from mission_gym.report.screen.streams import inert

_COLOURS = {"error": 31, "warning": 33, "info": 36, "ok": 32}  # of the terminal
_INDENT = 8


def doctor(args: Sequence[str]) -> int:
    """`mission-gym doctor`; 2 if something is broken."""
    parser = argparse.ArgumentParser(
        prog="mission-gym doctor",
        description="Examine this machine: packages, cores, memory, torch, every device.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="Folder that holds the runs."
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON document.")
    parser.add_argument(
        "--deadline",
        type=float,
        default=DEADLINE_S,
        metavar="SECONDS",
        help="What a package may take to be imported before it counts as hung (default: %(default)g).",
    )
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="Look at a Ray cluster, too: auto, or HOST:PORT of its head.",
    )
    flags = parser.parse_args(args)
    found = examine(flags.runs_dir, flags.deadline)
    more = [*_prove(found, flags.deadline), *_look_at_cluster(flags.ray_address, flags.deadline)]
    found = replace(found, findings=sort_findings([*found.findings, *more]))
    if flags.json:
        document = asdict(found)
        document["machine"]["usable_cores"] = found.machine.usable_cores
        text = json.dumps(document, indent=2, allow_nan=False)
    else:
        text = _show(found.findings)
    print(text)
    return 2 if has_errors(found.findings) else 0


def _prove(found: Examination, deadline_s: float) -> list[Finding]:
    """Whether gradient steps on each accelerator are those of the CPU, as before a training."""
    if not any(device.name != "cpu" and not device.error for device in found.torch.devices):
        return []
    return judge_proof(run_trial("from mission_gym.run.preview import main; main()", deadline_s))


def _look_at_cluster(address: str | None, deadline_s: float) -> list[Finding]:
    """What a cluster has, and what messages cost there."""
    if address is None:
        return []
    return judge_cluster(run_trial(f"from mission_gym.ray.costs import main; main({address!r})", deadline_s))


def _show(findings: Iterable[Finding]) -> str:
    """A paragraph per finding: what, why and the fix."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 10_000
    fill = textwrap.TextWrapper(width, subsequent_indent=" " * _INDENT, break_long_words=False).fill
    lines = []
    for finding in findings:
        first = fill(inert(f"{finding.level:<{_INDENT}}{finding.name}: {finding.what}"))
        if is_terminal and "NO_COLOR" not in os.environ:
            head = len(finding.level)
            first = f"\x1b[{_COLOURS[finding.level]}m{first[:head]}\x1b[0m{first[head:]}"
        lines.append(first)
        more = (finding.why, f"fix: {finding.fix}" if finding.fix else "")
        lines += [fill(" " * _INDENT + inert(text)) for text in more if text]
    return "\n".join(lines)
