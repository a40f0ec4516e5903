"""The server over plain HTTP: who may ask, what never comes out, what pages and streams tell."""

from __future__ import annotations

import http.client
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import mission_gym as mg
from dashboard_runs import HandRun, Server, make_row
from mission_gym.cli.main import main
from mission_gym.errors import UsageError
from mission_gym.report.dashboard.guard import is_loopback, keep_token
from mission_gym.report.dashboard.serve import open_socket
from timeouts import LONG_S, wait_until

_HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
EVIL = "<img src=x onerror=alert(1)>\x1b[31m"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, HandRun, HandRun]:
    """A folder with a plain run and one whose every name is markup; secrets lie beside and behind links."""
    root = tmp_path_factory.mktemp("served")
    runs_dir = root / "runs"
    (root / "secret.txt").write_text("the secret")
    plain = HandRun(runs_dir)
    plain.add(10, 20, 30)
    plain.evaluate(20)
    (plain.dir.path / "video.gif").write_bytes(b"GIF89a")
    evil = HandRun(runs_dir, "evil", outcome=EVIL)
    evil.add(1, 2, 3)
    evil.evaluate(2)
    evil.dir.write_status(state="failed", cause=EVIL)
    evil.dir.log_txt.write_text(f"2026-01-01 00:00:00 warning message={EVIL}\n")
    evil.dir.monitor_csv.write_text(f'#{{"t_start": 0}}\nr,l,t,outcome,env,seed\n1.0,2,3.0,{EVIL},0,7\n')
    renamed = evil.dir.path.rename(runs_dir / "<b>evil")
    assert renamed.exists()
    linked = HandRun(runs_dir, "linked")
    (linked.dir.path / "video.gif").symlink_to(root / "secret.txt")
    os.symlink(root, runs_dir / "out")
    return runs_dir, plain, linked


@pytest.fixture(scope="module")
def server(place: tuple[Path, HandRun, HandRun]) -> Iterator[Server]:
    started = Server(place[0])
    yield started
    started.stop()


def test_the_token_becomes_a_cookie_that_scripts_and_sites_do_not_get(server: Server) -> None:
    answer = server.ask(f"/compare?run=a&token={server.token}&run=b")
    assert answer.code == 303
    assert answer.headers["location"].endswith("/compare?run=a&run=b")
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith(server.cookie)
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert server.get("/").code == 200


@pytest.mark.parametrize("path", ["/", "/api/runs", "/events", "/none", "/static", "/api/metrics"])
def test_without_a_token_nothing_is_told(server: Server, path: str) -> None:
    for cookie in (
        "",
        f"{server.cookie}x",
        server.cookie.replace("=", "=x"),
        "mission-gym-1=" + server.token,
        f"mission-gym-{server.port}={server.token}",  # other servers of this host see the cookie
    ):
        answer = server.ask(path, Cookie=cookie)
        assert answer.code == 401
        assert "open the address that" in answer.text
    assert server.ask(f"{path}?token=wrong").code == 401


def test_the_page_that_asks_for_the_token_has_its_style(server: Server) -> None:
    for path in ("/static/style.css", "/static/icon.svg"):
        assert server.ask(path).code == 200
        assert server.ask(path, Host="evil.example").code == 403
    for path in ("/static/../api/runs", "/static/%2e%2e/api/runs", "/static/..%2fapi%2fruns"):
        assert server.ask(path).code in (401, 404)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "[::2", "", "localhost:port",
        "localhost:99999", "evil@localhost", "localhost:80:80", "localhost/evil", "0x7f.1",
    ],
)  # fmt: skip
def test_a_foreign_host_is_refused(server: Server, host: str) -> None:
    assert server.ask("/api/runs", Host=host, Cookie=server.cookie).code in (400, 403)


def test_own_names_are_served_through_any_port(server: Server) -> None:
    for host in ("localhost", "localhost:9999", "127.0.0.1", "[::1]:80"):
        answer = server.ask(
            "/", Host=host, Cookie=server.cookie.replace(str(server.port), host.rpartition(":")[2])
        )
        assert answer.code in (200, 401), host  # the cookie's name follows the port
        assert server.ask(f"/?token={server.token}", Host=host).code == 303


def test_a_foreign_origin_is_refused(server: Server) -> None:
    odd = ("null", "http://[", "", "file://", f"http://evil@127.0.0.1:{server.port}", f"{server.base}/")
    for origin in ("http://evil.example", f"http://127.0.0.1:{server.port + 1}", *odd):
        assert server.ask("/api/runs", Origin=origin, Cookie=server.cookie).code == 403
    assert server.ask("/api/runs", Origin=server.base, Cookie=server.cookie).code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(server: Server, method: str) -> None:
    assert server.ask("/api/runs", method=method, Cookie=server.cookie).code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/run/..", "/run/%2e%2e", "/run/..%2f..", "/run/%2e%2e%2fsecret.txt", "/api/run/../rows", "/run/out",
        "/api/run/out", "/run/%00", "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py",
        "/static//etc/passwd", "/events/..", "/run/none", "/nothing",
        "/run/%ff", "/run/%ed%a0%80", "/run/a%5cb",
    ],
)  # fmt: skip
def test_no_path_leaves_the_folder(server: Server, path: str) -> None:
    answer = server.get(path)
    assert answer.code == 404
    assert "secret" not in answer.text.replace("secret.txt", "")


def test_headers_of_a_proxy_and_web_sockets_mean_nothing(server: Server) -> None:
    forged = {
        "X_Forwarded_Proto": "javascript",
        "X_Forwarded_For": "10.0.0.1",
        "X_Forwarded_Host": "evil.example",
    }
    answer = server.ask(f"/?token={server.token}", **forged)
    assert answer.headers["location"] == f"{server.base}/"
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Key": "x" * 22 + "=="}
    assert server.ask("/events", Sec_WebSocket_Version="13", **upgrade).code == 401


def test_links_out_of_the_folder_are_not_followed(
    server: Server, place: tuple[Path, HandRun, HandRun]
) -> None:
    _, plain, linked = place
    for path in ("", "/rows", "/panels", "/video/video.gif"):
        assert server.get(f"/api/run/{linked.name}{path}").code == 404
    assert server.get(f"/api/run/{plain.name}/video/video.gif").text == "GIF89a"
    for name in ("status.json", "..%2fstatus.json", "video.mp4"):
        assert server.get(f"/api/run/{plain.name}/video/{name}").code == 404


def test_markup_in_names_is_text_everywhere(server: Server) -> None:
    assert any(row["name"] == "<b>evil" for row in server.json("/api/runs")["rows"])
    page = server.get("/run/%3Cb%3Eevil").text
    panels = server.json("/api/run/%3Cb%3Eevil/panels")["panels"]
    compared = server.json("/api/compare?run=%3Cb%3Eevil&run=%3Cb%3Eevil")["html"]
    for text in (page, *panels.values(), compared, server.get("/run/<b>none").text):
        assert "<img src=x" not in text
        assert "<b>" not in text
    assert "&lt;img src=x" in panels["evaluations"]
    assert "&lt;img src=x" in panels["episodes"]
    assert "&lt;img src=x" in panels["failures"]
    assert "\x1b" not in panels["log"] + panels["episodes"] + panels["failures"]


def test_pages_may_load_from_here_alone_and_run_nothing_inline(
    server: Server, place: tuple[Path, HandRun, HandRun]
) -> None:
    for path in ("/", f"/run/{place[1].name}", "/compare", "/none"):
        answer = server.get(path)
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=|javascript:", answer.text)
        assert not re.search(r"(?:src|href)=\"(?!/|#)", answer.text)


def test_rows_are_those_of_the_stream(server: Server, place: tuple[Path, HandRun, HandRun]) -> None:
    name = place[1].name
    document = server.json(f"/api/run/{name}")
    assert document["columns"]["step"] == [10, 20, 30]
    assert document["columns"]["rollout/ep_rew_mean"] == [10 / 7, 20 / 7, 30 / 7]
    assert document["evals"][0]["outcomes"] == {"won": {"rate": 0.5, "low": 0.25, "high": 0.75}}
    assert document["main_outcome"] == "won"
    assert server.json(f"/api/run/{name}/rows?low=15&high=25")["columns"]["step"] == [20]
    assert server.json(f"/api/run/{name}/rows?low=x&high=-1")["columns"]["step"] == [10, 20, 30]
    assert server.json(f"/api/run/{name}/rows?low=9&high=0") == {"columns": {}, "is_sample": False}


def test_panels_bring_what_an_early_page_did_not_find(
    server: Server, place: tuple[Path, HandRun, HandRun]
) -> None:
    name = place[1].name
    panels, whole = server.json(f"/api/run/{name}/panels"), server.json(f"/api/run/{name}")
    assert panels["main_outcome"] == "won"
    for key in ("main_outcome", "evals", "baselines"):
        assert panels[key] == whole[key]


def test_times_of_a_long_run_are_those_of_all_its_rows(tmp_path: Path, serve: Callable[..., Server]) -> None:
    run = HandRun(tmp_path)
    text = "x" * 2000
    for step in range(1, 2001):
        run.log.append(make_row(100 * step) | {"phase/env_s": 0.5, "text": text})
    panel = serve(tmp_path).json(f"/api/run/{run.name}/panels")["panels"]["time"]
    assert "Estimated from a sample" in panel
    assert "16:40" in panel  # half of 2000 s, in environments
    assert "50 %" in panel


def test_more_runs_than_are_compared_are_told(server: Server, place: tuple[Path, HandRun, HandRun]) -> None:
    asked = "&".join([f"run={place[1].name}"] * 42)
    assert "2 more are left out" in server.json(f"/api/compare?{asked}")["html"]


def test_metrics_are_explained(server: Server) -> None:
    documented = {metric["name"]: metric for metric in server.json("/api/metrics")}
    assert documented["train/approx_kl"]["healthy"] == [None, 0.045]
    assert documented["train/approx_kl"]["bad"].startswith("Above 0.045")


def test_a_stream_goes_on_where_the_page_was(tmp_path: Path, serve: Callable[..., Server]) -> None:
    run = HandRun(tmp_path)
    run.add(1)
    server = serve(tmp_path)
    end = server.json(f"/api/run/{run.name}")["end"]
    events = server.events(f"/events/{run.name}?offset={end}")
    assert next(events)[0] == "status"
    run.add(2, 3)
    kind, news = next(events)
    assert (kind, news["columns"]["step"]) == ("rows", [2, 3])
    run.dir.log_txt.write_text("more\n")
    assert next(events) == ("panels", {})
    with run.dir.metrics_jsonl.open("r+b") as file:
        file.truncate(end)  # as a resume does
    assert next(events) == ("reset", {})
    index = server.events("/events?since=0")
    assert next(index)[1]["names"] == [run.name]
    other = HandRun(tmp_path, "other")
    assert next(index)[1]["names"] == [run.name, other.name]


def test_a_run_that_is_back_is_told(tmp_path: Path, serve: Callable[..., Server]) -> None:
    run = HandRun(tmp_path / "runs")
    events = serve(tmp_path / "runs").events(f"/events/{run.name}?offset=0")
    assert [next(events)[0], next(events)[0]] == ["rows", "status"]
    away = run.dir.path.rename(tmp_path / "away")
    assert next(events)[0] == "gone"
    away.rename(run.dir.path)
    assert next(kind for kind, _ in events if kind != "gone") == "status"


def test_the_next_free_port_is_taken_and_said(tmp_path: Path, serve: Callable[..., Server]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve(tmp_path, port)
        assert server.port > port
        assert server.get("/").code == 200
    stream = server.events("/events?since=0")
    assert next(stream)[0] == "runs"
    assert server.stop() == 0  # ended as it is meant to
    assert "Traceback" not in server.said
    assert "ERROR" not in server.said


def test_an_address_that_can_not_be_had_is_told() -> None:
    with pytest.raises(UsageError, match=r"can't listen on 192\.0\.2\.1, port 0: .*\[--host, --port\]"):
        open_socket("192.0.2.1", 0)
    with pytest.raises(UsageError, match="port=70000 is not between 0 and 65535"):
        open_socket("127.0.0.1", 70000)
    assert is_loopback("localhost")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.org")


def test_the_token_is_kept_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    token = keep_token()
    path = tmp_path / "mission-gym" / "watch-token"
    assert keep_token() == token
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert keep_token() != token  # others could have read it
    monkeypatch.setenv("XDG_STATE_HOME", str(path))
    assert keep_token() != keep_token()  # it can't be kept


def test_commands_to_copy_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mission_gym.report.pages import describe_panels
    from mission_gym.store.rundir import RunDir

    monkeypatch.chdir(tmp_path)
    run = mg.train(
        "CartPole-v1", progress=False, run_name="toy", n_envs=2, n_steps_per_env=16, timesteps=64,
        batch_size=32, n_epochs=1, eval_freq=32, eval_episodes=2, tensorboard=False, vector="serial",
    )  # fmt: skip
    commands = dict(describe_panels(RunDir(run.path), run.metrics())["commands"]["commands"])
    names = [command.split()[1] for command in commands]
    assert names == ["resume", "eval", "branch", "record", "runs"]
    for command in [*list(commands)[1:], next(iter(commands))]:  # a run that went on is no longer as it was
        assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err


def test_half_requests_do_not_keep_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., Server]
) -> None:
    """Connections without a whole request are closed: the oldest above a number, and all after some time."""
    HandRun(tmp_path)
    server = serve(tmp_path)
    sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    for each in sockets:
        each.sendall(_HALF)
    assert server.get("/api/runs").code == 200
    for each in sockets:
        each.settimeout(LONG_S)
        with suppress(ConnectionResetError), each:
            assert each.recv(1) == b""


def test_one_huge_file_costs_its_run_alone(tmp_path: Path, serve: Callable[..., Server]) -> None:
    small, huge = HandRun(tmp_path, "small"), HandRun(tmp_path, "huge")
    os.truncate(huge.dir.status_json, 3 << 30)
    answer = serve(tmp_path).get("/api/runs")
    assert answer.code == 200
    assert small.dir.name in answer.text


def read_code(server: Server, path: str) -> int:
    """The code of an answer whose body may be endless."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LONG_S)
    with closing(connection):
        connection.request("GET", path, headers={"Cookie": server.cookie})
        return connection.getresponse().status


def test_the_number_of_streams_is_limited(tmp_path: Path, serve: Callable[..., Server]) -> None:
    run = HandRun(tmp_path)
    run.add(1)
    server = serve(tmp_path)
    streams = [server.events("/events?since=0") for _ in range(100)]
    for stream in streams:
        assert next(stream)[0] == "runs"
    for path in ("/events?since=0", f"/events/{run.name}?offset=0"):
        answer = server.get(path)
        assert (answer.code, "too many pages are open" in answer.text) == (503, True)
    assert server.get("/api/runs").code == 200
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]
    wait_until(lambda: read_code(server, "/events?since=0") == 200)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_the_server_may_open_more_files(tmp_path: Path) -> None:
    code = (
        "import resource; from mission_gym.report.dashboard.serve import raise_file_limit\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)); raise_file_limit()\n"
        "raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "assert raised == (4096 if hard == resource.RLIM_INFINITY else min(4096, hard)), raised"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
