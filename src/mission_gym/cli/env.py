"""`check`, `tune`, `wrappers`, `bridge` and `bench`: environments and their speed, without a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mission_gym.cli.flags import (
    AsJson,
    EnvFlags,
    EnvId,
    LayerFlags,
    Switch,
    Trust,
    flag,
    given_values,
    parse,
    with_values,
)
from mission_gym.config.sizes import parse_duration_s
from mission_gym.errors import UsageError
from mission_gym.report.screen.live import show
from mission_gym.report.screen.streams import messages_to_stderr, say, strip_control
from mission_gym.report.tables import view_findings, view_wrappers
from mission_gym.run.config import resolve, schema
from mission_gym.store.files import disk_errors

_LEAST_BUDGET_S = 2.0
_CLIENTS = {"python": "mission_gym_bridge.py", "js": "mission-gym-bridge.cjs"}
_PROOFS = ("faults", "soak", "bridge")  # benchmarks whose rows must hold; the others only measure


@dataclass(kw_only=True)
class CheckFlags(EnvFlags):
    """Flags of `check`."""

    json: AsJson = False


@dataclass(kw_only=True)
class ReproFlags:
    """Flags of `check --repro`."""

    repro: Annotated[Path, flag("Repro bundle of a failed run, which is replayed.", "FILE")]
    json: AsJson = False
    trust: Trust = False


@dataclass(kw_only=True)
class TuneFlags(LayerFlags):
    """Flags of `tune`."""

    env_id: EnvId
    budget: Annotated[str, flag("Approximate time to measure.", "duration", default=None)] = "30s"
    retune: Annotated[Switch, flag("Measure again, even if a plan is stored.")] = False
    markdown: Annotated[Switch, flag("Print the scaling guide of this machine as Markdown.")] = False
    json: AsJson = False


@dataclass(kw_only=True)
class WrappersFlags:
    """Flags of `wrappers`."""

    json: AsJson = False


@dataclass(kw_only=True)
class BridgeFlags:
    """Flags of `bridge`."""

    client: Annotated[Literal["python", "js"], flag("Language: python, or js for Node.")]
    out: Annotated[Path, flag("Folder for the new file.", "FOLDER", default=None)] = Path()


@dataclass(kw_only=True)
class BenchFlags:
    """Flags of `bench`."""

    name: Annotated[
        tyro.conf.Positional[str],
        flag(
            "ppo, dqn, learning, defaults, vector, waiting, bridge, capture, territory, overlap, tune, fleet,"
            " watch, images, gpu, ray, soak, faults or accounting.",
            "NAME",
        ),
    ]
    full: Annotated[Switch, flag("Run the whole grid; the default takes under ten minutes.")] = False
    pretend: Annotated[Switch, flag("With gpu: simulate one, and count kernels and synchronizations.")] = (
        False
    )
    json: AsJson = False


def check(args: Sequence[str]) -> int:
    """`mission-gym check ENV`; 2 if there are errors. `--repro FILE` replays a failure instead."""
    if any(arg.partition("=")[0] == "--repro" for arg in args):
        return _replay(args)
    text = "Check an environment before training on it. `--repro FILE` replays the failure of a run."
    flags = parse(CheckFlags, args, "check", text)
    env = flags.config().env
    from mission_gym.check.environment import check_in_subprocess
    from mission_gym.check.findings import has_errors
    from mission_gym.env.factory import EnvRequest
    from mission_gym.env.wrapper_names import name_code
    from mission_gym.store.trusted import permit

    with messages_to_stderr():
        names = (env.env_id, *name_code(env.wrap))
        calls = permit(names, typed=names)
        findings = check_in_subprocess(EnvRequest(env.env_id, dict(env.env_kwargs), env.wrap, calls), say)
    show([asdict(finding) for finding in findings], as_json=flags.json, view=view_findings)
    if not has_errors(findings):
        say(f"no errors; next: mission-gym baselines {env.env_id}")
    return 2 if has_errors(findings) else 0


def _replay(args: Sequence[str]) -> int:
    """`mission-gym check --repro FILE`; 3 if the failure happened again."""
    flags = parse(ReproFlags, args, "check", "Replay the failure of an environment.")
    from mission_gym.check.repro import replay_bundle

    with messages_to_stderr():
        replay = replay_bundle(flags.repro)
    show(asdict(replay), as_json=flags.json, view=lambda document: document["text"])
    return 3 if replay.failed else 0


def tune(args: Sequence[str]) -> None:
    """`mission-gym tune ENV`."""
    # A plan does not depend on these fields.
    unused = [
        field.name
        for field in schema().fields
        if field.section in ("evaluation", "checkpoints", "run") and field.name != "algo"
    ]
    text = "Measure an environment on this machine, and plan how to train on it."
    flags: Any = parse(with_values(TuneFlags, (*unused, "tune")), args, "tune", text)
    budget_s = parse_duration_s(flags.budget)
    if budget_s < _LEAST_BUDGET_S:
        raise UsageError(f"budget={flags.budget} is below {_LEAST_BUDGET_S:.0f} s; give more time [--budget]")
    if flags.markdown and flags.json:
        raise UsageError("JSON and Markdown can't both be printed; remove one of them [--markdown, --json]")
    resolved = resolve(flags.env_id, given_values(flags), **flags.layers())
    from mission_gym.report.scaling import make_markdown, view_advice
    from mission_gym.run.preview import advise

    with messages_to_stderr():
        document = advise(resolved, budget_s, say, retune=flags.retune)
    if flags.markdown:
        print(strip_control(make_markdown(document["env_id"], document)))
    else:
        show(document, as_json=flags.json, view=view_advice)


def wrappers(args: Sequence[str]) -> None:
    """`mission-gym wrappers`."""
    flags = parse(WrappersFlags, args, "wrappers", "List the wrappers that have a short name for --wrap.")
    from mission_gym.env.wrapper_names import list_short

    show(list_short(), as_json=flags.json, view=view_wrappers)


def bridge(args: Sequence[str]) -> None:
    """`mission-gym bridge --client python|js`."""
    flags = parse(BridgeFlags, args, "bridge", "Copy a client library for a game in another process.")
    import mission_gym.bridge.clients

    name = _CLIENTS[flags.client]
    target = flags.out / name
    if target.exists():
        raise UsageError(f"{target} exists already; remove it, or use another folder [--out]")
    text = (Path(mission_gym.bridge.clients.__path__[0]) / name).read_bytes()
    with disk_errors(target):
        target.write_bytes(text)
    print(f"wrote {target}; its first lines show a game, and docs/bridge.md describes the protocol")


def bench(args: Sequence[str]) -> int:
    """`mission-gym bench NAME`; 1 if a row that must hold does not."""
    flags = parse(BenchFlags, args, "bench", "Measure performance on this machine.")
    from mission_gym_bench.main import run_bench
    from mission_gym_bench.views import view_bench, view_faults

    with messages_to_stderr():
        rows = run_bench(flags.name, full=flags.full, pretend=flags.pretend)
    show(rows, as_json=flags.json, view=view_faults if flags.name == "faults" else view_bench)
    return int(any(row.get("holds") is False for row in rows if flags.name in _PROOFS))
