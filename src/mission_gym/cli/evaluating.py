"""`eval`, `baselines` and `check`: an environment is played, nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from mission_gym.cli.flags import AsJson, EnvFlags, PlayedRunFlags, Switch, Trust, parse, said
from mission_gym.cli.output import messages_to_stderr, show
from mission_gym.errors import DiskError
from mission_gym.report.formats import show_count
from mission_gym.report.screen.streams import say
from mission_gym.report.tables import view_findings, view_results
from mission_gym.store.evals import check_writable

Episodes = Annotated[int, tyro.conf.arg(metavar="N", help="Episodes to play, from the report suite.")]


@dataclass(kw_only=True)
class EvalFlags(PlayedRunFlags):
    """Flags of `eval`."""

    episodes: Episodes = 100
    baselines: Annotated[Switch, said("Play the baselines on the same seeds too.")] = False
    json: AsJson = False


@dataclass(kw_only=True)
class CheckFlags(EnvFlags):
    """Flags of `check`."""

    json: AsJson = False


@dataclass(kw_only=True)
class BaselineFlags(CheckFlags):
    """Flags of `baselines`."""

    episodes: Episodes = 100


def evaluate(args: Sequence[str]) -> None:
    """`mission-gym eval RUN[@STEP]`."""
    flags = parse(EvalFlags, args, "eval", "Evaluate a run on fixed, held-out seeds.")
    ref = flags.find(flags.run)
    from mission_gym.run.baselines import run_baselines
    from mission_gym.run.open import evaluate_run, keep_result, open_run

    try:
        check_writable(ref.run)
    except DiskError as error:
        say(f"the result will be shown, but can't be kept: {error}")
    with messages_to_stderr():
        opened = open_run(ref, eval_stage=flags.eval_stage)
        for text in opened.notes:
            say(text)
        on = f" of stage {opened.stage[0]} ({opened.stage[1]})" if opened.stage else ""
        at = f"{opened.run.name} at step {show_count(opened.step)}"
        say(f"evaluating {at} on {flags.episodes} episodes{on}")
        document, warnings = evaluate_run(opened, flags.episodes, explore=flags.stochastic)
        shown = dict(document)
        if flags.baselines:
            shown["baselines"] = run_baselines(opened.environment, flags.episodes)
    for warning in warnings:
        say(f"warning: {warning}")
    show(shown, as_json=flags.json, view=_view_modes)
    keep_result(opened, document)


def _view_modes(document: dict[str, Any]) -> Any:
    other = document["other_mode"]
    if "baselines" in document:
        return view_results({"trained": document} | document["baselines"])
    return view_results({document["mode"]: document, other["mode"]: other})


def baselines(args: Sequence[str]) -> None:
    """`mission-gym baselines ENV`."""
    flags = parse(BaselineFlags, args, "baselines", "Play the report suite without any learning.")
    config = flags.config()
    from mission_gym.run.baselines import run_baselines
    from mission_gym.run.environment import open_environment

    with messages_to_stderr():
        environment = open_environment(config, dict(config.env.env_kwargs))
        results = run_baselines(environment, flags.episodes)
    show(results, as_json=flags.json, view=view_results)


@dataclass(kw_only=True)
class ReproFlags:
    """Flags of `check --repro`."""

    repro: Annotated[
        Path, tyro.conf.arg(metavar="FILE", help="A repro bundle that a failed run left; it is replayed.")
    ]
    json: AsJson = False
    trust: Trust = False


def _replay(args: Sequence[str]) -> int:
    """`mission-gym check --repro FILE`; 3 if the failure came back."""
    flags = parse(ReproFlags, args, "check", "Replay the failure of an environment.")
    from mission_gym.check.repro import replay_bundle

    with messages_to_stderr():
        replay = replay_bundle(flags.repro)
    show(asdict(replay), as_json=flags.json, view=lambda document: document["text"])
    return 3 if replay.failed else 0


def check(args: Sequence[str]) -> int:
    """`mission-gym check ENV`; 2 if there are errors. `--repro FILE` replays a failure instead."""
    if any(arg.partition("=")[0] == "--repro" for arg in args):
        return _replay(args)
    text = "Examine an environment before training on it; `--repro FILE` replays what a failed run left."
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
        findings = check_in_subprocess(EnvRequest(env.env_id, dict(env.env_kwargs), env.wrap, calls))
    show([asdict(finding) for finding in findings], as_json=flags.json, view=view_findings)
    return 2 if has_errors(findings) else 0
