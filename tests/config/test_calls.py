"""Texts of wrappers are parsed, and nothing in them is evaluated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mission_gym.config.calls import NamedCall, check_wrapper, parse_call, split_short, split_wrappers
from mission_gym.errors import ConfigError
from mission_gym.run.config import resolve


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("a.b:c", NamedCall("a.b:c")),
        ("a:b()", NamedCall("a:b")),
        (" a:b (4) ", NamedCall("a:b", (4,))),
        ("a:B(4, -0.5, 'x, y)', key=[1, None], more={'k': (True,)})",
         NamedCall("a:B", (4, -0.5, "x, y)"), {"key": [1, None], "more": {"k": (True,)}})),
    ],
)  # fmt: skip
def test_calls(text: str, call: NamedCall) -> None:
    assert parse_call(text) == call


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "does not name a callable"),
        ("a:b(", "does not name a callable"),
        ("a:b(1", "does not name a callable"),
        ("a:b(1))", "can't be read"),
        ("a:b(1)(2)", "can't be read; write one pair of parentheses"),
        ("a:b(x=)", "can't be read"),
        ("a:b(open('f'))", r"the argument open\('f'\) is not a literal"),
        ("a:b(x=lambda: 1)", "the argument lambda: 1 is not a literal"),
        ("a:b(x=1 if True else 2)", "is not a literal"),
        ("a:b(*[1])", "is not a literal"),
        ("a:b(**{'x': 1})", r"\*\* is not supported"),
        ("a:b(x=f'{1}')", "is not a literal"),
        ("a:b(10**9)", "is not a literal"),
        (f"a:b({'[' * 900}{']' * 900})", "can't be read|is not a literal"),
        (f"a:b('{'x' * 5000}')", "does not name a callable"),
    ],
)
def test_what_is_no_call(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_call(text)


literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(literals, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "c"]), literals, max_size=3)
)
def test_what_repr_writes_is_read_back(args: list[Any], kwargs: dict[str, Any]) -> None:
    inside = ", ".join([*(repr(arg) for arg in args), *(f"{key}={value!r}" for key, value in kwargs.items())])
    if len(inside) < 3000:
        assert parse_call(f"m:f({inside})") == NamedCall("m:f", tuple(args), kwargs)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_taken_or_refused(text: str) -> None:
    try:
        check_wrapper(text)
    except ConfigError:
        return


def test_short_forms() -> None:
    assert split_short("weigh:1, 0.5") == ("weigh", ("1", "0.5"))
    assert split_short("grey") == ("grey", ())
    assert split_short("a.b:c") is None
    assert split_short("a:b(1)") is None


@pytest.mark.parametrize(
    ("value", "wrap"),
    [
        ("a:b,c:d", ("a:b", "c:d")),
        ("grey,resize:84,96", ("grey", "resize:84,96")),
        ("weigh:1,0.5", ("weigh:1,0.5",)),
        ("m:W(x='a,b:c')", ("m:W(x='a,b:c')",)),
        (["m:W(1, 2)", "frame-stack:4"], ("m:W(1, 2)", "frame-stack:4")),
    ],
)
def test_the_field(value: Any, wrap: tuple[str, ...]) -> None:
    assert tuple(split_wrappers(value)) == wrap
    assert resolve("CartPole-v1", {"wrap": value}).config.env.wrap == wrap


def test_the_field_refuses_what_is_not_a_literal() -> None:
    with pytest.raises(ConfigError, match=r"wrap: .* is not a literal .* \[flag --wrap\]"):
        resolve("CartPole-v1", {"wrap": ["m:W(x)"]})
