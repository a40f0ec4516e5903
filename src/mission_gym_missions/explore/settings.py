"""The keyword arguments of the explore mission, for both forms: checked, and what is made of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mission_gym.errors import ConfigError, UsageError, nearest
from mission_gym.procs.companions import Companion
from mission_gym_missions.explore.exchange import Host, Pacer
from mission_gym_missions.explore.explorer import Explorer
from mission_gym_missions.explore.pages import join, origin_of
from mission_gym_missions.explore.rules import SHIPPED, load_rules
from mission_gym_missions.explore.tasks import GeneratedTasks, OwnTasks, Tasks, read_targets
from mission_gym_missions.explore.wishes import Limits

_GENERATED = ("site", "num_pages", "faults", "latency_ms", "jitter_ms")
_OWN = ("targets", "allow_loopback", "requests_per_s")
_MAX_SITE = 1 << 62


@dataclass(frozen=True, slots=True)
class Settings:
    """Either a generated site, or one of the user's (base_url)."""

    site: int | None = None  # its number; None: another one in every episode
    num_pages: int = 3000  # of a site, about
    faults: float = 0.0  # share of articles that answer in a hostile way
    latency_ms: float = 10.0  # of every answer
    jitter_ms: float = 5.0  # at most so much more
    base_url: str | None = None  # the first page of a site of the user's
    targets: str | None = None  # what to find there: paths, or a file of them
    allow_loopback: bool = False  # that site may be on this machine
    requests_per_s: float = 10.0  # to that site, of all environments of a process; 0: no limit
    timeout_s: float = 8.0  # of a request
    patience_s: float = 15.0  # of a step, while a site is down or busy
    max_page_bytes: int = 1 << 20
    rules_file: str | None = None
    served_at: str | None = None  # told by the companion

    @property
    def limits(self) -> Limits:
        return Limits(self.timeout_s, self.patience_s, self.max_page_bytes)

    @property
    def may_use_loopback(self) -> bool:
        return self.base_url is None or self.allow_loopback

    def make_explorer(self, served_at: str) -> Explorer:
        """What plays the mission. served_at: where the generated sites are, if they are asked for."""
        rules = load_rules(self.rules_file)
        if self.base_url is None:
            tasks: Tasks = GeneratedTasks(self.site)
            return Explorer(rules, Host(served_at, self.limits), tasks)
        url = join(self.base_url, self.base_url)
        pacer = Pacer.of(origin_of(url), self.requests_per_s)
        tasks = OwnTasks(read_targets(self.targets or "", url))
        return Explorer(rules, Host(url, self.limits, pacer), tasks)


def read_settings(given: dict[str, Any]) -> Settings:
    """Check the keyword arguments; one ConfigError with everything that is wrong."""
    known = {field.name: field.default for field in fields(Settings)}
    problems = [
        f"{name}={value!r} is not known{nearest(name, known)}; use some of {', '.join(known)} [--env-kwargs]"
        for name, value in given.items()
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    settings = Settings(**{name: _plain(value) for name, value in given.items()})
    problems += _find_wrong_numbers(settings)
    own = settings.base_url is not None
    for name in _GENERATED if own else _OWN:
        if getattr(settings, name) != known[name]:
            use = "a generated site, and base_url names another" if own else "a site that base_url names"
            problems.append(f"{name}={getattr(settings, name)!r} is for {use}; remove one of both [{name}]")
    if own and not _is_address(settings.base_url or ""):
        problems.append(
            f"base_url={settings.base_url!r} is not an address; give one like https://example.org/docs/ "
            "[base_url]"
        )
    elif own and not settings.targets:
        problems.append(
            "base_url needs targets: paths of pages to find, or a file with one in each line [targets]"
        )
    if problems:
        raise ConfigError(problems)
    return settings


class Declared:
    """What both forms of the mission tell of themselves."""

    explorer: Explorer

    def describe_target(self) -> tuple[str, str]:
        """The site that requests go to, and how it answers, for the plan of a run."""
        return self.explorer.describe_target()

    @staticmethod
    def companion_process(**given: Any) -> Companion | None:
        """The server of the generated sites, where they are asked for and nobody said where they are."""
        settings = read_settings(given)
        needed = settings.base_url is None and settings.served_at is None
        return make_companion(settings) if needed else None

    @staticmethod
    def snapshot_kwargs(rules_file: str | None = None, **others: Any) -> dict[str, Any]:
        """The file of rules in use, for a run to own."""
        return {"rules_file": str(SHIPPED if rules_file is None else rules_file)}


def make_companion(settings: Settings) -> Companion:
    """The server of these generated sites."""
    names = ("num_pages", "faults", "latency_ms", "jitter_ms")
    arguments = {name: value for name, value in asdict(settings).items() if name in names}
    return Companion("mission_gym_missions.explore.server:serve", arguments)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _is_address(text: str) -> bool:
    try:
        return urlsplit(text).scheme in ("http", "https") and bool(join(text, ""))
    except UsageError:
        return False


def _find_wrong_numbers(settings: Settings) -> list[str]:
    # name: least, most
    bounds: dict[str, tuple[float, float]] = {
        "num_pages": (50, 10_000_000),
        "faults": (0, 1),
        "latency_ms": (0, 60_000),
        "jitter_ms": (0, 60_000),
        "requests_per_s": (0, 100_000),
        "timeout_s": (0.1, 600),
        "patience_s": (0.1, 600),
        "max_page_bytes": (1000, 1 << 30),
    }
    if settings.site is not None:
        bounds["site"] = (0, _MAX_SITE)
    found = []
    for name, (least, most) in bounds.items():
        value = getattr(settings, name)
        whole = name in ("num_pages", "site", "max_page_bytes")
        is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:
            kind = "a whole number" if whole else "a number"
            found.append(f"{name}={value!r} is not {kind} from {least:g} to {most:g}; correct it [{name}]")
    return found
