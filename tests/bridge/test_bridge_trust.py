"""A `bridge:` command in somebody else's run is somebody else's command."""

from __future__ import annotations

from pathlib import Path

import pytest

from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.errors import EnvContractError, TrustError
from mission_gym.store.trusted import permit, retry_if_allowed


def test_a_command_needs_leave_in_each_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    name = "bridge:./play --fast"
    monkeypatch.chdir(mine)
    with pytest.raises(TrustError, match=rf"^{name} is a command, which would run in .*mine; nothing"):
        permit([name])
    assert permit([name], typed=[name]) == (name,)
    assert permit([name]) == (name,)
    monkeypatch.chdir(other)  # where ./play is another program
    with pytest.raises(TrustError, match=r"which would run in .*other"):
        permit([name])
    assert retry_if_allowed(lambda: permit([name]), lambda error: True) == (name,)
    assert permit([name]) == (name,)


def test_no_keyword_of_a_config_is_a_command(tmp_path: Path) -> None:
    """The class is installed, and may be named by everybody; a command of its own would need no leave."""
    here = tmp_path / "here"
    request = EnvRequest("mission_gym.bridge:BridgeEnv", {"command": f"touch {here}"}, calls=())
    with pytest.raises(EnvContractError, match="missing 1 required positional argument: 'command'"):
        make_factory(request)()
    assert not here.exists()


def test_a_command_that_nobody_judged_is_not_started() -> None:
    with pytest.raises(TrustError, match="bridge:touch here is a command"):
        make_factory(EnvRequest("bridge:touch here", calls=()))()
