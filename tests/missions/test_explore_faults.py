"""What sites do to those who explore them: each fault is bounded and counted, and the episode goes on. Both
forms."""

import asyncio
import socket
import threading
from contextlib import closing
from socketserver import StreamRequestHandler, ThreadingTCPServer

import numpy as np
import pytest

from local_sites import LocalSite, page
from mission_gym.errors import EnvContractError, TargetSilent
from mission_gym_missions.explore.aio_env import AsyncExploreEnv
from mission_gym_missions.explore.env import ExploreEnv
from mission_gym_missions.explore.fetch import may_connect
from mission_gym_missions.explore.observation import BACK, FIRST_LINK
from mission_gym_missions.explore.site import Reply


class Awaited:
    """The coroutine form, driven like the plain one."""

    def __init__(self, **settings):
        self._loop = asyncio.new_event_loop()
        self._env = AsyncExploreEnv(**settings)
        self.explorer = self._env.explorer

    def reset(self, **given):
        return self._loop.run_until_complete(self._env.reset(**given))

    def step(self, action):
        return self._loop.run_until_complete(self._env.step(action))

    def close(self):
        self._loop.run_until_complete(self._env.close())
        self._loop.close()


FORMS = pytest.mark.parametrize("form", [ExploreEnv, Awaited], ids=["plain", "coroutine"])


def explore(form, site, **settings):
    given = {"targets": "/target the wanted words", "allow_loopback": True, "requests_per_s": 0} | settings
    return closing(form(base_url=getattr(site, "url", site), **given))


def home(*links):
    return page("home", *links)


FAULTS = {
    "status": (Reply(b"no", 500, "Internal Server Error"), {}),
    "broken": (Reply(fault="reset"), {}),
    "timeout": (Reply(fault="slow_body"), {"timeout_s": 0.3}),
    "too_large": (Reply(fault="huge"), {}),
    "redirects": (Reply(b"", 302, "Found", location="/bad"), {}),
    "off_site": (Reply(b"", 302, "Found", location="http://169.254.169.254/latest/"), {}),
}


@FORMS
@pytest.mark.parametrize("failure", FAULTS)
def test_a_page_that_can_not_be_had_is_an_empty_one_that_is_counted(form, failure):
    reply, settings = FAULTS[failure]
    replies = {"/": home("/bad", "/target"), "/bad": reply, "/target": page("found")}
    with LocalSite(replies) as site, explore(form, site, **settings) as env:
        _, info = env.reset(seed=0)
        assert info["action_mask"].tolist()[:6] == [1, 0, 0, 1, 1, 0]
        bad = FIRST_LINK + [link.node for link in env.explorer.memory.slots].index(1)
        _, reward, *ended, info = env.step(bad)
        assert (ended, reward < 0) == ([False, False], True)
        assert np.flatnonzero(info["action_mask"]).tolist() == [0, BACK]
        assert env.explorer.failures == {failure: 1}
        env.step(BACK)
        *_, info = env.step(FIRST_LINK)
    assert info["outcome"] == "found"
    assert info["episode_metrics"][f"failed_{failure}"] == 1


@FORMS
def test_a_compressed_bomb_is_refused_before_it_is_unpacked(form):
    with LocalSite({"/": home("/bad"), "/bad": Reply(fault="bomb")}) as site, explore(form, site) as env:
        env.reset(seed=0)
        env.step(FIRST_LINK)
        assert env.explorer.failures == {"too_large": 1}


class Hinting(StreamRequestHandler):
    """Sends hints before each answer, which links to the next path."""

    def handle(self):
        while words := self.rfile.readline().split():
            while self.rfile.readline().strip():
                pass
            path = words[1].decode()
            body = f"<title>page {path}</title><a href='{path}a'>on</a>".encode()
            hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n" * 2
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body)
            self.wfile.write(hints + head + body)


@FORMS
def test_hints_before_an_answer_are_left_out(form):
    with ThreadingTCPServer(("127.0.0.1", 0), Hinting) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with explore(form, f"http://127.0.0.1:{server.server_address[1]}/") as env:
            env.reset(seed=0)
            for _ in range(3):
                env.step(FIRST_LINK)
            urls = env.explorer.memory.graph.urls
            assert [url.rpartition("/")[2] for url in urls] == ["", "a", "aa", "aaa", "aaaa"]
            assert not env.explorer.failures
        server.shutdown()


@FORMS
def test_a_charset_that_does_not_exist_is_read_as_far_as_it_goes(form):
    odd = Reply(b"<a href='/target'>\xff\xfe</a>\x81", kind="text/html; charset=no-such-8")
    with LocalSite({"/": home("/odd"), "/odd": odd}) as site, explore(form, site) as env:
        env.reset(seed=0)
        *_, info = env.step(FIRST_LINK)
        assert info["action_mask"][FIRST_LINK] == 1
        assert not env.explorer.failures


@FORMS
def test_a_site_that_is_gone_ends_the_episode_and_the_next_ones_go_on_when_it_is_back(form):
    replies = {"/": home("/a"), "/a": page("there")}
    site = LocalSite(replies)
    with site:
        env = form(
            base_url=site.url, targets="/b some words", allow_loopback=True, requests_per_s=0, patience_s=0.5
        )
        env.reset(seed=0)
    with closing(env):
        _, _, terminated, truncated, info = env.step(FIRST_LINK)
        assert (info["outcome"], terminated, truncated) == ("site_down", False, True)
        assert info["episode_metrics"]["retries"] >= 1
        assert env.explorer.describe_target()[1].endswith("more got no answer")
        obs, info = env.reset(seed=1)
        assert obs[0] == 0
        assert np.flatnonzero(info["action_mask"]).tolist() == [0]
        *_, info = env.step(0)
        assert info["outcome"] == "site_down"
        with LocalSite(replies, site.port):
            env.reset(seed=2)
            *_, info = env.step(FIRST_LINK)
            assert info["outcome"] is None


BRIEF = {"patience_s": 0.2, "timeout_s": 0.2}


@FORMS
def test_a_site_that_never_answers_ends_the_run(form):
    with LocalSite({}) as site:
        pass
    address = site.url.rstrip("/")
    with (
        explore(form, site, **BRIEF) as env,
        pytest.raises(TargetSilent, match=rf"^the target {address} does not answer: \d+ .* \[base_url\]$"),
    ):
        env.reset(seed=0)


@FORMS
def test_a_site_that_accepts_connections_but_never_answers_ends_the_run(form):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with explore(form, url, **BRIEF) as env, pytest.raises(TargetSilent, match="as timeout; start it"):
            env.reset(seed=0)


@FORMS
def test_a_site_that_stays_away_ends_the_run(form):
    with LocalSite({"/": home("/a"), "/a": page("there")}) as site:
        env = form(base_url=site.url, targets="/b words", allow_loopback=True, requests_per_s=0, **BRIEF)
        env.reset(seed=0)

    def play():
        while True:
            env.step(FIRST_LINK)
            env.reset(seed=1)

    with closing(env), pytest.raises(TargetSilent, match="as unreachable; start it"):
        play()


@FORMS
def test_bodies_that_never_end_are_answers(form):
    slow = ("/a", "/b", "/c", "/d")
    replies = {"/": home(*slow)} | dict.fromkeys(slow, Reply(fault="slow_body"))
    with LocalSite(replies) as site, explore(form, site, **BRIEF) as env:
        env.reset(seed=0)
        for _ in range(4):
            env.step(FIRST_LINK)
            env.step(BACK)
        assert env.explorer.failures["timeout"] == 4


@FORMS
def test_a_name_that_resolves_elsewhere_the_second_time_is_refused(form, monkeypatch):
    addresses = ["127.0.0.1", "10.1.2.3"]

    def resolve(host, port, *args, **kwargs):
        assert host == "moving.example"
        now = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (now, int(port)))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with (
        LocalSite({"/": home("/a"), "/a": Reply(fault="reset")}) as site,
        explore(form, f"http://moving.example:{site.port}/") as env,
    ):
        env.reset(seed=0)
        env.step(FIRST_LINK)  # breaks the connection: the second try needs another one
        assert env.explorer.failures == {"refused": 1}


@FORMS
def test_loopback_must_be_allowed(form):
    with LocalSite({}) as site, explore(form, site, allow_loopback=False) as env:
        with pytest.raises(EnvContractError, match="not on the public Internet"):
            env.reset(seed=0)
        assert not site.asked


@FORMS
def test_robots_txt_of_the_site_is_obeyed(form):
    rules = Reply(b"User-agent: *\nDisallow: /private/", kind="text/plain")
    with LocalSite({"/robots.txt": rules, "/": home("/private/a", "/b"), "/b": page()}) as site:
        with explore(form, site) as env:
            _, info = env.reset(seed=0)
            assert info["action_mask"].sum() == 2
            env.reset(seed=1)
        assert site.asked == ["/robots.txt", "/target", "/", "/"]


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1", "172.16.5.4", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "198.18.0.1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:10.0.0.1",
        "::ffff:169.254.169.254", "64:ff9b::a00:1", "2002:a00:1::", "fd00:ec2::254", "no address",
        "64:ff9b:1::a00:1", "::10.0.0.1", "fec0::1",
    ],
)  # fmt: skip
def test_private_and_special_addresses_are_refused_in_every_form(address):
    assert not may_connect(address, allow_loopback=True)


def test_public_addresses_may_be_connected_to_and_loopback_where_it_is_allowed():
    assert may_connect("93.184.216.34", allow_loopback=False)
    assert may_connect("2606:2800:220:1:248:1893:25c8:1946", allow_loopback=False)
    for address in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"):
        assert may_connect(address, allow_loopback=True)
        assert not may_connect(address, allow_loopback=False)
