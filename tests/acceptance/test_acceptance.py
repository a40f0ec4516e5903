"""The logic of the acceptance list, with toys for packages: nothing is installed here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import acceptance
import pytest
from acceptance import Ended, Layer, Package, describe, judge, merge, name_commands, read_packages, tidy

from mission_gym.env.user_code import name_home
from timeouts import scale_timeout

BAD_IDS = """
import os, time
from toys import Identity

def crash():
    os._exit(7)

def hang():
    time.sleep(3600)
"""


def ended(code: int | None = 0, err: str = "", out: str = "") -> Ended:
    return Ended(code, 1.0, out, err)


def row(**codes: int | None) -> dict:
    told = {name: {"exit": code, "traceback": False} for name, code in codes.items()}
    return {"variables": [], "flags": [], "fault": "", "commands": told}


def test_the_list_is_whole() -> None:
    packages = read_packages()
    assert len({package.name for package in packages}) == len(packages) >= 30
    assert sum(bool(package.family) for package in packages) >= 10
    for package in packages:
        assert set(package.family) in (set(), {"ids"}, {"module", "id", "entry"})
        assert all(name in ("--env-kwargs", "--wrap") for name in package.env_flags if name.startswith("--"))


def test_an_id_that_works_says_where_it_lives_if_its_module_is_left_out() -> None:
    rows = json.loads(acceptance.RESULTS.read_text("utf-8"))
    for row in rows:
        module, _, env_id = row["env"].partition(":")
        is_id = module not in ("envpool", "bridge") and re.search(r"-v\d+$|/", env_id)
        if row["verdict"].startswith("works") and is_id:
            assert name_home(env_id).endswith(f"name it {row['env']}"), row["env"]


def test_commands_have_the_flags_that_are_theirs() -> None:
    package = Package(
        "a", "a:B-v0", env_flags=("--wrap", "grey"), train_flags=("--algo", "dqn"), timesteps=64
    )
    commands = name_commands(package)
    assert list(commands) == ["check", "train", "eval", "resume"]
    assert commands["check"] == ("a:B-v0", "--wrap", "grey", "--json")
    assert commands["train"][-4:] == ("--wrap", "grey", "--algo", "dqn")
    assert commands["resume"] == ("latest", "--timesteps", "128")


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        ({"check": 0, "train": 0, "eval": 0, "resume": 0}, "works"),
        ({"check": 2, "train": 2}, "refused"),
        ({"check": 2, "train": 3}, "refused"),
        ({"check": 0, "train": 3}, "failed"),
        ({"check": 2, "train": 0, "eval": 0, "resume": 0}, "accused"),
        ({"check": 0, "train": 0, "eval": 0, "resume": 3}, "failed"),
        ({"check": 0, "train": None}, "failed"),
        ({"check": 1, "train": 2}, "failed"),
    ],
)
def test_verdicts(codes: dict[str, int | None], verdict: str) -> None:
    assert judge(row(**codes)) == verdict


def test_flags_and_tracebacks_count() -> None:
    whole = row(check=0, train=0, eval=0, resume=0)
    assert judge(whole | {"flags": ["--wrap", "grey"]}) == "works with flags"
    assert judge(whole | {"variables": ["MUJOCO_GL=egl"]}) == "works with flags"
    accused = row(check=2, train=0, eval=0, resume=0)
    assert judge(accused | {"fault": "its reset() ignores the seed"}) == "works"
    whole["commands"]["eval"]["traceback"] = True
    assert judge(whole) == "failed"


def test_a_command_is_told_by_its_last_message_and_its_findings() -> None:
    told = describe(ended(2, "a line\nmission-gym: no module named 'x' [x:Y]\nlate noise\n"))
    assert told == {"exit": 2, "seconds": 1.0, "message": "no module named 'x' [x:Y]", "traceback": False}
    assert describe(ended(1, f"{acceptance.TRACEBACK}:\n ...\nKeyError: 1"))["traceback"]
    assert not describe(ended(3, f"mission-gym: step() raised\n{acceptance.TRACEBACK}:\n ..."))["traceback"]
    assert not describe(ended(0, f"Exception ignored in: <x>\n{acceptance.TRACEBACK}:\n ..."))["traceback"]
    assert describe(ended(0, "all is well"))["message"] == ""
    findings = [
        {"level": "error", "name": "make", "what": "it raised"},
        {"level": "ok", "name": "mask", "what": ""},
    ]
    assert describe(ended(2, out=json.dumps(findings)), findings=True)["errors"] == ["make: it raised"]


def test_messages_name_no_folder_of_this_machine() -> None:
    assert (
        tidy("mission-gym: raised in /home/me/lib/site-packages/a/b.py, line 3") == "raised in b.py, line 3"
    )
    assert tidy("unknown ALE/Pong-v5, see https://a.org/b") == "unknown ALE/Pong-v5, see https://a.org/b"
    assert len(tidy("x" * 1000)) == 300


def test_rows_are_merged_in_the_order_of_the_list() -> None:
    old = [{"package": "b", "verdict": "works"}, {"package": "gone", "verdict": "works"}]
    assert merge(old, {"package": "a"}, ["a", "b"]) == [{"package": "a"}, old[0]]
    assert merge(old, {"package": "b", "verdict": "failed"}, ["a", "b"]) == [
        {"package": "b", "verdict": "failed"}
    ]


def test_a_command_ends_at_its_deadline_with_what_it_started(tmp_path: Path) -> None:
    stuck = acceptance.run(("sh", "-c", "sleep 3600 & sleep 3600"), tmp_path, 0.2)
    assert stuck.code is None  # the other one held our pipe: it is gone, or this would not have ended


@pytest.mark.slow
def test_a_package_goes_through_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a layer without packages: a toy that works, with a family of which one crashes and one hangs."""
    (tmp_path / "bad_ids.py").write_text(BAD_IDS)
    monkeypatch.setattr(acceptance, "ID_S", scale_timeout(4.0))
    path = f"{tmp_path}:{Path(__file__).parents[1] / 'support'}"
    ids = ("bad_ids:Identity n=3", "bad_ids:crash", "bad_ids:nowhere", "bad_ids:hang", "bad_ids:Identity")
    package = Package("toys", "toys:Identity", family={"ids": ids}, timesteps=1024)
    layer = Layer(tmp_path / "toys", {"PYTHONPATH": path})
    told = acceptance.try_package(package, layer)
    assert told["verdict"] == "works", told
    assert told["versions"].keys() == {"mission-gym", "gymnasium", "numpy", "torch", "python"}
    assert told["family"]["num_tried"] == 5
    problems = {names[0]: problem for problem, names in told["family"]["problems"].items()}
    assert problems.keys() == {"bad_ids:crash", "bad_ids:nowhere", "bad_ids:hang"}
    assert problems["bad_ids:crash"] == "it ended its process with code 7"
    assert problems["bad_ids:hang"] == "it hung"
    assert "has no callable and registers no environment 'nowhere'" in problems["bad_ids:nowhere"]
    assert "$ -m mission_gym check toys:Identity" in (tmp_path / "toys.log").read_text()
