"""The keyword arguments of the explore mission, checked, and the objects they describe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from mission_gym.config.plain_yaml import YamlModel, YamlTree, check_tree
from mission_gym.errors import ConfigError, nearest
from mission_gym.procs.companions import Companion
from mission_gym_missions.explore.explorer import (
    Explorer,
    GeneratedTasks,
    OwnTasks,
    Tasks,
    load_rules,
    read_targets,
)
from mission_gym_missions.explore.fetch import FetchLimits, Host, Pacer
from mission_gym_missions.explore.pages import join, origin_of

_GENERATED = ("site", "num_pages", "faults", "latency_ms", "jitter_ms")
_OWN = ("targets", "allow_loopback", "requests_per_s")
Milliseconds = Annotated[float, Field(ge=0, le=60_000)]
Seconds = Annotated[float, Field(ge=0.1, le=600)]


class Settings(YamlModel):
    """Either generated sites, or a site of the user's (base_url)."""

    site: Annotated[int, Field(ge=0, le=1 << 62)] | None = None  # a generated one; None: new in every episode
    num_pages: Annotated[int, Field(ge=50, le=10_000_000)] = 3000  # per site, approximately
    faults: Annotated[float, Field(ge=0, le=1)] = 0.0  # share of articles with a hostile answer
    latency_ms: Milliseconds = 10.0  # of every answer
    jitter_ms: Milliseconds = 5.0  # added at most
    base_url: str | None = None  # start page of a site of the user's
    targets: str | None = None  # pages to find there: paths, or a file of them
    allow_loopback: bool = False  # that site may be on this machine
    requests_per_s: Annotated[float, Field(ge=0, le=100_000)] = 10.0  # to that site, per process; 0: no limit
    timeout_s: Seconds = 5.0  # per request
    patience_s: Seconds = 10.0  # per step, while a site is down or busy
    max_page_bytes: Annotated[int, Field(ge=1000, le=1 << 30)] = 1 << 20
    rules_file: str | None = None
    served_at: str | None = None  # address of the companion that serves the generated sites

    @property
    def limits(self) -> FetchLimits:
        return FetchLimits(self.timeout_s, self.patience_s, self.max_page_bytes)

    @property
    def may_use_loopback(self) -> bool:
        return self.base_url is None or self.allow_loopback

    def make_explorer(self, served_at: str) -> Explorer:
        """Return the explorer. served_at: the address of the generated sites, if they are used."""
        rules = load_rules(self.rules_file)
        if self.base_url is None:
            tasks: Tasks = GeneratedTasks(self.site)
            return Explorer(rules, Host(served_at, self.limits), tasks)
        url = join(self.base_url, self.base_url)
        pacer = Pacer.of(origin_of(url), self.requests_per_s)
        tasks = OwnTasks(read_targets(self.targets or "", url))
        return Explorer(rules, Host(url, self.limits, pacer), tasks)


def read_settings(given: dict[str, Any]) -> Settings:
    """Check the keyword arguments; one ConfigError with every problem."""
    known = Settings.model_fields
    problems = [
        f"{name}={value!r} is unknown{nearest(name, known)}; use one of {', '.join(known)} [--env-kwargs]"
        for name, value in given.items()
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    values = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    settings: Settings | None = check_tree(
        Settings, YamlTree(values, {(name,): name for name in known}), problems
    )
    if settings is None:
        raise ConfigError(problems)
    problems += _find_conflicts(settings)
    if problems:
        raise ConfigError(problems)
    return settings


def _find_conflicts(settings: Settings) -> Iterator[str]:
    """Yield conflicts between generated sites and a site of the user's."""
    own = settings.base_url is not None
    for name in _GENERATED if own else _OWN:
        if (value := getattr(settings, name)) != Settings.model_fields[name].default:
            use = "generated sites, but base_url is given" if own else "a site given by base_url"
            yield f"{name}={value!r} is only for {use}; remove one [{name}]"
    if own and not join(settings.base_url or "", ""):
        url = repr(settings.base_url)
        yield f"base_url={url} is not a web address; use one like https://example.org/docs/ [base_url]"
    elif own and not settings.targets:
        yield "base_url needs targets: paths of pages to find, or a file with one per line [targets]"


def make_companion(settings: Settings) -> Companion:
    """Return the server of these generated sites."""
    names = ("num_pages", "faults", "latency_ms", "jitter_ms")
    return Companion("mission_gym_missions.explore.server:serve", settings.model_dump(include=set(names)))
