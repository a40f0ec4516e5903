"""The client libraries: the same bytes, and the same game, in every language."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import subprocess
import sys
from enum import Enum, IntEnum
from pathlib import Path

import numpy as np
import pytest

import mission_gym.bridge.clients
from games import processes
from mission_gym.bridge import BridgeEnv
from mission_gym.bridge.clients.mission_gym_bridge import describe_space, pack, unpack
from mission_gym.bridge.spaces import read_space
from mission_gym.check.bridge import check_bridge
from mission_gym.env.factory import EnvRequest

CLIENTS = Path(mission_gym.bridge.clients.__file__).parent
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None, reason="node is not installed: the JavaScript client is not tried"
)
# Bytes of the MessagePack specification.
WIRE = {
    "c0": None, "c2": False, "c3": True, "7f": 127, "ff": -1, "e0": -32, "cc80": 128, "cd0100": 256,
    "ce00010000": 65536, "cf0000000100000000": 2**32, "d0df": -33, "d1ff7f": -129, "d2ffff7fff": -32769,
    "d3ffffffff7fffffff": -(2**31) - 1, "cb3ff8000000000000": 1.5, "a161": "a", "c40101": b"\x01",
    "93010203": [1, 2, 3], "82a16101a162c0": {"a": 1, "b": None},
}  # fmt: skip


@pytest.mark.parametrize("data", WIRE)
def test_values_have_the_bytes_of_the_specification(data: str) -> None:
    assert pack(WIRE[data]).hex() == data
    assert unpack(bytes.fromhex(data)) == WIRE[data]


@pytest.mark.parametrize("size", [15, 16, 31, 32, 255, 256, 65535, 65536])
def test_every_size_comes_back(size: int) -> None:
    for value in ("x" * size, b"x" * size, [1] * size, {str(key): key for key in range(size)}):
        assert unpack(pack(value)) == value


@pytest.mark.parametrize("data", ["", "c1", "d90561", "93", "ddffffffff", "0102", "a1ff", "91" * 100 + "01"])
def test_what_is_not_messagepack_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match="not MessagePack"):
        unpack(bytes.fromhex(data))


def test_numbers_of_numpy_travel() -> None:
    assert unpack(pack({"a": np.float32(0.5), "b": np.arange(3)})) == {"a": 0.5, "b": [0, 1, 2]}


def test_values_of_own_classes_travel_as_what_they_derive_from() -> None:
    colour, size = Enum("Colour", {"RED": "red"}, type=str), IntEnum("Size", {"LARGE": 200})
    sent = [colour.RED, size.LARGE, np.str_("name"), np.bytes_(b"raw"), bytearray(b"raw")]
    assert unpack(pack(sent)) == ["red", 200, "name", b"raw", b"raw"]


def test_spaces_of_gymnasium_come_back() -> None:
    from gymnasium import spaces

    space = spaces.Dict(
        {
            "a": spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, math.inf], np.float32)),
            "b": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(4)]),
            "c": spaces.MultiDiscrete([2, 5]),
            "d": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        }
    )
    assert read_space(unpack(pack(describe_space(space))), "it") == space


def test_an_environment_of_gymnasium_is_served_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(
        f"import sys; sys.path.insert(0, {str(CLIENTS)!r})\n"
        "import gymnasium, mission_gym_bridge as bridge\n"
        "bridge.serve(lambda **kwargs: gymnasium.make('CartPole-v1', **kwargs))"
    )
    import gymnasium as gym

    here = gym.make("CartPole-v1")
    command = shlex.join([sys.executable, str(tmp_path / "serve.py")])
    (found,) = check_bridge(EnvRequest(f"bridge:{command}"))
    assert found.what.endswith("hello, reset, step, render"), found
    there = BridgeEnv(command)
    assert there.observation_space == here.observation_space
    assert there.spec is not None
    assert there.spec.max_episode_steps == 500
    assert there.reset(seed=5)[0].tolist() == here.reset(seed=5)[0].tolist()
    for action in (1, 0, 1):
        assert there.step(action)[0].tolist() == here.step(action)[0].tolist()
    there.close()


@needs_node
def test_javascript_packs_as_python_does() -> None:
    script = (
        f"const {{pack, unpack}} = require({str(CLIENTS / 'mission-gym-bridge.cjs')!r});"
        "const read = (hex) => unpack(Buffer.from(hex, 'hex'));"
        "const sent = require('node:fs').readFileSync(0, 'utf8').split(' ');"
        "console.log(JSON.stringify(sent.map((hex) => pack(read(hex)).toString('hex'))));"
        "for (const hex of ['c1', 'd90561', '93', 'ddffffffff', '0102']) {"
        "  let fails = false; try { read(hex); } catch (error) { fails = true; }"
        "  if (!fails) throw new Error(hex);"
        "}"
    )
    values = [WIRE[data] for data in WIRE] + ["x" * 300, b"y" * 70000, [1] * 70, {"é": [-0.5, 1e300]}]
    sent = [pack(value).hex() for value in values]
    done = subprocess.run(
        [NODE or "", "-e", script], input=" ".join(sent), capture_output=True, text=True, check=True
    )
    assert [unpack(bytes.fromhex(hex)) for hex in json.loads(done.stdout)] == values


@needs_node
def test_masks_of_javascript_keep_their_parts() -> None:
    script = (
        f"const {{packMask}} = require({str(CLIENTS / 'mission-gym-bridge.cjs')!r});"
        "const masks = packMask([[1, 0], null, new Uint8Array([0, 7])]);"
        "console.log(JSON.stringify(masks.map((mask) => mask && [...mask])));"
    )
    done = subprocess.run([NODE or "", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[1, 0], None, [0, 1]]


@needs_node
@pytest.mark.parametrize("socket", ["", " {socket}"])
def test_a_game_in_javascript(socket: str) -> None:
    command = (
        shlex.join([NODE or "", str(Path(__file__).parents[1] / "support" / "walk_game.cjs"), str(CLIENTS)])
        + socket
    )
    (found,) = check_bridge(EnvRequest(f"bridge:{command}"))
    assert found.level == "ok", found
    env = BridgeEnv(command, length=5)
    obs, _ = env.reset(seed=3)
    assert env.observation_space.contains(obs)
    moved, reward, *_, info = env.step(env.action_space.sample() | {"go": 1})
    assert moved["place"][0] == pytest.approx(obs["place"][0] + 0.2)
    assert (reward, info["action_mask"]["go"].tolist()) == (-0.25, [1, 1])
    assert (info["seen"], "secret" in info) == ([1], False)
    env.close()
    assert not processes()
