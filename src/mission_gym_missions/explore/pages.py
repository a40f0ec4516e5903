"""Reads pages: bytes of HTML in, words and links out. Nothing in them is trusted.

Words are runs of letters in lower case. Links are those to the same site, each address once, in page order,
without fragments. Content beyond the limits is dropped.
"""

from __future__ import annotations

import codecs
import math
import re
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from mission_gym.errors import UsageError

try:
    from selectolax.lexbor import LexborHTMLParser
except ImportError as error:
    raise UsageError(
        f"mission_gym/Explore-v0 needs a package that is not installed ({error}); "
        'run: pip install "mission-gym[web]"'
    ) from error

_MAX_LINKS = 400
_MAX_HTML = 100_000  # characters without scripts; parsing maliciously nested tags takes quadratic time
_MAX_ADDRESS = 2000
_RESERVED = "/:?#[]@!$&'()*+,;=%~"  # reserved characters of an address
_UNSAFE = re.compile(r"[^!#-;=?-\[\]_a-z~]")
_WORD = re.compile(r"[^\W\d_]{3,}")
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_TEXT_CODECS = re.compile(
    r"utf-(8|16|32)|ascii|iso8859|cp\d|koi8|gb|big5|euc|iso2022|shift_jis|mac|hz|johab|tis|ptcp|kz"
)
_SCRIPTS = [
    (re.compile(f"<{tag}\\b", re.IGNORECASE), re.compile(f"</{tag}\\b", re.IGNORECASE))
    for tag in ("script", "style")
]
Words = frozenset[str]


class PageLink(NamedTuple):
    """A link to a page of the same site."""

    url: str
    words: Words  # of its text and its address
    in_frame: bool  # in the navigation, the header or the footer
    in_aside: bool
    is_next: bool  # to the next page of a list


class Page(NamedTuple):
    """The contents of a page; a page that did not load has none."""

    url: str
    title: Words = frozenset()
    text: Words = frozenset()
    links: tuple[PageLink, ...] = ()


def read_page(url: str, body: bytes, content_type: str) -> Page:
    """Read the body of a response; anything but HTML has neither words nor links."""
    kind, _, parameters = content_type.partition(";")
    if kind.strip().lower() not in ("", "text/html", "application/xhtml+xml"):
        return Page(url)
    html = _decode(body, parameters)
    for begin, end in _SCRIPTS:
        html = _remove_between(html, begin, end)
    tree = LexborHTMLParser(html[:_MAX_HTML])
    tree.strip_tags(["noscript", "template", "svg"])
    titles = " ".join(node.text() for node in tree.css("title, h1")[:4])
    text = tree.body.text(separator=" ") if tree.body is not None else ""
    frame = {node.mem_id for node in tree.css("nav a, header a, footer a")}
    aside = {node.mem_id for node in tree.css("aside a")}
    base = tree.css_first("base[href]")
    start = url if base is None else join(url, base.attributes.get("href") or "") or url
    links: dict[str, PageLink] = {}
    for node in tree.css("a[href]"):
        address = join(start, node.attributes.get("href") or "")
        if not address or address == url or address in links or not is_same_site(address, url):
            continue
        shown = node.text()[:_MAX_ADDRESS]
        rel = (node.attributes.get("rel") or "").lower().split()
        words = find_words(shown) | find_words(urlsplit(address).path)
        is_next = "next" in rel or shown.strip().lower() == "next"
        links[address] = PageLink(address, words, node.mem_id in frame, node.mem_id in aside, is_next)
        if len(links) == _MAX_LINKS:
            break
    return Page(url, find_words(titles), find_words(text), tuple(links.values()))


def join(url: str, reference: str) -> str:
    """Resolve a reference on the page at `url`; empty if it is not a web address."""
    reference = reference.partition("#")[0].strip().replace("%2e", ".").replace("%2E", ".")
    if len(reference) > _MAX_ADDRESS:
        return ""
    if _UNSAFE.search(reference):
        reference = quote(reference, _RESERVED)
    if reference[:1] == "/" != reference[1:2] and "/." not in reference:  # the common case, ten times as fast
        return origin_of(url) + reference
    try:
        joined = urlsplit(urljoin(url, reference))
        if joined.scheme not in ("http", "https") or not joined.hostname or joined.username is not None:
            return ""
        origin = _make_origin(joined.scheme, joined.hostname, joined.port)
    except ValueError:  # such as a port that is not a number
        return ""
    return origin + (joined.path or "/") + (f"?{joined.query}" if joined.query else "")


def origin_of(url: str) -> str:
    """Return scheme, host and port of an address made by `join`."""
    return url[: url.index("/", 8)]


def is_same_site(address: str, url: str) -> bool:
    """Whether two addresses made by `join` have the same scheme, host and port."""
    return address.startswith(f"{origin_of(url)}/")


def _make_origin(scheme: str, host: str, port: int | None) -> str:
    host = f"[{host}]" if ":" in host else host.lower()
    usual = {"http": 80, "https": 443}[scheme]
    return f"{scheme}://{host}" + ("" if port in (None, usual) else f":{port}")


def find_words(text: str) -> Words:
    """Return the set of words of a text."""
    return frozenset(_WORD.findall(text.lower()))


def compare(words: Words, wanted: Words) -> float:
    """Return the cosine similarity of two sets of words, from 0 to 1."""
    if not words or not wanted:
        return 0.0
    return len(words & wanted) / math.sqrt(len(words) * len(wanted))


def _remove_between(html: str, begin: re.Pattern[str], end: re.Pattern[str]) -> str:
    """Remove the text between two patterns; an unclosed part extends to the end."""
    parts, start = [], 0
    while opened := begin.search(html, start):
        parts.append(html[start : opened.start()])
        closed = end.search(html, opened.end())
        if closed is None:
            return "".join(parts)
        start = closed.start()  # the parser ignores an end tag without a start tag
    return "".join([*parts, html[start:]])


def _decode(body: bytes, parameters: str) -> str:
    """Decode by the charset of the header, else of the page, else UTF-8; invalid bytes are replaced."""
    named = re.search(r"charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", parameters, re.IGNORECASE)
    declared = _CHARSET.search(body[:2048])
    charset = named[1] if named else declared[1].decode() if declared else "utf-8"
    try:
        codec = codecs.lookup(charset).name
    except (LookupError, ValueError):
        codec = ""
    # Other codecs are not charsets of pages, and some take quadratic time (punycode).
    return body.decode(codec if _TEXT_CODECS.match(codec) else "utf-8", "replace")
