"""`doctor`: what this machine can do, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from mission_gym.cli.flags import ReadFlags, parse
from mission_gym.cli.output import show
from mission_gym.report.tables import view_findings


def doctor(args: Sequence[str]) -> int:
    """`mission-gym doctor`; 2 if something is broken."""
    flags = parse(ReadFlags, args, "doctor", "Examine this machine: cores, memory, torch, every device.")
    from mission_gym.run.checking import has_errors
    from mission_gym.run.doctor import examine

    machine, torch, findings = examine(flags.runs_dir)
    document = {
        "machine": asdict(machine) | {"usable_cores": machine.usable_cores},
        "torch": asdict(torch),
        "findings": [asdict(finding) for finding in findings],
    }
    show(document, as_json=flags.json, view=lambda found: view_findings(found["findings"]))
    return 2 if has_errors(findings) else 0
