"""`tune`: how an environment runs best on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from mission_gym.cli.flags import (
    AsJson,
    EnvId,
    LayerFlags,
    Switch,
    given_layers,
    given_values,
    parse,
    said,
    with_values,
)
from mission_gym.cli.output import messages_to_stderr, show
from mission_gym.config.sizes import parse_duration_s
from mission_gym.errors import UsageError
from mission_gym.report.guide import write_markdown
from mission_gym.report.scaling import make_scaling_png, view_advice
from mission_gym.report.screen.streams import inert, say
from mission_gym.run.config import resolve, schema
from mission_gym.store.files import write_atomic

_LEAST_BUDGET_S = 2.0
# Fields that a plan does not depend on.
_NO_MATTER = [
    field.name
    for field in schema().fields
    if field.path.split(".")[0] in ("evaluation", "checkpoints", "run") and field.name != "algo"
]


@dataclass(kw_only=True)
class TuneFlags(LayerFlags):
    """Flags of `tune`."""

    env_id: EnvId
    budget: Annotated[str, tyro.conf.arg(metavar="duration", help="About how long to measure.")] = "30s"
    retune: Annotated[Switch, said("Measure, even if a plan was kept.")] = False
    plot: Annotated[Path | None, said("Draw the scaling table to this file.", "FILE.png")] = None
    markdown: Annotated[
        Switch, said("Print the scaling guide as Markdown: speed, memory and times by environments.")
    ] = False
    json: AsJson = False


def tune(args: Sequence[str]) -> None:
    """`mission-gym tune ENV`."""
    flags: Any = parse(
        with_values(TuneFlags, (*_NO_MATTER, "tune")),
        args,
        "tune",
        "Measure an environment on this machine, and plan how to train on it.",
    )
    budget_s = parse_duration_s(flags.budget)
    if budget_s < _LEAST_BUDGET_S:
        raise UsageError(f"budget={flags.budget} is below {_LEAST_BUDGET_S:.0f} s; give more time [--budget]")
    if flags.markdown and flags.json:
        raise UsageError(
            "one document is printed: JSON or Markdown; leave one of them out [--markdown, --json]"
        )
    resolved = resolve(flags.env_id, given_values(flags), **given_layers(flags))
    from mission_gym.run.preview import advise

    with messages_to_stderr():
        document = advise(resolved, budget_s, say, retune=flags.retune)
    if flags.markdown:
        print(inert(write_markdown(document["env_id"], document)))
    else:
        show(document, as_json=flags.json, view=view_advice)
    if flags.plot is not None:
        write_atomic(flags.plot, make_scaling_png(document))
        say(f"drawn to {flags.plot}")
