"""Generated web sites: every page is a function of the site's number and the path, made on request.

The home page links to sections, sections to communities, and communities list their articles on pages of ten.
Articles link mostly to their own community. News use a community's words but lead only to other news. Some
articles are dead ends, some fail or answer slowly, some links redirect, and some say only `read more`. Sizes
and words differ from site to site.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

LISTED = 10  # articles per page of a list
_POOL = 400  # words that all titles of a site share
_FIRST_SECTION, _FIRST_COMMUNITY = 1000, 2000  # word numbers; the pool comes first
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_NUM_WORDS = len(_SYLLABLES) ** 3
_EIGHT = struct.Struct("<8I")
# Answers of hostile articles. The server performs those that a Reply cannot express.
FAULTS = ("reset", "slow_body", "huge", "bomb", "loop", "charset", "private")
_ERRORS = ((404, "Not Found"), (500, "Internal Server Error"))


class SiteRules(NamedTuple):
    """The settings of all sites of a server. Shares are of articles, or of the links that list them."""

    num_pages: int = 3000  # approximately
    dead_ends: float = 0.1
    errors: float = 0.05
    slow: float = 0.04
    redirects: float = 0.1
    nameless: float = 0.08  # links that do not name their article
    vague: float = 0.3  # tasks that do not name the section
    faults: float = 0.0  # hostile articles


class Reply(NamedTuple):
    """An answer of the server."""

    body: bytes = b""
    status: int = 200
    reason: str = "OK"
    kind: str = "text/html; charset=utf-8"
    location: str = ""
    is_slow: bool = False
    fault: str = ""  # one of FAULTS


class _Link(NamedTuple):
    path: str
    text: str
    rel: str = ""


class _Article(NamedTuple):
    section: int
    community: int
    number: int


class Site:
    """One site. Its paths start with its number."""

    def __init__(self, number: int, rules: SiteRules) -> None:
        self._number, self._rules = number, rules
        self._root = f"/{number}"
        drawn = self._draw("sizes")
        self._first_word = int(drawn[2] * _NUM_WORDS)
        self._word_step = 1 + 210 * int(drawn[3] * 1000)  # coprime to the number of words
        self._num_sections = 6 + int(3 * drawn[0])
        self._num_communities = 4 + int(4 * drawn[1])
        self._mean_size = max(1.0, rules.num_pages / (self._num_sections * self._num_communities))

    def reply(self, path: str) -> Reply:
        """Return the answer to a path, without the site's number."""
        kind, *parts = path.strip("/").split("/")
        if not kind and not parts:
            return self._page("welcome", "", self._home_links(), self._news(-1, "home"))
        try:
            numbers = [int(part) for part in parts]
        except ValueError:
            return _refuse(404)
        if kind == "task" and len(numbers) == 1:
            return self._task(numbers[0])
        if kind == "loop" and len(numbers) == 1:
            return self._hostile(kind, numbers[0])
        if kind == "section" and len(numbers) == 1 and self._has(*numbers):
            return self._section(*numbers)
        if kind == "topic" and len(numbers) == 3 and self._has(*numbers[:2]):
            return self._topic(*numbers)
        if kind == "news" and len(numbers) == 2 and self._has(numbers[0]):
            return self._news_page(*numbers)
        if kind in ("article", "go") and len(numbers) == 3 and self._has(*numbers):
            article = _Article(*numbers)
            if kind == "go":
                return Reply(status=302, reason="Found", location=self._path(article))
            return self._article(article)
        return _refuse(404)

    def _task(self, number: int) -> Reply:
        """Return a task: an article that loads, described by words of its title, community and section."""
        for attempt in range(1000):
            drawn = self._draw("task", number, attempt)
            article = self._pick(drawn)
            if not self._is_broken(article):
                break
        words = [*self._community_words(*article[:2])[:2], *self._title(article).split()[1:]]
        if drawn[3] >= self._rules.vague:
            words.insert(0, self._section_word(article.section))
        task = {"home": f"{self._root}/", "target": self._path(article), "words": " ".join(words)}
        return Reply(json.dumps(task).encode(), kind="application/json")

    def _section(self, section: int) -> Reply:
        links = [
            _Link(self._topic_path(section, community), self._community_name(section, community))
            for community in range(self._num_communities)
        ]
        links += self._featured(2, "section", section)
        return self._page(self._section_word(section), "", links, self._news(section, "section"), section)

    def _topic(self, section: int, community: int, number: int) -> Reply:
        """Return a page of the list of a community's articles."""
        size = self._size(section, community)
        last = (size - 1) // LISTED
        if not 0 <= number <= last:
            return _refuse(404)
        entries = range(number * LISTED, min(size, (number + 1) * LISTED))
        links = [self._entry(_Article(section, community, entry)) for entry in entries]
        if number > 0:
            links.append(_Link(self._topic_path(section, community, number - 1), "previous", "prev"))
        if number < last:
            links.append(_Link(self._topic_path(section, community, number + 1), "next", "next"))
        name = self._community_name(section, community)
        return self._page(name, name, links, self._news(section, "topic", community), section)

    def _article(self, article: _Article) -> Reply:
        drawn = self._draw("fate", *article)
        if drawn[0] < self._rules.errors:
            return _refuse(*_ERRORS[int(2 * drawn[1])])
        if drawn[5] < self._rules.faults:
            return self._hostile(FAULTS[int(len(FAULTS) * drawn[6])])
        section, community, number = article
        title = self._title(article)
        text = " ".join(
            (title, *self._community_words(section, community), *self._pooled(8, "text", *article))
        )
        if drawn[2] < self._rules.dead_ends:
            return self._page(title, text, [], [])
        size = self._size(section, community)
        related = {int(part * size) for part in self._draw("related", *article)[:4]} - {number}
        links = [self._entry(_Article(section, community, other)) for other in sorted(related)]
        links += self._featured(2, "article", *article)
        news = self._news(section, "article", community)[:1]
        page = self._page(title, text, links, news, section, community)
        return page._replace(is_slow=drawn[3] < self._rules.slow)

    def _hostile(self, fault: str, number: int = 0) -> Reply:
        away = {"loop": f"{self._root}/loop/{number + 1}", "private": "http://169.254.169.254/latest/"}
        if fault in away:
            return Reply(status=302, reason="Found", location=away[fault])
        if fault == "charset":
            return Reply(b"<title>\xff\xfe\x00</title>\x81<p>\xc3\x28", kind="text/html; charset=no-such-8")
        return Reply(fault=fault)

    def _news_page(self, section: int, number: int) -> Reply:
        title = self._news_title(section, number)
        links = [self._news_link(section, int(64 * part)) for part in self._draw("more", section, number)[:3]]
        return self._page(title, " ".join((title, *self._pooled(8, "news", section, number))), links, [])

    def _home_links(self) -> list[_Link]:
        sections = range(self._num_sections)
        named = [_Link(self._section_path(section), self._section_word(section)) for section in sections]
        return named + self._featured(4, "home")

    def _page(
        self,
        title: str,
        text: str,
        links: list[_Link],
        news: list[_Link],
        section: int | None = None,
        community: int | None = None,
    ) -> Reply:
        trail = [_Link(f"{self._root}/", "home")]
        if section is not None and community is not None:
            trail.append(
                _Link(self._topic_path(section, community), self._community_name(section, community))
            )
        elif section is not None and text:
            trail.append(_Link(self._section_path(section), self._section_word(section)))
        if not links:
            trail = []
        html = (
            '<!doctype html><html><head><meta charset="utf-8">'
            f"<title>{title}</title></head><body><nav>{''.join(_show(trail))}</nav>"
            f"<main><h1>{title}</h1><p>{text}</p><ul>{''.join(_show(links, 'li'))}</ul></main>"
            f"<aside>{''.join(_show(news))}</aside></body></html>"
        )
        return Reply(html.encode())

    def _entry(self, article: _Article) -> _Link:
        """Return a list's link to an article."""
        drawn = self._draw("article", *article)
        kind = "go" if drawn[4] < self._rules.redirects else "article"
        text = "read more" if drawn[5] < self._rules.nameless else self._title(article, drawn)
        return _Link(self._path(article, kind), text)

    def _featured(self, count: int, *key: int | str) -> list[_Link]:
        """Return links to articles of the whole site."""
        links = []
        for number in range(count):
            article = self._pick(self._draw("featured", *key, number))
            links.append(_Link(self._path(article), self._title(article)))
        return links

    def _pick(self, drawn: list[float]) -> _Article:
        """Return the article of three numbers from 0 to 1."""
        section, community = int(drawn[0] * self._num_sections), int(drawn[1] * self._num_communities)
        return _Article(section, community, int(drawn[2] * self._size(section, community)))

    def _news(self, section: int, *key: int | str) -> list[_Link]:
        """Return links to news of all sections (-1), of one section, or of one of its communities."""
        drawn = self._draw("news links", section, *key)
        links = []
        for part, other in zip(drawn[:3], drawn[3:6], strict=True):
            about = int(other * self._num_sections) if section < 0 else section
            number = int(64 * part)
            if len(key) > 1:  # news of the community
                number -= number % self._num_communities - int(key[1])
            links.append(self._news_link(about, number))
        return links

    def _news_link(self, section: int, number: int) -> _Link:
        return _Link(f"{self._root}/news/{section}/{number}", self._news_title(section, number))

    def _news_title(self, section: int, number: int) -> str:
        """Return words of one of the section's communities, and some of the pool."""
        words = self._community_words(section, number % self._num_communities)[:2]
        return " ".join((*words, *self._pooled(2, "news title", section, number)))

    def _title(self, article: _Article, drawn: list[float] | None = None) -> str:
        """Return a word of the community, and three of the pool."""
        drawn = self._draw("article", *article) if drawn is None else drawn
        first = self._community_words(article.section, article.community)[int(4 * drawn[0])]
        return " ".join((first, *(self._word(int(_POOL * part)) for part in drawn[1:4])))

    def _pooled(self, count: int, *key: int | str) -> list[str]:
        return [self._word(int(_POOL * part)) for part in self._draw(*key)[:count]]

    def _section_word(self, section: int) -> str:
        return self._word(_FIRST_SECTION + section)

    def _community_words(self, section: int, community: int) -> list[str]:
        first = _FIRST_COMMUNITY + 4 * (section * self._num_communities + community)
        return [self._word(first + number) for number in range(4)]

    def _community_name(self, section: int, community: int) -> str:
        return " ".join(self._community_words(section, community)[:2])

    def _word(self, number: int) -> str:
        """Return a word of three syllables; the words of a site are distinct."""
        rest, last = divmod((self._first_word + self._word_step * number) % _NUM_WORDS, len(_SYLLABLES))
        first, middle = divmod(rest, len(_SYLLABLES))
        return _SYLLABLES[first] + _SYLLABLES[middle] + _SYLLABLES[last]

    def _size(self, section: int, community: int) -> int:
        """Return the number of articles of a community: from a third to five thirds of the mean."""
        return max(1, round(self._mean_size * (1 / 3 + 4 / 3 * self._draw("size", section, community)[0])))

    def _is_broken(self, article: _Article) -> bool:
        drawn = self._draw("fate", *article)
        return drawn[0] < self._rules.errors or drawn[5] < self._rules.faults

    def _has(self, section: int, community: int = 0, number: int = 0) -> bool:
        return (
            0 <= section < self._num_sections
            and 0 <= community < self._num_communities
            and 0 <= number < self._size(section, community)
        )

    def _path(self, article: _Article, kind: str = "article") -> str:
        return f"{self._root}/{kind}/{article.section}/{article.community}/{article.number}"

    def _section_path(self, section: int) -> str:
        return f"{self._root}/section/{section}"

    def _topic_path(self, section: int, community: int, number: int = 0) -> str:
        return f"{self._root}/topic/{section}/{community}/{number}"

    def _draw(self, *key: int | str) -> list[float]:
        """Return eight numbers from 0 to 1 that belong to a part of this site."""
        text = "/".join(map(str, (self._number, *key)))
        digest = blake2b(text.encode(), digest_size=32).digest()
        return [part / 2**32 for part in _EIGHT.unpack(digest)]


def _show(links: list[_Link], around: str = "") -> Iterator[str]:
    before, after = (f"<{around}>", f"</{around}>") if around else ("", " ")
    for link in links:
        rel = f' rel="{link.rel}"' if link.rel else ""
        yield f'{before}<a href="{link.path}"{rel}>{link.text}</a>{after}'


def _refuse(status: int, reason: str = "Not Found") -> Reply:
    return Reply(f"<title>{status}</title><h1>{reason}</h1>".encode(), status, reason)
