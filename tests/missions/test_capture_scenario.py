"""Scenario files: every mistake gets one message with file, line and rule, and all come at once."""

import re
import shutil

import pytest

from mission_gym.errors import ConfigError
from mission_gym_missions.capture.env import CaptureEnv
from mission_gym_missions.capture.scenario import SHIPPED, load_scenario


@pytest.fixture
def folder(tmp_path):
    for name in ("normal", "units", "reward"):
        shutil.copy(SHIPPED / f"{name}.yaml", tmp_path)
    return tmp_path


def edit(folder, name, pattern, replacement):
    """Change one line of a file; return the number of that line."""
    path = folder / f"{name}.yaml"
    lines = path.read_text().splitlines()
    at = next(index for index, line in enumerate(lines) if re.search(pattern, line))
    lines[at] = re.sub(pattern, replacement, lines[at])
    path.write_text("\n".join(lines) + "\n")
    return at + 1


def problem(folder):
    with pytest.raises(ConfigError) as caught:
        load_scenario("normal", folder)
    assert len(caught.value.problems) == 1, caught.value.problems
    return caught.value.problems[0]


@pytest.mark.parametrize("level", ["easy", "normal", "hard"])
def test_the_shipped_levels_are_sound(level):
    scenario = load_scenario(level)
    assert 20 <= len(scenario.level.obstacles) <= 24
    assert len(scenario.level.description) > 40


def test_a_level_changes_units_and_reward():
    assert load_scenario("hard").units["DEF_UGV"].integrity == 75
    assert load_scenario("hard").reward["defender_disabled"].weight == 2
    assert load_scenario("easy").units["DEF_UGV"].integrity == 150


def test_a_folder_of_the_user_is_used_whole(folder):
    edit(folder, "normal", r"radius_m: 15", "radius_m: 12")
    env = CaptureEnv("normal", config_dir=str(folder))
    assert env.simulator.world.rules["radius"][0] == 12


@pytest.mark.parametrize(
    ("name", "pattern", "replacement", "message"),
    [
        (
            "normal",
            r"^  radius_m: 15",
            "  radios_m: 15",
            r"unknown key 'radios_m' \(did you mean 'radius_m'\?\) in objective; remove it or correct",
        ),
        (
            "normal",
            r"^  contested: \w+",
            "  contested: maybe",
            "objective.contested='maybe': input should be a valid bool",
        ),
        (
            "normal",
            r"^  radius_m: 15",
            "  radius_m: -15",
            "objective.radius_m=-15: input should be greater than 0",
        ),
        (
            "normal",
            r"^  position_m: \[0, 0\]",
            "  position_m: [80, 0]",
            "the zone reaches 105 m .* outside the arena of .-100 m",
        ),
        (
            "normal",
            r"^  fan_deg: 18",
            "  fan_deg: 4",
            "the spawns of UGV_A and UGV_B overlap: they are 3.5 m apart",
        ),
        ("normal", r"^  distance_m: 75", "  distance_m: 96", "outside the arena of .-100 m; move the spawn"),
        (
            "normal",
            r"\[UGV_A, UGV_B",
            "[UGV_X, UGV_B",
            "unit 'UGV_X' is not in units.yaml .did you mean 'UGV_",
        ),
        ("normal", r"full_range_m: 8", "full_range_m: 30", "tag.full_range_m=30.* is above range_m=20"),
        (
            "normal",
            r"modes: \[patrol",
            "modes: [sleep",
            "defenders.modes.0='sleep': input should be 'patrol', 'guard'",
        ),
        ("normal", r"^arena_m: 200", "arena_m: wide", "arena_m='wide': input should be a valid number"),
        ("units", r"radius_m: 2.5", "radius_m: -2.5", "UGV_A.radius_m=-2.5: input should be greater than 0"),
        ("units", r"max_speed_m_s: 8", "max_spede_m_s: 8", "max_spe"),
        ("reward", r"^capture:", "captures:", "captures"),
        ("reward", r"weight: 10", "weight: ten", "win.weight='ten': input should be a valid number"),
        ("reward", r"weight: 10", "weight: .nan", "win.weight=nan: input should be a finite number"),
        ("reward", r"weight: 10", "weight: [", "this is not plain YAML"),
        ("reward", r"weight: 10", "weight: !!python/name:os.system", "this is not plain YAML"),
        ("reward", r"weight: 10", "weight: &x 10", "this is not plain YAML: anchors and aliases such as 'x'"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_rule(folder, name, pattern, replacement, message):
    line = edit(folder, name, pattern, replacement)
    with pytest.raises(ConfigError, match=message) as caught:
        load_scenario("normal", folder)
    places = [text for text in caught.value.problems if re.search(message, text)]
    near = {f"{folder / name}.yaml, line {number}]" for number in (line, line + 1, line + 2)}
    assert any(text.endswith(tuple(near)) for text in places), caught.value.problems


def test_a_unit_in_an_obstacle(folder):
    line = edit(folder, "normal", r"^obstacles:.*", "obstacles:\n  - {position_m: [74, -8], radius_m: 4}") + 1
    with pytest.raises(
        ConfigError, match=r"UGV_B of side 0 spawns at \(74\.6, -7\.8\) .-5 m, in obstacle 0"
    ) as caught:
        load_scenario("normal", folder)
    assert caught.value.problems[0].endswith(f"normal.yaml, line {line}]")


def test_an_obstacle_is_a_circle_or_a_rectangle(folder):
    edit(folder, "normal", r"^obstacles:.*", "obstacles:\n  - {position_m: [0, 40]}")
    assert "obstacle 0 needs either radius_m (a circle) or size_m (a rectangle)" in problem(folder)


def test_a_key_that_is_there_twice(folder):
    line = edit(folder, "normal", r"^arena_m: 200", "arena_m: 200\narena_m: 300") + 1
    assert problem(folder).startswith("key 'arena_m' is there twice")
    assert problem(folder).endswith(f"line {line}]")


def test_changes_of_what_is_not_there(folder):
    edit(folder, "normal", r"^    DEF_UGV:", "    DEF_UGW:")
    assert "changes.units names 'DEF_UGW', which is not in units.yaml (did you mean 'DEF_UGV'?)" in problem(
        folder
    )


def test_all_mistakes_at_once_over_all_files(folder):
    edit(folder, "normal", r"^  radius_m: 15", "  radius_m: -1")
    edit(folder, "normal", r"limit_s: 300", "limits: 300")
    edit(folder, "units", r"integrity: 50", "integrity: none")
    edit(folder, "reward", r"enabled: true", "enabled: perhaps")
    with pytest.raises(ConfigError) as caught:
        load_scenario("normal", folder)
    text = str(caught.value)
    assert len(caught.value.problems) == 5  # the misspelt key is also missing
    for part in (
        "radius_m=-1",
        "unknown key 'limits'",
        "'limit_s' is missing in time",
        "integrity='none'",
        "perhaps",
    ):
        assert part in text


def test_missing_files_and_folders(folder):
    (folder / "units.yaml").unlink()
    (folder / "reward.yaml").unlink()
    with pytest.raises(ConfigError, match=r"the file can't be read .*units.yaml") as caught:
        load_scenario("normal", folder)
    assert len(caught.value.problems) == 2
    with pytest.raises(
        ConfigError, match=r"level 'hart' is not in .* \(did you mean 'hard'\?\); use easy, hard, normal"
    ):
        load_scenario("hart")
    with pytest.raises(
        ConfigError, match=r"the folder '.*nowhere' does not exist; name one with normal.yaml"
    ):
        load_scenario("normal", folder / "nowhere")
    (folder / "normal.yaml").write_text("")
    with pytest.raises(ConfigError, match="the file is empty"):
        load_scenario("normal", folder)
    empty = folder / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match=r"normal\.yaml"):
        load_scenario("normal", empty)


def test_a_file_that_holds_something_else(folder):
    (folder / "units.yaml").write_text("- a\n- b\n")
    with pytest.raises(ConfigError, match="the file contains a list; it must map names to values"):
        load_scenario("normal", folder)
