"""From argv to typed flags, through tyro. The flags of `train` and `branch` are made from the config schema.

Only flags that were given appear in `Values`, so that every other value keeps its own source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints, is_typeddict

import tyro

from mission_gym.config.fields import FieldInfo
from mission_gym.config.schema import Config
from mission_gym.errors import UsageError, nearest
from mission_gym.report.formats import show_value
from mission_gym.report.screen.streams import say
from mission_gym.run.config import resolve, schema
from mission_gym.store.resolve import RunRef, find_run

T = TypeVar("T")
Switch = tyro.conf.FlagCreatePairsOff[bool]
RunName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
Given = dict[str, Any]


def said(text: str, metavar: str | None = None) -> Any:
    """How a flag is described whose default needs no word."""
    return tyro.conf.arg(help=text, metavar=metavar, help_behavior_hint="")


AsJson = Annotated[Switch, said("Print one JSON document.")]
Trust = Annotated[Switch, said("Run code that the run or the file names, and that was not allowed before.")]
EnvId = Annotated[tyro.conf.Positional[str], said("Gymnasium id, module:Id or module:callable.", "ENV")]
RunsDir = Annotated[Path, tyro.conf.arg(help="Folder that holds the runs.", metavar="DIR")]


@dataclass(kw_only=True)
class FolderFlags:
    """What every command about runs takes."""

    runs_dir: RunsDir = Path("runs")

    def find(self, text: str) -> RunRef:
        """The run that is meant; if there is a doubt, what was taken is said."""
        ref = find_run(text, self.runs_dir)
        say(ref.note)
        return ref


@dataclass(kw_only=True)
class ReadFlags(FolderFlags):
    """What every command that tells about runs takes."""

    json: AsJson = False


@dataclass(kw_only=True)
class PlayedRunFlags(FolderFlags):
    """What every command that plays a run's policy takes."""

    run: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="RUN[@STEP]", help="The run; without a step its best checkpoint."),
    ]
    stochastic: Annotated[Switch, said("Sample actions instead of the likeliest one.")] = False
    eval_stage: Annotated[
        str | None,
        said(
            "Stage of the run's curriculum to play, instead of that of its evaluations.", "last|NUMBER|NAME"
        ),
    ] = None
    trust: Trust = False  # `main` looks for it


@dataclass(kw_only=True)
class LayerFlags:
    """Where values come from, besides their own flags."""

    preset: Annotated[
        str | None,
        tyro.conf.arg(metavar="NAME", help="A named choice of values, such as fast, heavy or quick."),
    ] = None
    config: Annotated[
        Path | None, tyro.conf.arg(metavar="FILE", help="A YAML file of values, such as a run's config.yaml.")
    ] = None
    set: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(metavar="section.field=value", help="One value by its full name."),
    ] = ()
    no_curriculum: Annotated[
        Switch, said("Train without the curriculum that a file, the settings or the parent bring.")
    ] = False
    via: Annotated[
        Path | None, said("The file that these flags come from, as `jobs run` tells its runs.", "FILE")
    ] = None
    trust: Trust = False


@dataclass(kw_only=True)
class EnvFlags:
    """Which environment, for commands without a run."""

    env_id: EnvId
    env_kwargs: Annotated[
        tuple[str, ...],
        said("Arguments of the environment, with YAML scalars.", "key=value ..."),
    ] = ()
    wrap: Annotated[
        tuple[str, ...], said("Wrappers, the innermost first; see `wrappers`.", "module:callable(...) ...")
    ] = ()

    def config(self) -> Config:
        """The config of a run of this environment that asks for nothing else."""
        return resolve(self.env_id, {"env_kwargs": list(self.env_kwargs), "wrap": list(self.wrap)}).config


def parse(kind: type[T], args: Sequence[str], command: str, text: str) -> T:
    """Fill the dataclass `kind` from argv; UsageError with the nearest name for what it does not have."""
    _refuse_doubles(args)
    parsed, unknown = tyro.cli(
        kind,
        prog=f"mission-gym {command}",
        description=text,
        args=list(args),
        return_unknown_args=True,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    if unknown:
        known = [f"--{name.replace('_', '-')}" for name in _flag_names(kind)]
        wrong = [arg.partition("=")[0] for arg in unknown if arg.startswith("-")]
        if not wrong:
            raise UsageError(f"{unknown[0]!r} is one argument too many; see `mission-gym {command} --help`")
        hints = ", ".join(f"{flag!r}{nearest(flag, known)}" for flag in wrong)
        more = _hint_at_kwargs(unknown, known) if "--env-kwargs" in known else ""
        raise UsageError(f"unknown flag {hints}; `mission-gym {command} --help` lists them{more}")
    return parsed


def _hint_at_kwargs(unknown: Sequence[str], known: Sequence[str]) -> str:
    """How the first unknown flag would be given, if it is an argument of the environment's."""
    flag, equals, value = unknown[0].partition("=")
    if get_close_matches(flag, known, n=1, cutoff=0.8) or not flag.startswith("--"):
        return ""
    if not equals:
        value = unknown[1] if len(unknown) > 1 and not unknown[1].startswith("--") else "VALUE"
    name = flag.removeprefix("--").replace("-", "_")
    return f"; an argument of the environment is given as --env-kwargs {name}={value}"


def _refuse_doubles(args: Sequence[str]) -> None:
    """A flag given twice would be taken once, without a word."""
    aliases = {alias: info.name for info in schema().fields for alias in info.aliases}
    seen: dict[str, str] = {}
    for arg in args:
        if not arg.startswith("--") or arg == "--set" or arg.startswith("--set="):
            continue
        flag = arg.partition("=")[0]
        name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
        name = aliases.get(name, name)
        if name in seen:
            raise UsageError(f"{seen[name]} and {flag} give the same value twice; keep one")
        seen[name] = flag


def with_values(base: type[T], skip: Sequence[str] = ()) -> type[T]:
    """The dataclass with a group of flags for every section of the config."""
    named: dict[str, list[FieldInfo]] = {}  # one flag stands for the fields of all algorithms called so
    for info in schema().fields:
        if info.name not in ("env_id", *skip):
            named.setdefault(info.name, []).append(info)
    groups: dict[str, Given] = {}
    for name, infos in named.items():
        groups.setdefault(infos[0].section, {})[name] = _flag(infos)
    fields: list[Any] = []
    for section, flags in groups.items():
        kind: Any = TypedDict(section, flags, total=False)  # type: ignore[misc]
        kind.__doc__ = schema().sections[section].__doc__
        fields.append((section, kind, field(default_factory=dict)))
    return make_dataclass(base.__name__, fields, bases=(base,), kw_only=True)


def given_values(flags: Any) -> Given:
    """The config values that were given as flags, by field name."""
    sections = (getattr(flags, section, {}) for section in schema().sections)
    given = {name: value for values in sections for name, value in values.items()}
    return given | ({"curriculum": False} if getattr(flags, "no_curriculum", False) else {})


def given_layers(flags: LayerFlags) -> Given:
    """The other layers, as `resolve` takes them."""
    return {"sets": flags.set, "config_file": flags.config, "preset": flags.preset, "via": flags.via}


def _flag(infos: Sequence[FieldInfo]) -> Any:
    info = infos[0]
    kind: Any = tuple[str, ...] if info.type_text.endswith(" ...") else str
    if info.type_text == "bool":
        kind = bool
    # An empty default (no text, no wrappers) says nothing.
    default = f"(default: {show_value(info.default)})" if info.default not in ("", {}, ()) else ""
    text = info.description
    for other in infos[1:]:
        algo = other.section
        if other.default != info.default:
            default = f"{default[:-1]}, {algo}: {show_value(other.default)})"
        if other.description != info.description:
            text = f"{text} With {algo}: {other.description}"
    argument = tyro.conf.arg(
        help=text,
        metavar="" if kind is bool else info.type_text,
        help_behavior_hint=default,
        aliases=[f"--{alias.replace('_', '-')}" for alias in info.aliases],
    )
    return Annotated[kind, argument]


def _flag_names(kind: Any) -> list[str]:
    names = []
    for item in dataclasses.fields(kind):
        annotation = get_type_hints(kind).get(item.name, item.type)
        for name in annotation.__annotations__ if is_typeddict(annotation) else [item.name]:
            names += [name, f"no_{name}"]
    return names
