"""The queue of this user on this machine: the groups with unfinished jobs, and their supervisor.

One process at a time holds the supervisor's lock, and a dead process holds none. Other processes wait.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, TypeAdapter

from mission_gym.errors import RunStateError, UsageError
from mission_gym.store import lock
from mission_gym.store.files import (
    Str,
    disk_errors,
    make_private,
    open_plain,
    read_validated,
    user_folder,
    write_atomic,
    write_json,
)
from mission_gym.store.groups import GroupDir, JobRequest, Kind
from mission_gym.store.rundir import slug
from mission_gym.store.sweeps import read_sweep

Role = Literal["supervisor", "standby"]
_LOCK_WAIT_S = 0.05  # a process that checks the lock holds it for microseconds
_NAME = "MISSION_GYM_QUEUE"  # name of the queue, for machines whose host name changes
_ENTRY = TypeAdapter(dict[Str, Str])


class Queue:
    """A cheap handle of the queue's folder."""

    def __init__(self, folder: Path | None = None) -> None:
        if sys.platform == "win32":
            raise UsageError("groups of runs need process groups and inherited locks; Windows has neither")
        name = os.environ.get(_NAME) or platform.node() or "machine"
        self.folder = folder or user_folder("state") / "fleet" / slug(name)
        self._groups = self.folder / "groups"
        self._reason = self.folder / "reason.txt"
        with disk_errors(self._groups):
            make_private(self._groups)

    def _lock_path(self, role: Role = "supervisor") -> Path:
        return self.folder / f"{role}.lock"

    def make_group(
        self,
        runs_dir: Path,
        name: str,
        kind: Kind,
        requests: Sequence[JobRequest],
        prepare: Callable[[GroupDir], None] = lambda group: None,
    ) -> GroupDir:
        """Make a new group of this user and put it into the queue. prepare: called before other processes see
        the group."""

        def record_own(group: GroupDir) -> None:
            self.record_own(group, requests)
            prepare(group)

        group = GroupDir.create(runs_dir, name, kind, requests, record_own)
        self.register(group)
        return group

    def register(self, group: GroupDir) -> None:
        """Put a group into the queue, if it is not there already."""
        write_json(self._entry(group), {"path": str(group.path)})

    def add(self, group: GroupDir, requests: Sequence[JobRequest]) -> None:
        """Request jobs of a group of this user."""
        self.record_own(group, requests)
        group.add(requests)

    def record_own(self, group: GroupDir, documents: Iterable[BaseModel]) -> None:
        """Mark these requests, or this question of a sweep, as the user's own."""
        mark = self._mark(group)
        lines = "".join(f"{_digest(each)}\n" for each in documents)
        with disk_errors(mark):
            make_private(mark.parent)
            with open(open_plain(mark, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
                file.write(lines)

    def list_foreign(self, group: GroupDir, documents: Iterable[BaseModel]) -> list[BaseModel]:
        """The documents of a group that this user did not write."""
        try:
            known = set(self._mark(group).read_text().split())
        except FileNotFoundError:
            known = set()
        return [each for each in documents if _digest(each) not in known]

    def check_own(self, group: GroupDir) -> None:
        """Refuse a group with commands that this user did not request."""
        if foreign := self.list_foreign(group, _list_documents(group)):
            named = ", ".join(getattr(each, "name", "the sweep") for each in foreign[:3])
            raise UsageError(
                f"{group.path} contains commands that were not requested by this user, or were changed since"
                f" ({named}); read its journal, and allow them with --trust"
            )

    def allow_all(self, group: GroupDir) -> None:
        """Allow all commands of a group."""
        self.record_own(group, self.list_foreign(group, _list_documents(group)))

    def _mark(self, group: GroupDir) -> Path:
        """The file with the digests of the requests that this user made, on any machine that shares the
        user's folders."""
        return self.folder.parent / ".own" / self._entry(group).stem

    def remove(self, group: GroupDir) -> None:
        """Remove a finished group from the queue."""
        with disk_errors(self._entry(group)):
            self._entry(group).unlink(missing_ok=True)

    def forget(self, group: GroupDir) -> None:
        """Remove a deleted group from the queue, with its mark."""
        self.remove(group)
        with disk_errors(self._mark(group)):
            self._mark(group).unlink(missing_ok=True)

    def list_groups(self) -> list[GroupDir]:
        """The groups with unfinished jobs, the oldest first. Groups whose folder is gone are dropped."""
        groups: list[tuple[float, str, GroupDir]] = []
        for entry in self._groups.glob("*.json"):
            try:
                written = entry.stat().st_mtime
                group = GroupDir(Path(read_validated(entry, _ENTRY)["path"]))
                is_there = group.path.is_dir()
            except (RunStateError, KeyError, OSError) as error:
                if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
                    continue  # a disk error is not a reason to drop the group
                is_there = False  # the entry is damaged
            if is_there:
                groups.append((written, group.name, group))
            else:
                with suppress(OSError):
                    entry.unlink()
        return [group for *_, group in sorted(groups, key=lambda item: item[:2])]

    def list_others(self) -> dict[str, int]:
        """The other queues of this user with unfinished groups, by name: those of other machines, or of this
        one under another host name, as of a container that was made again."""
        folders = [each for each in self.folder.parent.glob("*/groups") if each.parent != self.folder]
        counts = {each.parent.name: len(list(each.glob("*.json"))) for each in folders}
        return {name: counts[name] for name in sorted(counts) if counts[name]}

    def try_supervise(self, stack: ExitStack, role: Role = "supervisor") -> bool:
        """Try to become the supervisor, or the standby process, until the stack is closed."""
        try:
            stack.enter_context(lock.hold(self._lock_path(role), wait_s=_LOCK_WAIT_S))
        except RunStateError:
            return False
        return True

    @property
    def supervisor(self) -> str | None:
        """The pid of the supervisor; None if there is none."""
        holder = lock.read_holder(self._lock_path()) if lock.is_held(self._lock_path()) else None
        return None if holder is None else str(holder.pid)

    def note_reason(self, text: str) -> None:
        """Store why the supervisor starts no more jobs; "" if all have started."""
        if text != self._read_reason():
            write_atomic(self._reason, text, durable=False)

    def explain_waiting(self) -> str:
        """Why a queued job has not started."""
        if self.supervisor is None:
            return "no supervisor is running; `mission-gym jobs resume` starts one"
        return self._read_reason()

    def _read_reason(self) -> str:
        with suppress(OSError):
            return self._reason.read_text("utf-8")
        return ""

    def start_supervisor(self) -> None:
        """Start a supervisor in the background, which outlives this process and the terminal."""
        with disk_errors(self.folder), (self.folder / "supervisor.log").open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-P", "-m", "mission_gym", "jobs", "resume"],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _entry(self, group: GroupDir) -> Path:
        return self._groups / f"{hashlib.sha256(str(group.path).encode()).hexdigest()[:20]}.json"


def _list_documents(group: GroupDir) -> list[BaseModel]:
    """The documents of a group that contain its commands."""
    requests: list[BaseModel] = [job.request for job in group.read_jobs().values()]
    return [*requests, *([read_sweep(group).question] if group.read().kind == "sweep" else [])]


def _digest(document: BaseModel) -> str:
    return hashlib.sha256(document.model_dump_json().encode()).hexdigest()
