"""From argv to typed flags, through tyro. The flags of `train` and `branch` are made from the config schema.

Only flags that were given become values, so that every other value keeps its own source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar, get_type_hints, is_typeddict

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
Given = dict[str, Any]


def flag(text: str, metavar: str | None = None, *, default: str | None = "") -> Any:
    """The help of a flag. default: the text about its default; None shows the value."""
    return tyro.conf.arg(help=text, metavar=metavar, help_behavior_hint=default)


AsJson = Annotated[Switch, flag("Print one JSON document.")]
Trust = Annotated[Switch, flag("Allow the code that the run or file refers to.")]
EnvId = Annotated[tyro.conf.Positional[str], flag("Gymnasium id, module:Id or module:callable.", "ENV")]
CudaMps = Annotated[
    str | None, flag("CUDA MPS for runs that share a GPU; auto: if measured faster (default).", "off|on|auto")
]
RunsDir = Annotated[Path, flag("Folder of the runs.", "DIR", default=None)]
RunName = Annotated[tyro.conf.Positional[str], flag("Name, prefix or path of the run, or `latest`.", "RUN")]


class Subcommand(NamedTuple):
    """A command of `runs` or `jobs`."""

    function: Callable[[Sequence[str]], int | None]
    text: str


def run_subcommand(name: str, commands: Mapping[str, Subcommand], args: Sequence[str]) -> int | None:
    """Run the command that argv names, or print the help of the group."""
    chosen, known = args[0] if args else "", ", ".join(commands)
    if chosen in ("-h", "--help"):
        lines = [f"  {each:<8}  {command.text}" for each, command in commands.items()]
        print("\n".join([f"usage: mission-gym {name} COMMAND [...]", "", *lines]))
        return 0
    if not chosen:
        raise UsageError(f"no command of {name} is given; use one of {known}")
    if chosen not in commands:
        raise UsageError(f"{chosen!r} is not a command of {name}{nearest(chosen, commands)}; use {known}")
    return commands[chosen].function(args[1:])


@dataclass(kw_only=True)
class FolderFlags:
    """Flags of every command about runs."""

    runs_dir: RunsDir = Path("runs")

    def find(self, text: str) -> RunRef:
        """The run that the user gave; a guess is reported."""
        ref = find_run(text, self.runs_dir)
        say(ref.note)
        return ref


@dataclass(kw_only=True)
class ReadFlags(FolderFlags):
    """Flags of every command that shows runs."""

    json: AsJson = False


@dataclass(kw_only=True)
class PlayedRunFlags(FolderFlags):
    """Flags of every command that plays a run's policy."""

    run: Annotated[tyro.conf.Positional[str], flag("Run (default: its best checkpoint).", "RUN[@STEP]")]
    stochastic: Annotated[Switch, flag("Sample actions instead of taking the most likely one.")] = False
    eval_stage: Annotated[
        str | None, flag("Curriculum stage (default: that of the evaluations).", "last|NUMBER|NAME")
    ] = None
    trust: Trust = False  # read by `main`


@dataclass(kw_only=True)
class LayerFlags:
    """The other sources of values."""

    preset: Annotated[str | None, flag("Named set of values, such as fast, heavy or quick.", "NAME")] = None
    config: Annotated[Path | None, flag("YAML file of values, such as a run's config.yaml.", "FILE")] = None
    set: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        flag("One value by its full name.", "section.field=value", default=None),
    ] = ()
    no_curriculum: Annotated[Switch, flag("Ignore the curriculum of all other sources.")] = False
    via: Annotated[Path | None, flag("Job file of these flags (internal).", "FILE")] = None
    trust: Trust = False

    def layers(self) -> Given:
        """The sources as `resolve` takes them."""
        return {"sets": self.set, "config_file": self.config, "preset": self.preset, "via": self.via}


@dataclass(kw_only=True)
class EnvFlags:
    """The environment of a command without a run."""

    env_id: EnvId
    env_kwargs: Annotated[tuple[str, ...], flag("Arguments of the environment.", "key=value ...")] = ()
    wrap: Annotated[tuple[str, ...], flag("Wrappers, innermost first.", "module:callable(...) ...")] = ()

    def config(self) -> Config:
        """The config of a run with this environment and nothing else given."""
        return resolve(self.env_id, {"env_kwargs": list(self.env_kwargs), "wrap": list(self.wrap)}).config


_last: list[Any] = [None]  # the flags of this command


def is_trusting() -> bool:
    """Whether --trust was given."""
    return bool(getattr(_last[0], "trust", False))


def parse(kind: type[T], args: Sequence[str], command: str, text: str) -> T:
    """Fill the dataclass `kind` from argv; UsageError with the nearest name for an unknown flag."""
    _refuse_duplicates(args)
    parsed, unknown = tyro.cli(
        kind,
        prog=f"mission-gym {command}",
        description=text,
        args=list(args),
        return_unknown_args=True,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    if unknown:
        known = [f"--{name.replace('_', '-')}" for name in _list_names(kind)]
        wrong = [arg.partition("=")[0] for arg in unknown if arg.startswith("-")]
        if not wrong:
            raise UsageError(f"{unknown[0]!r} is one argument too many; see `mission-gym {command} --help`")
        listing = "--help-all" if command == "train" else "--help"
        meant = {name: _find_similar(name, known) for name in wrong}
        hints = ", ".join(
            f"{name!r}" + (f" (did you mean {near!r}?)" if near else "") for name, near in meant.items()
        )
        more = ""
        if "--env-kwargs" in known and (
            pairs := _read_kwargs(unknown, [each for each in wrong if not meant[each]])
        ):
            more = f"; for an argument of the environment, write --env-kwargs {' '.join(pairs)}"
        raise UsageError(f"unknown flag {hints}{more}; `mission-gym {command} {listing}` lists the flags")
    _last[0] = parsed
    return parsed


def _find_similar(name: str, known: Sequence[str]) -> str:
    """The flag that was probably meant, or an empty string; a distant guess would mislead."""
    bare = {each.removeprefix("--"): each for each in known}
    close = get_close_matches(name.removeprefix("--"), bare, n=1, cutoff=0.7)
    return bare[close[0]] if close else ""


def _read_kwargs(unknown: Sequence[str], names: Sequence[str]) -> list[str]:
    """Unknown flags as arguments of the environment, such as num_bots=5."""
    pairs = []
    for arg, following in zip(unknown, [*unknown[1:], ""], strict=True):
        name, equals, value = arg.partition("=")
        if name not in names or not name.startswith("--"):
            continue
        key = name.removeprefix("--").replace("-", "_")
        if not equals:
            value = following
            if not following or following.startswith("--"):
                key, value = key.removeprefix("no_"), "false" if key.startswith("no_") else "true"
        pairs.append(f"{key}={value}")
    return pairs


def _refuse_duplicates(args: Sequence[str]) -> None:
    """tyro would silently use one of two values."""
    aliases = {alias: info.name for info in schema().fields for alias in info.aliases}
    seen: dict[str, str] = {}
    for arg in args:
        if not arg.startswith("--") or arg == "--set" or arg.startswith("--set="):
            continue
        given = arg.partition("=")[0]
        name = given.removeprefix("--").removeprefix("no-").replace("-", "_")
        name = aliases.get(name, name)
        if name in seen:
            raise UsageError(f"{seen[name]} and {given} give the same value twice; keep one")
        seen[name] = given


def with_values(base: type[T], skip: Sequence[str] = ()) -> type[T]:
    """The dataclass with a group of flags for every section of the config."""
    named: dict[str, list[FieldInfo]] = {}  # fields of the same name in several algorithms share a flag
    for info in schema().fields:
        if info.name not in ("env_id", *skip):
            named.setdefault(info.name, []).append(info)
    groups: dict[str, Given] = {}
    for name, infos in named.items():
        groups.setdefault(infos[0].section, {})[name] = _make_flag(infos)
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


def _make_flag(infos: Sequence[FieldInfo]) -> Any:
    info = infos[0]
    kind: Any = tuple[str, ...] if info.type_text.endswith(" ...") else str
    if info.type_text == "bool":
        kind = bool
    # An empty default (no text, no wrappers) is not shown.
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


def _list_names(kind: Any) -> list[str]:
    names = []
    for item in dataclasses.fields(kind):
        annotation = get_type_hints(kind).get(item.name, item.type)
        values = get_type_hints(annotation) if is_typeddict(annotation) else {item.name: None}
        names += [*values, *(f"no_{name}" for name, value in values.items() if value is bool)]
    return names
