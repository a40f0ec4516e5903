"""`doctor`: checks this machine. Standard library only, since tyro or rich may be broken."""

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

from mission_gym.check.findings import Finding, has_errors, sort_findings
from mission_gym.check.machine import MachineReport, check_machine, judge_cluster, judge_verification
from mission_gym.check.packages import DEADLINE_S, try_code
from mission_gym.report.screen.streams import strip_control

_COLOURS = {"error": 31, "warning": 33, "info": 36, "ok": 32}  # of the terminal
_INDENT = 8


def doctor(args: Sequence[str]) -> int:
    """`mission-gym doctor`; 2 if there are errors."""
    text = "Check this machine: packages, cores, memory, torch, every device."
    parser = argparse.ArgumentParser(prog="mission-gym doctor", description=text, allow_abbrev=False)
    text = "Folder of the runs (default: runs)."
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help=text)
    parser.add_argument("--json", action="store_true", help="Print one JSON document.")
    text = "Longest time to import a package (default: %(default)g)."
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS", help=text)
    text = "Ray cluster to check too: auto, or HOST:PORT of its head."
    parser.add_argument("--ray-address", metavar="ADDRESS", help=text)
    flags = parser.parse_args(args)
    found = check_machine(flags.runs_dir, flags.deadline)
    more = [*_check_devices(found, flags.deadline), *_check_cluster(flags.ray_address, flags.deadline)]
    found = replace(found, findings=sort_findings([*found.findings, *more]))
    if flags.json:
        document = asdict(found)
        document["machine"]["usable_cores"] = found.machine.usable_cores
        text = json.dumps(document, indent=2, allow_nan=False)
    else:
        text = _show(found.findings)
    print(text)
    return 2 if has_errors(found.findings) else 0


def _check_devices(found: MachineReport, deadline_s: float) -> list[Finding]:
    """Compare gradient steps on each accelerator with those of the CPU, as training does."""
    if not any(device.name != "cpu" and not device.error for device in found.torch.devices):
        return []
    return judge_verification(try_code("from mission_gym.run.preview import main; main()", deadline_s))


def _check_cluster(address: str | None, deadline_s: float) -> list[Finding]:
    """The nodes of a cluster, and the cost of messages."""
    if address is None:
        return []
    return judge_cluster(try_code(f"from mission_gym.ray.costs import main; main({address!r})", deadline_s))


def _show(findings: Iterable[Finding]) -> str:
    """A paragraph per finding, with its reason and its fix."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 10_000
    fill = textwrap.TextWrapper(width, subsequent_indent=" " * _INDENT, break_long_words=False).fill
    lines = []
    for finding in findings:
        first = fill(strip_control(f"{finding.level:<{_INDENT}}{finding.name}: {finding.what}"))
        if is_terminal and "NO_COLOR" not in os.environ:
            head = len(finding.level)
            first = f"\x1b[{_COLOURS[finding.level]}m{first[:head]}\x1b[0m{first[head:]}"
        lines.append(first)
        more = (finding.why, f"fix: {finding.fix}" if finding.fix else "")
        lines += [fill(" " * _INDENT + strip_control(text)) for text in more if text]
    return "\n".join(lines)
