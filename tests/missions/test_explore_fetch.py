"""How pages are fetched, with canned responses: redirects, robots.txt, back-off, limits."""

import gzip

import pytest

from mission_gym.errors import EnvContractError, UsageError
from mission_gym_missions.explore.fetch import (
    BROKEN,
    REFUSED,
    TIMEOUT,
    TOO_LARGE,
    UNREACHABLE,
    Body,
    BodyError,
    FetchLimits,
    Get,
    Host,
    Pacer,
    Pause,
    Response,
)

ROOT = "http://example.org/"


def run(generator, answers):
    """Play the network: responses by address, lists in turn. Returns the result and all requests."""
    requests, answer = [], None
    try:
        while True:
            request = generator.send(answer)
            requests.append(request)
            answer = None
            if isinstance(request, Get):
                found = answers.get(request.url, Response(404))
                answer = found.pop(0) if isinstance(found, list) else found
    except StopIteration as done:
        return done.value, requests


def to(location):
    return Response(302, location=location)


def host(**limits):
    return Host(ROOT, FetchLimits(**limits))


PAGE = Response(200, b"<title>here</title>", "text/html")


def test_redirects_are_followed_inside_the_site_and_counted():
    fetched, requests = run(
        host().fetch(f"{ROOT}a"), {f"{ROOT}a": to("b"), f"{ROOT}b": to("/c/"), f"{ROOT}c/": PAGE}
    )
    assert (fetched.page.url, fetched.page.title, fetched.num_requests) == (f"{ROOT}c/", {"here"}, 3)
    assert not fetched.failure
    assert len(requests) == 3


@pytest.mark.parametrize(
    ("location", "failure", "requests"),
    [
        ("http://169.254.169.254/latest/", "off_site", 1),
        ("https://example.org/", "off_site", 1),
        ("http://example.org:81/", "off_site", 1),
        ("javascript:x", BROKEN, 1),
        ("/a", "redirects", 6),
        ("", "redirects", 6),  # the page itself
    ],
)
def test_other_redirects_end_there(location, failure, requests):
    fetched, _ = run(host().fetch(f"{ROOT}a"), {f"{ROOT}a": to(location)})
    assert (fetched.failure, fetched.num_requests, fetched.is_down) == (failure, requests, False)


@pytest.mark.parametrize("status", [403, 404, 410, 500, 502])
def test_an_error_is_an_answer_and_asked_for_once(status):
    fetched, requests = run(host().fetch(ROOT), {ROOT: Response(status)})
    assert (fetched.failure, fetched.is_down, len(requests)) == ("status", False, 1)


def test_a_site_that_is_gone_is_asked_again_with_growing_pauses_until_patience_ends():
    fetched, requests = run(
        host(patience_s=10).fetch(ROOT), {ROOT: Response(failure=UNREACHABLE, took_s=0.5)}
    )
    pauses = [request.seconds for request in requests if isinstance(request, Pause)]
    assert fetched.is_down
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0])
    assert fetched.num_requests == 1
    assert fetched.num_retries == len(pauses)
    assert sum(pauses) + 0.5 * (len(pauses) + 1) <= 10
    back, _ = run(host().fetch(ROOT), {ROOT: [Response(failure=UNREACHABLE), PAGE]})
    assert not back.failure


def test_a_busy_site_is_given_the_time_it_asks_for():
    answers = [Response(503, retry_after="3"), Response(429, retry_after="tomorrow"), PAGE]
    fetched, requests = run(host().fetch(ROOT), {ROOT: answers})
    assert [request.seconds for request in requests if isinstance(request, Pause)] == [3.0, 0.2]
    assert not fetched.failure
    late, requests = run(host(patience_s=2).fetch(ROOT), {ROOT: Response(503, retry_after="3600")})
    assert (late.failure, late.is_down, len(requests)) == ("status", False, 1)


def test_a_connection_that_breaks_is_tried_once_more_and_slow_or_large_answers_are_not():
    for failure, tries in ((BROKEN, 2), (TIMEOUT, 1), (TOO_LARGE, 1), (REFUSED, 1)):
        fetched, requests = run(host().fetch(ROOT), {ROOT: Response(failure=failure, took_s=1)})
        assert (fetched.failure, fetched.is_down, len(requests)) == (failure, False, tries)


def test_a_chain_of_slow_redirects_shares_one_patience():
    slow = Response(302, location="/a", took_s=7)
    fetched, requests = run(host(patience_s=15).fetch(f"{ROOT}a"), {f"{ROOT}a": slow})
    assert (fetched.failure, len(requests)) == (TIMEOUT, 3)


def test_robots_txt_is_obeyed_for_pages_links_and_redirects():
    site = host()
    rules = b"User-agent: other\nDisallow: /\n\nUser-agent: *\nDisallow: /private/\nCrawl-delay: 2"
    answers = {
        f"{ROOT}robots.txt": [Response(200, rules)],
        ROOT: Response(200, b'<a href="/private/x">no</a><a href="/x">yes</a>', "text/html"),
        f"{ROOT}x": to("/private/x"),
    }
    assert run(site.read_robots(), answers) == (True, [Get(f"{ROOT}robots.txt")])
    assert run(site.read_robots(), answers) == (True, [])
    fetched, _ = run(site.fetch(ROOT), answers)
    assert [link.url for link in fetched.page.links] == [f"{ROOT}x"]
    for path in ("x", "private/y"):
        refused, requests = run(site.fetch(ROOT + path), answers)
        assert refused.failure == "forbidden"
        assert Get(f"{ROOT}private/x") not in requests


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [(Response(404), True), (Response(403), True), (Response(500), False), (Response(failure=BROKEN), False)],
)
def test_without_robots_txt_all_is_allowed_and_nothing_if_it_is_broken(answer, allowed):
    site = host(patience_s=0.1)
    run(site.read_robots(), {f"{ROOT}robots.txt": answer})
    assert site.allows(f"{ROOT}x") == allowed


def test_a_site_at_a_forbidden_address_is_refused_with_what_to_do():
    with pytest.raises(EnvContractError, match=r"not on the public Internet, .* allow_loopback=true"):
        run(host().read_robots(), {f"{ROOT}robots.txt": Response(failure=REFUSED)})


def test_requests_keep_their_distance_and_too_long_a_queue_is_refused():
    pacer = Pacer(0.25)
    assert pacer.claim() == 0.0
    waits = [pacer.claim() for _ in range(4)]
    assert waits == pytest.approx([4, 8, 12, 16], abs=3)
    pacer.slow_down(5.0)
    pacer.claim()
    with pytest.raises(UsageError, match="over 20 s, at one every 5 s; use fewer environments"):
        pacer.claim()
    assert Pacer.of(ROOT, 5) is Pacer.of(ROOT, 5)
    site = Host(ROOT, FetchLimits(), Pacer(100))
    run(site.read_robots(), {f"{ROOT}robots.txt": Response(200, b"User-agent: *\nCrawl-delay: 3\nDisallow:")})
    run(site.fetch(ROOT), {ROOT: PAGE})
    _, requests = run(site.fetch(ROOT), {ROOT: PAGE})
    assert 1 < requests[0].seconds < 4


def unpack(encoding, data):
    body = Body(encoding, 1000)
    body.add(data)
    return body.finish()


def test_bodies_are_unpacked_within_their_limit():
    body = Body("gzip", 1000)
    packed = gzip.compress(b"x" * 900)
    body.add(packed[:10])
    body.add(packed[10:])
    assert body.finish() == b"x" * 900
    cases = [
        ("gzip", gzip.compress(bytes(50_000_000)), TOO_LARGE),
        ("", b"x" * 1001, TOO_LARGE),
        ("gzip", b"no gzip at all", BROKEN),
        ("gzip", packed[:-4], BROKEN),
        ("br", b"", BROKEN),
        ("gzip, gzip", b"", BROKEN),
    ]
    for encoding, data, failure in cases:
        with pytest.raises(BodyError, match=failure):
            unpack(encoding, data)
