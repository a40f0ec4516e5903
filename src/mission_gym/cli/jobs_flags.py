"""Flags of the commands of `jobs`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mission_gym.cli.flags import AsJson, FolderFlags, ReadFlags, Switch, Trust, said

_FileName = Annotated[tyro.conf.Positional[Path], said("The job file.", "FILE.yaml")]


@dataclass(kw_only=True)
class CheckFlags:
    """Flags of `jobs check`."""

    file: _FileName
    json: AsJson = False


@dataclass(kw_only=True)
class RunFlags(ReadFlags):
    """Flags of `jobs run` and `jobs add`."""

    file: _FileName
    detach: Annotated[Switch, said("Go on without this terminal.")] = False
    cuda_mps: Annotated[
        str,
        said("Share a GPU through CUDA MPS; auto, the default: where measured better.", "off|on|auto"),
    ] = "auto"
    on: Annotated[
        Literal["here", "ray"], said("Where the jobs run: on this machine, or on a Ray cluster.", "here|ray")
    ] = "here"
    ray_address: Annotated[
        str | None,
        said("The cluster: auto, or HOST:PORT of its head. Without it: one of this machine.", "ADDRESS"),
    ] = None
    trust: Trust = False


@dataclass(kw_only=True)
class GroupFlags(ReadFlags):
    """Flags of `jobs wait` and `jobs resume`."""

    group: Annotated[
        tyro.conf.Positional[str | None], said("The group. Without it: that of the newest job file.", "GROUP")
    ] = None


@dataclass(kw_only=True)
class ResumeFlags(GroupFlags):
    """Flags of `jobs resume`."""

    trust: Trust = False


@dataclass(kw_only=True)
class StatusFlags(GroupFlags):
    """Flags of `jobs status`."""

    follow: Annotated[Switch, said("Stay until all jobs have ended.")] = False


@dataclass(kw_only=True)
class LogsFlags(FolderFlags):
    """Flags of `jobs logs`."""

    job: Annotated[tyro.conf.Positional[str], said("The job, or GROUP/JOB.", "JOB")]
    follow: Annotated[
        Switch, tyro.conf.arg(aliases=["-f"], help="Stay until the job has ended.", help_behavior_hint="")
    ] = False


@dataclass(kw_only=True)
class StopFlags(FolderFlags):
    """Flags of `jobs stop`."""

    name: Annotated[tyro.conf.Positional[str | None], said("A job, GROUP/JOB or GROUP.", "NAME")] = None
    all: Annotated[Switch, said("Every job of the queue.")] = False


@dataclass(kw_only=True)
class ExampleFlags:
    """Flags of `jobs example`."""

    name: Annotated[tyro.conf.Positional[str], said("four-jobs.", "NAME")]
