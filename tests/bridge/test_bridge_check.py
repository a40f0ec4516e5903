"""The conformance checker names the first thing that the game's side does wrong."""

from __future__ import annotations

import re

import pytest

from games import game, processes
from mission_gym.check.bridge import check_bridge
from mission_gym.env.factory import EnvRequest

WRONG = {
    "short": r'"obs" leaf 0 has 4 bytes, expected 8 \(1 game x float32\[2\]\) \[message 3, step\]',
    "version": r"it speaks version 7 of the protocol; this Mission Gym speaks version 1 \[message 1, hello\]",
    "outside": r"message 3, step: game 0 has an observation that is not in its space: number 1 is nan",
    "hangs": r"sent no answer for 0.3 s \[message 3, step\]",
    "deaf": r"an unknown type was not answered with an error: .* ended with code 4 before it answered",
    "misspelt": r"the answer to hello has 'max_game', which the protocol does not define",
}


def check(name: str, *words: str) -> list[str]:
    request = EnvRequest(f"bridge:{game(name, *words)}")
    found = check_bridge(request, timeout_s=0.3 if "hangs" in words else 60.0)
    assert not processes()
    return [f"{each.level}: {each.what}" for each in found]


def test_a_game_that_keeps_the_protocol() -> None:
    (found,) = check("walk_game")
    assert found.startswith("ok: ")
    assert found.endswith("according to protocol 1: hello, reset, step, render, get_state, set_state")


@pytest.mark.parametrize("fault", WRONG)
def test_the_first_wrong_message_is_named(fault: str) -> None:
    found = check("faulty_game", fault)
    assert any(re.search(WRONG[fault], line) for line in found), found


def test_what_a_game_raises_is_told() -> None:
    assert check("walk_game", "raise") == [
        "error: a game answered message 6, step, with an error: RuntimeError: the third step"
    ]


def test_a_state_that_forgets_is_seen() -> None:
    (found,) = check("walk_game", "forgets")
    assert "after set_state game 0 has another observation than before from the same state" in found


def test_games_that_share_their_chance_are_seen() -> None:
    (found,) = check("walk_game", "shares")
    assert "game 1 has another observation next to other games than alone, with equal seeds" in found


def test_a_command_that_is_not_there() -> None:
    (finding,) = check_bridge(EnvRequest("bridge:nodd game.js"))
    assert finding.what.startswith("there is no program 'nodd'")
