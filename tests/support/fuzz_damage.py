"""Damage to a file, as values that print and shrink: edits of its bytes, and edits of the values in it.

A file is text of one form (`FORMS`). An edit of values keeps the form, so that it comes past the parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml
from hypothesis import strategies as st

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Literal:
    """A text that stands in the file as it is, where a value is expected."""

    text: str

    def __repr__(self) -> str:
        shown = self.text if len(self.text) < 80 else f"{self.text[:40]}... ({len(self.text)} characters)"
        return f"Literal({shown!r})"


@dataclass(frozen=True)
class Put:
    """Another value at a place."""

    path: Path
    value: Any


@dataclass(frozen=True)
class Drop:
    """A key or an item less."""

    path: Path


@dataclass(frozen=True)
class Rename:
    """Another name for a key."""

    path: Path
    key: str


@dataclass(frozen=True)
class Flip:
    """One bit turned."""

    at: int
    bit: int


@dataclass(frozen=True)
class Cut:
    """The rest lost."""

    at: int


@dataclass(frozen=True)
class Insert:
    """Foreign bytes in the middle."""

    at: int
    data: bytes


@dataclass(frozen=True)
class Repeat:
    """A piece twice: in these forms mostly a key."""

    at: int
    size: int


@dataclass(frozen=True)
class Replace:
    """A wholly different content."""

    data: bytes


Edit = Put | Drop | Rename | Flip | Cut | Insert | Repeat | Replace


class Form(NamedTuple):
    """How a file holds values: bytes to values, and back."""

    parse: Callable[[bytes], Any]
    write: Callable[[Any], bytes]
    literals: tuple[str, ...]


_DEEP = "[" * 5000 + "]" * 5000
_NUMBERS = ("1e999", "-1e999", "9" * 5000, "-0", "1e-999", "9007199254740993")
_JSON_LITERALS = (
    *_NUMBERS, _DEEP, '{"a":' * 5000 + "1" + "}" * 5000, "NaN", "Infinity", '"\\ud800"', '"\\u0000"',
    '{"a": 1, "a": null}', '{"": {}}',
)  # fmt: skip
_LAUGHS = (
    "[&a0 [x, x], "
    + ", ".join(f"&a{i + 1} [*a{i}, *a{i}, *a{i}, *a{i}, *a{i}, *a{i}, *a{i}, *a{i}]" for i in range(12))
    + "]"
)
_YAML_LITERALS = (
    *_NUMBERS, _DEEP, "{a: " * 500 + "1" + "}" * 500, _LAUGHS, "&a [*a]", "&a {a: *a}", "&a {<<: *a}",
    "*nowhere", ".nan", "-.inf", "2026-99-99", "2026-01-01", "12:30:45", "0o777", "0x" + "f" * 5000, "1_000",
    "!!binary x",
    "!!set {a, b}", "!!float x", "!!int ''", "!!bool maybe", "!!timestamp x", "!!python/name:os.system",
    "!!python/object/apply:os.system [exit 1]", "!!python/object/new:trap.Env []", "!!python/module:trap",
    "{[1, 2]: 3}", "{? {a: 1} : 2}", "{a: 1, a: 2}", "{1: 2}", "{null: 2}", "{2026-01-01: 2}",
    '"\\ud800"', '"\\0"', "%x", "@x", "|", "? ",
)  # fmt: skip


def _write_json(document: Any) -> bytes:
    return _spell(json.dumps(_mark(document), indent=1))


def _write_yaml(document: Any) -> bytes:
    return _spell(yaml.safe_dump(_mark(document), sort_keys=False, allow_unicode=False, width=1 << 20))


def _write_lines(document: Any) -> bytes:
    rows = document if isinstance(document, list) else [document]
    return b"".join(_spell(json.dumps(_mark(row))) + b"\n" for row in rows)


def _write_arrays(document: Any) -> bytes:
    header, data = document["header"], document["data"]
    text = header.encode() if isinstance(header, str) else _write_json(header)
    return len(text).to_bytes(8, "little") + text + bytes.fromhex(data if isinstance(data, str) else "")


def _parse_arrays(data: bytes) -> Any:
    size = int.from_bytes(data[:8], "little")
    return {"header": json.loads(data[8 : 8 + size]), "data": data[8 + size :].hex()}


def _mark(value: Any) -> Any:
    """Literals as words that `_spell` finds again."""
    if isinstance(value, Literal):
        return f"LITERAL{value.text.encode('utf-8', 'surrogatepass').hex()}END"
    if isinstance(value, dict):
        return {key: _mark(item) for key, item in value.items()}
    return [_mark(item) for item in value] if isinstance(value, list) else value


def _spell(text: str) -> bytes:
    literal = re.compile(r"""(["']?)LITERAL([0-9a-f]*)END\1""")
    spelt = literal.sub(lambda found: bytes.fromhex(found[2]).decode("utf-8", "surrogatepass"), text)
    return spelt.encode("utf-8", "surrogatepass")


FORMS = {
    "json": Form(json.loads, _write_json, _JSON_LITERALS),
    "yaml": Form(yaml.safe_load, _write_yaml, _YAML_LITERALS),
    "lines": Form(lambda data: [json.loads(row) for row in data.splitlines()], _write_lines, _JSON_LITERALS),
    "arrays": Form(_parse_arrays, _write_arrays, _JSON_LITERALS),
    "text": Form(lambda data: None, lambda document: b"", ()),
}


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of a value and of everything in it."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def edits(content: bytes, form: str, words: tuple[str, ...]) -> st.SearchStrategy[list[Edit]]:
    """One to three edits of a file's content, of one sort. words: texts that mean something to a reader."""
    parse, _, literals = FORMS[form]
    at = st.integers(0, len(content))
    foreign = st.one_of(
        st.binary(max_size=40), st.sampled_from([b"\x00" * 9, b"\xff\xfe", b"\xef\xbb\xbf", b"[" * 99_999])
    )
    sorts: list[st.SearchStrategy[Any]] = [
        st.lists(
            st.one_of(
                st.builds(Flip, st.integers(0, max(len(content) - 1, 0)), st.integers(0, 7)),
                st.builds(Cut, at),
                st.builds(Insert, at, foreign),
                st.builds(Repeat, at, st.integers(1, 200)),
            ),
            min_size=1,
            max_size=3,
        ),
        st.builds(Replace, foreign).map(lambda edit: [edit]),
    ]
    if document := parse(content):
        spots = list(places(document))
        inner = st.sampled_from(spots[1:] or spots)
        value = values(literals, words)
        of_values = st.one_of(
            st.builds(Put, inner, value),
            st.builds(Put, inner, value),
            st.builds(Put, inner, value),
            st.builds(Drop, inner),
            st.builds(Rename, inner, st.sampled_from(["", "x", "__class__", "a.b", "\ud800", "x" * 1000])),
            st.builds(Put, st.just(()), value),
        )
        sorts = [st.lists(of_values, min_size=1, max_size=3)] * 3 + sorts
    return st.one_of(*sorts)


def values(literals: tuple[str, ...], words: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """Values that a file may hold and a reader does not expect."""
    numbers = [0, -1, 1, 2, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.5, 1e308, 5e-324, -0.0]
    odd = [
        "",
        " ",
        "x" * 100_000,
        "a\nb",
        "\x1b[31m",
        "‮",
        "ÿ" * 300,
        "auto",
        "none",
        ".",
        "..",
        "../..",
        "/",
        "/proc/self/mem",
    ]
    scalars = st.one_of(
        st.sampled_from([None, True, False, [], {}, [None], {"a": None}]),
        st.sampled_from(numbers),
        st.sampled_from([*words, *odd]),
        st.sampled_from([Literal(text) for text in literals] or [None]),
        st.text(max_size=10),
    )
    return st.one_of(
        scalars,
        scalars,
        st.lists(scalars, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", *words]), scalars, max_size=3),
    )


def apply(content: bytes, form: str, damage: list[Edit]) -> bytes:
    """The content after the edits."""
    if damage and isinstance(damage[0], Put | Drop | Rename):
        parse, write, _ = FORMS[form]
        document = parse(content)
        for edit in damage:
            document = _edit_values(document, edit)
        return content if form == "arrays" and not _is_arrays(document) else write(document)
    for edit in damage:
        content = _edit_bytes(content, edit)
    return content


def _is_arrays(document: Any) -> bool:
    return isinstance(document, dict) and {"header", "data"} <= document.keys()


def _edit_values(document: Any, edit: Any) -> Any:
    if not edit.path:
        return edit.value
    holder = document
    for key in edit.path[:-1]:
        try:
            holder = holder[key]
        except (TypeError, LookupError):  # an earlier edit took it away
            return document
    key = edit.path[-1]
    if not isinstance(holder, dict | list) or (isinstance(holder, dict) and key not in holder):
        return document
    if isinstance(holder, list) and not (isinstance(key, int) and key < len(holder)):
        return document
    if isinstance(edit, Put):
        holder[key] = edit.value
    else:
        value = holder.pop(key)
        if isinstance(edit, Rename) and isinstance(holder, dict):
            holder[edit.key] = value
    return document


def _edit_bytes(content: bytes, edit: Any) -> bytes:
    if isinstance(edit, Replace):
        return bytes(edit.data)
    if isinstance(edit, Cut):
        return content[: edit.at]
    if isinstance(edit, Insert):
        return content[: edit.at] + edit.data + content[edit.at :]
    if isinstance(edit, Repeat):
        return content[: edit.at + edit.size] + content[edit.at :]
    if edit.at >= len(content):
        return content
    return content[: edit.at] + bytes([content[edit.at] ^ (1 << edit.bit)]) + content[edit.at + 1 :]
