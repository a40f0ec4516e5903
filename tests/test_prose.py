"""Prose is plain English: the substitution table as data, checked in docs, docstrings, comments and messages.

`python tests/test_prose.py PATH...` prints every hit with the words to use instead.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
# What not to write -> what to write instead.
SUBSTITUTIONS = {
    r"\b(tells?|told|telling)\b": "report, print, show, log, raise",
    r"\b(is|are|was|were|be|been) said\b|\bsaid aloud\b|\b(it|which|that|and) says\b": "report, print, state",
    r"\b(go|goes|going|gone|went) on\b": "continue",
    r"\bbeside\b": "next to, compared with, in addition to",
    r"\bwhat (it|they|he|is|was|are|were|has|had|comes?|came|a|an|the)\b(?![^.`]*\?)": "its contents",
    r"(?<!there )(?<!there's )\b(is|are|was|were) (no|none)\b(?! longer| more\b| such)": "is not, no X does",
    r"\bof (its|their|your|his|our|one's) own\b": "its own, your own",
    r"\b(pictures?|films?|filmed)\b": "image (observations), video",
    r"\bdeviations?\b": "standard deviation",
    r"\b(graphics |video )?cards?\b": "GPU",
    r"\banew\b": "again",
    r"\b(is|are|was|were|be) had\b": "is available",
    r"\b(makes?|made|making) (an?|the|one|some|its|\d+)? ?(gradient steps?|updates?)\b": "run, perform",
    r"\b[Ll]ets? (a|an|the|it|them|its|this|these|those|us) \w+": "X does",
    r"\bthe first (value|size)s?\b": "the initial",
}
PATTERN = {re.compile(pattern): instead for pattern, instead in SUBSTITUTIONS.items()}
# Not prose, or right as it stands.
CODE = re.compile(r"```.*?^```|`[^`\n]*`|https?://\S+|[Ss]tandard\s+deviations?", re.DOTALL | re.MULTILINE)
PROSE_LIKE = re.compile(r"[A-Za-z]{2,} [A-Za-z]{2,}")  # a string of two words or more
# Hits that are left, by file: it only shrinks. `python tests/test_prose.py --left` writes it.
LEFT = Path(__file__).with_name("prose_left.json")


class Hit(NamedTuple):
    line: int
    words: str
    instead: str


def read_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of prose with their numbers: of Python, docstrings, comments and strings of several words."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and PROSE_LIKE.search(node.value)
            ):
                yield node.lineno, node.value
    elif path.suffix in (".yaml", ".toml"):
        yield from enumerate(text.splitlines(), 1)
    else:
        yield 1, text


def find_hits(path: Path) -> list[Hit]:
    hits = []
    for first, text in read_prose(path):
        plain = CODE.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)
        for pattern, instead in PATTERN.items():
            for match in pattern.finditer(plain):
                hits.append(Hit(first + plain[: match.start()].count("\n"), match[0], instead))
    return sorted(hits)


def list_files() -> list[Path]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    code = [path for suffix in ("py", "yaml", "toml") for path in (ROOT / "src").rglob(f"*.{suffix}")]
    return sorted(pages + code)


def test_the_table_finds_what_it_names() -> None:
    found = [bool(pattern.search(text)) for pattern, text in zip(PATTERN, EXAMPLES, strict=True)]
    assert all(found)


EXAMPLES = (
    "the plan tells", "it says", "training goes on", "beside it", "what it holds", "it is no vector",
    "of its own", "a picture", "the deviation", "the card", "begins anew", "can't be had", "makes an update",
    "let it go", "the first value",
)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "there is no file",
        "is no longer used",
        "the standard deviation",
        "`told`",
        "What is a rollout?",
        "besides",
    ],
)
def test_ordinary_english_passes(text: str) -> None:
    plain = CODE.sub("x", text)
    assert not [pattern.pattern for pattern in PATTERN if pattern.search(plain)]


def test_prose_is_plain() -> None:
    left = json.loads(LEFT.read_text("utf-8"))
    assert count_hits() == left, "mend the new hits, or write the shorter list: tests/test_prose.py --left"


def count_hits() -> dict[str, int]:
    counts = {str(path.relative_to(ROOT)): len(find_hits(path)) for path in list_files()}
    return {name: count for name, count in counts.items() if count}


def main(paths: list[str]) -> None:
    if paths == ["--left"]:
        LEFT.write_text(json.dumps(count_hits(), indent=1) + "\n", "utf-8")
        return
    given = [Path(path) for path in paths] or list_files()
    files = [each for path in given for each in ([path] if path.is_file() else sorted(path.rglob("*")))]
    total = 0
    for path in files:
        if path.suffix in (".py", ".md", ".yaml", ".toml"):
            for hit in find_hits(path):
                total += 1
                print(f"{path}:{hit.line}: {hit.words!r} -> {hit.instead}")
    print(f"{total} hits")


if __name__ == "__main__":
    main(sys.argv[1:])
