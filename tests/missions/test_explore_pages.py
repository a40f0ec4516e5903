"""Pages as they come from the network, and addresses as pages write them."""

import pytest

from mission_gym_missions.explore.pages import compare, find_words, is_same_site, join, read_page

URL = "http://example.org/docs/start.html"


@pytest.mark.parametrize(
    ("reference", "address"),
    [
        ("next.html", "http://example.org/docs/next.html"),
        ("/a/b#part", "http://example.org/a/b"),
        ("../up?x=1", "http://example.org/up?x=1"),
        ("/open/%2e%2E/private/./x", "http://example.org/private/x"),
        ("", URL),
        ("HTTP://EXAMPLE.org:80", "http://example.org/"),
        ("//other.net/x", "http://other.net/x"),
        ("https://example.org:8443/", "https://example.org:8443/"),
        ("/gr\u00fcn und blau", "http://example.org/gr%C3%BCn%20und%20blau"),
        ("/50%25/%zz", "http://example.org/50%25/%zz"),
        ("mailto:a@example.org", ""),
        ("javascript:alert(1)", ""),
        ("http://user:word@example.org/", ""),
        ("http://example.org:99999/", ""),
        ("http://[::1", ""),
        ("/" + "x" * 3000, ""),
        ("/a\r\nHost: b", "http://example.org/a%0D%0AHost:%20b"),
    ],
)
def test_addresses_are_joined_or_left_out(reference, address):
    assert join(URL, reference) == address


def test_only_the_same_scheme_host_and_port_is_the_same_site():
    assert is_same_site("http://example.org/x", URL)
    for other in ("https://example.org/", "http://example.org:81/", "http://example.org.evil.net/"):
        assert not is_same_site(other, URL)


def test_links_words_and_places_are_read():
    html = b"""<title>Red Planets</title><body><h1>Mars 2</h1><script>var hidden</script>
      <nav><a href="/">Home</a></nav><aside><a href="/news/mars-rover">read <b>more</b></a></aside>
      <p>Dust storms.</p><a href="/">again</a><a href="#top">top</a><a href="http://other.net/">away</a>
      <a rel="next nofollow" href="?page=2">&gt;</a><a name="x">none</a>"""
    read = read_page("http://example.org/mars", html, "text/html")
    assert read.title == {"red", "planets", "mars"}
    assert {"dust", "storms"} <= read.text
    assert "hidden" not in read.text
    home, news, following = read.links
    assert [link.url for link in read.links] == [
        f"http://example.org{path}" for path in ("/", "/news/mars-rover", "/mars?page=2")
    ]
    assert (home.in_frame, home.in_aside, home.is_next) == (True, False, False)
    assert (news.in_frame, news.in_aside, news.is_next) == (False, True, False)
    assert news.words == {"read", "more", "news", "mars", "rover"}
    assert following.is_next


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("<title>grün</title>".encode("latin-1"), "text/html; charset=ISO-8859-1"),
        ("<title>grün</title>".encode(), "text/html; charset=no-such-8"),
        ("<title>grün</title>".encode(), 'text/html; charset="hex"'),
        ('<meta charset="cp1252"><title>grün</title>'.encode("cp1252"), "text/html"),
        ("<title>grün</title>".encode(), ""),
        ("<title>grün</title>".encode("gb18030"), "text/html; charset=gb2312"),
        # which would be unpacked, and takes the square of the time
        ("<title>grün</title>".encode() + b"a" * 1000 + b"-" + b"a" * 500_000, "text/html; charset=punycode"),
    ],
)
def test_charsets_good_and_bad_are_read(body, kind):
    assert read_page(URL, body, kind).title == {"grün"}


def test_other_kinds_and_broken_bytes_are_pages_without_links():
    assert read_page(URL, b"%PDF <a href='/x'>x</a>", "application/pdf").links == ()
    assert read_page(URL, bytes(range(256)) * 40, "text/html; charset=utf-16").links == ()


@pytest.mark.parametrize(
    "filler",
    [
        b"<div>" * 200_000,
        b"<b>" * 99_000 + b"</p>" * 99_000,
        b"<script>" * 100_000,
        b"<p " + b"x y z " * 150_000,
    ],
    ids=["nested", "unclosed", "scripts", "attributes"],
)
def test_pages_that_are_made_to_take_long_are_cut(filler):
    read = read_page(URL, b"<a href='/first'>x</a>" + filler + b"<a href='/last'>x</a>", "text/html")
    assert [link.url for link in read.links] == ["http://example.org/first"]


def test_long_scripts_do_not_hide_the_links_behind_them():
    html = (
        b"<script>" + b"var x = '<a href=/no>';" * 9000 + b"</SCRIPT ><style>p {}</style><a href='/yes'>x</a>"
    )
    assert [link.url for link in read_page(URL, html, "text/html").links] == ["http://example.org/yes"]


def test_similarity_is_the_cosine_of_sets_of_words():
    assert find_words("Two-word WORDS, 3 of_them!") == {"two", "word", "words", "them"}
    assert compare(frozenset("abcd"), frozenset("cd")) == pytest.approx(2 / 8**0.5)
    assert compare(frozenset(), frozenset("cd")) == 0.0
