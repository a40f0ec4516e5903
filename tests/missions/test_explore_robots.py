"""robots.txt as RFC 9309 has it."""

import pytest

from mission_gym_missions.explore.robots import Robots, fits

SITE = "http://example.org"


def allowed(text, *paths):
    robots = Robots(text, "mission-gym")
    return [path for path in paths if robots.allows(SITE + path)]


@pytest.mark.parametrize(
    ("pattern", "path", "does"),
    [
        ("/a", "/ab", True), ("/a$", "/ab", False), ("/a$", "/a", True), ("/*.pdf$", "/x/y.pdf", True),
        ("/*.pdf$", "/x.pdf?a", False), ("/*.pdf", "/x.pdf?a", True), ("/a*b*c", "/a-b-c-d", True),
        ("/a*b*c", "/acb", False), ("*", "/", True), ("/a*a$", "/a", False), ("/*?", "/x", False),
    ],
)  # fmt: skip
def test_patterns(pattern, path, does):
    assert fits(pattern, path) == does


def test_the_longest_rule_decides_whatever_the_order():
    text = "User-agent: *\nAllow: /\nDisallow: /private/\nAllow: /private/open\nDisallow: /*?"
    paths = ("/", "/x", "/private/", "/private/open/a", "/x?page=2")
    assert allowed(text, *paths) == ["/", "/x", "/private/open/a"]
    assert allowed("User-agent: *\nDisallow: /a\nAllow: /a", "/a") == ["/a"]
    assert allowed("User-agent: *\nDisallow: /*a\nAllow: /ba", "/ba") == ["/ba"]


def test_the_group_of_the_agent_is_taken_and_that_of_all_where_it_has_none():
    text = "User-agent: other\nUser-agent: Mission-Gym/2\nDisallow: /a # why\n\nUser-agent: *\nDisallow: /b\n"
    assert allowed(text, "/a", "/b") == ["/b"]
    assert allowed("User-agent: *\nDisallow: /b\nuser-agent: x\nDisallow: /", "/a", "/b") == ["/a"]
    assert allowed("Disallow: /\nUser-agent: x\nDisallow: /", "/a") == ["/a"]
    assert allowed("User-agent: *\nDisallow:", "/a") == ["/a"]
    assert allowed("User-agent: *\nDisallow: /", "/", "/a") == []


def test_escapes_mean_what_they_stand_for():
    assert allowed("User-agent: *\nDisallow: /grün", "/gr%C3%BCn/a", "/gr") == ["/gr"]
    assert allowed("User-agent: *\nDisallow: /%7Ejoe", "/~joe/") == []


@pytest.mark.parametrize(("value", "delay_s"), [("2", 2.0), ("0.5", 0.5), ("soon", 0.0), ("9" * 99, 0.0)])
def test_a_delay_is_read(value, delay_s):
    assert Robots(f"User-agent: *\nCrawl-delay: {value}\nDisallow: /x", "mission-gym").delay_s == delay_s


def test_a_large_file_of_rules_is_read_within_its_limit():
    many = "\n".join(f"Disallow: /no/{number}" for number in range(100_000))
    rules = Robots(f"User-agent: *\n{many}\n" + "Disallow: /*a*a*a*a$\n" * 5, "mission-gym")
    assert not any(rules.allows(f"{SITE}/no/{number}") for number in range(2000))
    assert rules.allows(SITE + "/yes/" + "a" * 1900)
