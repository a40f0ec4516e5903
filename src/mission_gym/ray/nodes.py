"""The Ray clusters of the queue, as its supervisor sees them.

A scout, a process of its own for each, is connected and tells the nodes: Ray ends a process that loses its
cluster, and connects it to one at most. It ends when nobody asks it any more. A cluster of this machine
alone, for jobs without an address, is the scout's, and ends with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Set
from contextlib import suppress
from typing import NamedTuple

from mission_gym.errors import MissionGymError, UsageError, describe
from mission_gym.ray.cluster import Node, open_cluster

_END_S = 20.0  # for a cluster to be left, and ended
_TOKEN = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


class Sighting(NamedTuple):
    """A cluster as it was seen last, and how to connect to it."""

    address: str
    variables: dict[str, str]
    nodes: list[Node]


class Clusters:
    """What there is at the addresses that jobs ask for; "" is a cluster of our own."""

    def __init__(self) -> None:
        self._scouts: dict[str, _Scout] = {}

    def look(self, address: str) -> Sighting | None:
        """The cluster as it was told last, None before that; UsageError where none can be used. One that was
        lost is looked for anew."""
        if address not in self._scouts:
            self._scouts[address] = _Scout(address)
        try:
            seen = self._scouts[address].look()
        except UsageError:
            self._scouts.pop(address).end()
            raise
        if self._scouts[address].has_ended:
            self._scouts.pop(address).end()
        return seen

    def keep(self, addresses: Set[str]) -> None:
        """Leave all others."""
        for address in set(self._scouts) - addresses:
            self._scouts.pop(address).end()


class _Scout:
    """The supervisor's end of a scout: a line is a question, a line of JSON the answer."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mission_gym.ray.nodes", address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._heard = b""
        self._seen: Sighting | None = None

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def look(self) -> Sighting | None:
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        has_ended = self.has_ended  # before its last words are read
        self._heard += self._process.stdout.read() or b""
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "refused" in told:
                raise UsageError(told["refused"])
            nodes = [Node(*each) for each in told["nodes"]]
            self._seen = Sighting(told["address"], told["variables"], nodes)
            with suppress(BrokenPipeError):
                self._process.stdin.write(b"\n")
        if has_ended and self._seen is None:
            raise UsageError(f"Ray ended the process that was to connect, with {self._process.returncode}")
        return self._seen

    def end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # its cluster is gone, and Ray still looks for it
            self._process.kill()
            self._process.wait()


def scout(address: str) -> None:
    """Connect, and tell what is there; once more for each line that comes."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what Ray prints is not an answer
        try:
            cluster = open_cluster(address or None)
        except Exception as error:  # noqa: BLE001  border: what Ray raises is told, and jobs fail with it
            told = str(error) if isinstance(error, MissionGymError) else describe(error)
            answers.write(json.dumps({"refused": told}) + "\n")
            return
        own = {name: os.environ[name] for name in _TOKEN if name in os.environ} if cluster.is_own else {}
        place = {"address": cluster.address, "variables": own}
        with suppress(BrokenPipeError):
            while True:
                answers.write(json.dumps(place | {"nodes": cluster.nodes()}) + "\n")
                answers.flush()
                if not sys.stdin.readline():
                    break
        cluster.close()


if __name__ == "__main__":
    scout(sys.argv[1])
