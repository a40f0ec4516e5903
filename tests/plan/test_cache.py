"""Plans on disk."""

from pathlib import Path

import pytest

from mission_gym.plan.cache import find_cache, make_key, note_rate, read_plan, write_plan


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_plans_are_kept_by_key_where_the_user_keeps_caches(tmp_path: Path) -> None:
    key = make_key({"cores": 2, "env": ("a", 1)})
    assert key == make_key({"env": ["a", 1], "cores": 2}) != make_key({"cores": 4, "env": ("a", 1)})
    assert read_plan(key) is None
    assert write_plan(key, {"steps_per_s": 100.0})
    assert read_plan(key) == {"steps_per_s": 100.0}
    assert find_cache() == tmp_path / "mission-gym" / "plans"


def test_a_damaged_plan_is_no_plan() -> None:
    write_plan("key", {"steps_per_s": 100.0})
    for text in ("{", "[]", "{}"):
        (find_cache() / "key.json").write_text(text)
        assert read_plan("key") is None


@pytest.mark.parametrize(("achieved", "missed"), [(100.0, False), (86.0, False), (84.0, True), (120.0, True)])
def test_a_miss_of_over_fifteen_per_cent_is_marked(achieved: float, missed: bool) -> None:
    write_plan("key", {"steps_per_s": 100.0, "values": {}})
    note_rate("key", achieved)
    entry = read_plan("key")
    assert entry is not None
    assert (entry["achieved_steps_per_s"], entry["missed"]) == (achieved, missed)
    note_rate("unknown", achieved)
    assert read_plan("unknown") is None


def test_a_folder_that_cannot_be_written_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not write_plan("key", {"steps_per_s": 1.0})
    assert read_plan("key") is None
