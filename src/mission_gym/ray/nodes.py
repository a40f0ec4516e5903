"""The Ray clusters of the job queue, as its supervisor sees them.

A process for each cluster connects to it and prints its nodes: Ray ends a process that loses its cluster, and
connects it to one at most. The process ends when its questions end. A cluster of this machine alone, for jobs
without an address, belongs to this process and ends with it.
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

_END_S = 20.0  # for leaving a cluster, or ending it
_TOKEN = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


class ClusterView(NamedTuple):
    """A cluster as it was seen last, and how to connect to it."""

    address: str
    variables: dict[str, str]
    nodes: list[Node]


class Clusters:
    """The clusters at the addresses of jobs; "" is our own cluster."""

    def __init__(self) -> None:
        self._probes: dict[str, _Probe] = {}

    def view(self, address: str) -> ClusterView | None:
        """The cluster as it was seen last, None before that; UsageError if it can't be used. A cluster that
        was lost is probed again."""
        if address not in self._probes:
            self._probes[address] = _Probe(address)
        probe = self._probes[address]
        try:
            seen = probe.read()
        except UsageError:
            self._probes.pop(address).end()
            raise
        if probe.has_ended:
            self._probes.pop(address).end()
        return seen

    def keep(self, addresses: Set[str]) -> None:
        """Leave all other clusters."""
        for address in set(self._probes) - addresses:
            self._probes.pop(address).end()


class _Probe:
    """The supervisor's end of a probe: a line asks, a line of JSON answers."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mission_gym.ray.nodes", address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._answers.fileno(), False)
        self._received = b""
        self._seen: ClusterView | None = None

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def read(self) -> ClusterView | None:
        has_ended = self.has_ended  # before its last output is read
        self._received += self._answers.read() or b""
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if "refused" in answer:
                raise UsageError(answer["refused"])
            nodes = [Node(*each) for each in answer["nodes"]]
            self._seen = ClusterView(answer["address"], answer["variables"], nodes)
            with suppress(BrokenPipeError):
                self._questions.write(b"\n")
        if has_ended and self._seen is None:
            raise UsageError(f"Ray ended the connecting process with exit code {self._process.returncode}")
        return self._seen

    def end(self) -> None:
        self._questions.close()
        self._answers.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # its cluster is gone, and Ray still searches for it
            self._process.kill()
            self._process.wait()


def probe(address: str) -> None:
    """Connect to a cluster and print its nodes, once and for each line of input."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # Ray's own output is not an answer
        try:
            cluster = open_cluster(address or None)
        except Exception as error:  # noqa: BLE001  border: errors of Ray are the cause with which jobs fail
            refused = str(error) if isinstance(error, MissionGymError) else describe(error)
            answers.write(json.dumps({"refused": refused}) + "\n")
            return
        own = {name: os.environ[name] for name in _TOKEN if name in os.environ} if cluster.is_own else {}
        with suppress(BrokenPipeError):
            while True:
                view = ClusterView(cluster.address, own, cluster.nodes())
                answers.write(json.dumps(view._asdict()) + "\n")
                answers.flush()
                if not sys.stdin.readline():
                    break
        cluster.close()


if __name__ == "__main__":
    probe(sys.argv[1])
