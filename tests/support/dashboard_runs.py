"""A real server in a process of its own, and runs that are written by hand, row by row."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from mission_gym.report.dashboard.guard import make_secret
from mission_gym.store.evals import write_eval
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog
from timeouts import LONG_S


class Answer(NamedTuple):
    code: int
    headers: dict[str, str]
    text: str


class Server:
    """A running `mission-gym watch`."""

    def __init__(self, runs_dir: Path, port: int = 0) -> None:
        command = [
            sys.executable,
            "-m",
            "mission_gym",
            "watch",
            "--port",
            str(port),
            "--runs-dir",
            str(runs_dir),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = ""
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        parts = urlsplit(self.address)
        self.host, self.port, self.query = parts.hostname or "", parts.port or 0, parts.query
        self.base = f"http://{parts.netloc}"
        self.token = self.query.removeprefix("token=")
        name = f"mission-gym-{self.port}"
        self.cookie = f"{name}={make_secret(self.token, name)}"

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=LONG_S)
        try:
            connection.request(
                method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
            )
            response = connection.getresponse()
            text = response.read().decode()
            return Answer(
                response.status, {name.lower(): value for name, value in response.getheaders()}, text
            )
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.ask(path, Cookie=self.cookie)

    def json(self, path: str) -> Any:
        answer = self.get(path)
        assert answer.code == 200, answer.text
        return json.loads(answer.text)

    def events(self, path: str) -> Iterator[tuple[str, Any]]:
        """The events of a stream, one after the other."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=LONG_S)
        connection.request("GET", path, headers={"Cookie": self.cookie})
        response = connection.getresponse()
        kind = ""
        try:
            while True:
                line = response.readline().decode().rstrip("\n")
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    yield kind, json.loads(line[6:])
        finally:
            connection.close()

    def stop(self) -> int:
        """End it as Ctrl-C does; its exit code."""
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=LONG_S)
        self.said += said or ""
        return self.process.returncode


def make_row(step: int, **more: float) -> dict[str, Any]:
    row = {
        "event": "progress",
        "step": step,
        "rollout/ep_rew_mean": step / 7,
        "time/time_elapsed": step / 100,
    }
    return row | {"phase/wall_s": 1.0, "phase/collect_s": 0.5, "train/loss": 1 / step, **more}


class HandRun:
    """A run whose rows a test writes."""

    def __init__(
        self, runs_dir: Path, name: str = "hand", outcome: str = "won", stages: Sequence[str] = ()
    ) -> None:
        self.dir = RunDir.create(runs_dir, name)
        self.name = self.dir.name
        self.outcome = outcome
        self.dir.write_status(state="done", step=0, total=1000, outcomes={outcome: 0.5}, cause="by hand")
        self.log = MetricsLog(self.dir.metrics_jsonl)
        facts = [{"name": "environment", "value": "toys:Hand", "reason": ""}]
        plan = {"event": "plan", "main_outcome": outcome, "time/plan": {"facts": facts, "notes": []}}
        self.log.append(plan | ({"stages": list(stages)} if stages else {}))

    def add(self, *steps: int, **more: float) -> None:
        for step in steps:
            self.log.append(make_row(step, **{f"outcome/{self.outcome}": 0.25}, **more))

    def evaluate(self, step: int) -> None:
        rate = {"rate": 0.5, "low": 0.25, "high": 0.75}
        write_eval(
            self.dir, step, "select",
            {"episodes": 8, "return_mean": 5.0, "return_low": 4.0, "return_high": 6.0, "length_mean": 3.0,
             "score": 0.5, "outcomes": {self.outcome: rate}},
        )  # fmt: skip
