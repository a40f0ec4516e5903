"""The view of a run from real events: plain lines in a pipe, one whole line in a terminal."""

import errno
import io
import re
import time

import pytest

from mission_gym.report.screen.live import PlayScreen, Screen
from mission_gym.run.config import resolve
from mission_gym.run.start import start_run

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
STATUS = {
    "event": "status", "step": 64, "total": 192, "now_fps": None, "eta_s": None, "phase": "training",
    "return_mean": None, "outcomes": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """The events of a small run on disk."""
    seen = []
    values = {"n_envs": 4, "n_steps_per_env": 16, "timesteps": 130, "eval_freq": 64, "tensorboard": False}
    values["runs_dir"] = str(tmp_path_factory.mktemp("runs"))
    with start_run(resolve("toys:Identity", values), seen.append) as session:
        for _ in session.updates():
            pass
    return seen


def show(events, **more):
    with Screen(**more) as screen:
        for event in events:
            screen.listen(event)


def with_end(events, **fields):
    return [event | fields if event["event"] == "end" else event for event in events]


@pytest.fixture
def terminal(monkeypatch):
    """Rich takes stderr for a terminal of 60 columns."""
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "60", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)


def test_a_phase_shows_its_episodes_and_the_time_left(terminal, capsys):
    """An evaluation stands before the rates, which a narrow terminal leaves out."""
    beginning = {
        "event": "plan",
        "run": "runs/a",
        "main_outcome": None,
        "time/plan": {"facts": [], "notes": []},
    }
    phase = {"phase": "evaluating", "phase_done": 3, "phase_total": 20, "phase_eta_s": 75.0}
    show([beginning, STATUS | phase])
    assert "64/192  evaluating: 3 of 20 episodes, 1:15 left" in capsys.readouterr().err


def test_the_progress_of_an_evaluation_and_of_a_video_is_shown(monkeypatch, capsys):
    monkeypatch.setattr("mission_gym.report.screen.live._RUN_S", 0.0)
    with PlayScreen() as screen:
        screen.expect("greedy play", 20)(5, 1234)
        assert list(screen.count([1, 2])) == [1, 2]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("greedy play: 5 of 20 episodes, 1,234 steps, 0:")
    assert [line.partition(",")[0] for line in lines[1:]] == ["frame 1", "frame 2", "writing the video"]


def test_a_run_without_steps_shows_how_long_it_stands_still(terminal, capsys):
    beginning = {
        "event": "plan",
        "run": "runs/a",
        "main_outcome": None,
        "time/plan": {"facts": [], "notes": []},
    }
    show([beginning, STATUS | {"phase": "collecting", "moved_at": time.time() - 75.5}])
    assert "64/192  no step for 1:1" in capsys.readouterr().err


def test_the_time_before_the_training_is_shown(terminal, capsys):
    show([{"event": "status", "phase": "making environments", "phase_since": time.time()}])
    assert "making environments, 0:0" in capsys.readouterr().err


def test_plain_lines_show_the_whole_run(events, capsys):
    show(events)
    out, err = capsys.readouterr()
    assert out == ""
    assert not CONTROL.search(err)
    assert re.search(r"rollout +64 +4 envs x 16 steps", err)
    assert "note: timesteps 130 rounded up to 192: 3 rollouts of 64" in err
    assert len(re.findall(r"evaluation at step \d+: return \d", err)) == 3
    assert "done: all steps made" in err
    assert re.search(r"rate +[\d,]+ steps/s of training, predicted [\d,]+; [\d,]+ overall", err)
    assert re.search(r"best +return .* at step \d+", err)
    assert re.search(r"collecting \d+ % \(environments \d+ %, acting \d+ %, waiting 0 %\), learning", err)
    assert re.search(r"cpu +.* busy", err)
    assert re.search(r"bound by +\w+", err)
    assert re.search(r"try +\S", err)  # other processes come first on a busy machine
    path = events[0]["run"]
    assert f"mission-gym resume {path} --timesteps 384" in err
    assert f"mission-gym eval {path}" in err
    assert "tensorboard --logdir" not in err  # there are no event files


def test_the_log_table_has_the_rows_of_progress(events, capsys):
    show(events, log_table=True)
    _, err = capsys.readouterr()
    for name, value in (("total_timesteps", "192"), ("iterations", "3"), ("fps", r"[\d,.]+"), ("loss", ".*")):
        assert re.search(rf"\|   {name} +\| +{value} \|", err)
    assert [err.count(f"| {name}/") for name in ("rollout", "time", "train", "machine")] == [3, 3, 3, 0]


def test_a_terminal_gets_one_line_that_fits_and_evaluations_above_it(events, capsys, terminal):
    show(events)
    err = capsys.readouterr().err
    assert "\x1b[?25h" in err  # the cursor is back
    live = [line for line in re.split(r"[\r\n]", CONTROL.sub("\n", err)) if "steps/s  return" in line]
    assert live
    assert all(len(line) <= 60 for line in live)
    assert "evaluation at step 64" in err


def test_a_stopped_run_shows_its_checkpoint_and_the_resume_command(events, capsys):
    show(with_end(events, state="stopped", cause="SIGINT", step=128))
    err = capsys.readouterr().err
    assert "stopped: SIGINT; saved at step 128" in err
    assert re.search(r"mission-gym resume \S+  # continue training", err)


def test_a_run_that_reached_its_goal_is_not_resumed(events, capsys):
    show(with_end(events, goal="return>=5"))
    assert "mission-gym resume" not in capsys.readouterr().err


def test_unknown_numbers_are_not_zero(events, capsys, terminal):
    show([events[0], STATUS])
    assert "64/192  n/a steps/s  return n/a  ETA n/a" in CONTROL.sub("", capsys.readouterr().err)


def test_the_main_outcome_has_its_place(events, capsys, terminal):
    plan = events[0] | {"main_outcome": "won"}
    show([plan, STATUS | {"outcomes": {"won": 0.25}}])
    assert "return n/a  won 25 %" in CONTROL.sub("", capsys.readouterr().err)


def test_warnings_and_resumes_are_printed(events, capsys):
    resumed = events[0] | {"event": "resume", "step": 64, "total": 192, "notes": ["the resume is exact"]}
    show([resumed, {"event": "warning", "message": "checkpoint not saved [disk]"}])
    err = capsys.readouterr().err
    assert "resumes at step 64 of 192" in err
    assert "note: the resume is exact" in err
    assert "warning: checkpoint not saved [disk]" in err


def test_an_exception_leaves_the_terminal_intact(events, capsys, terminal):
    with pytest.raises(KeyError, match="phase"):
        show([events[0], STATUS, {"event": "status"}])
    err = capsys.readouterr().err
    assert err.rindex("\x1b[?25h") > err.rindex("\x1b[?25l")


def test_escapes_of_an_environment_are_text(events, capsys, terminal):
    evil = "\x1b[2J\x9b31mwon\u202e\a"
    plan = events[0] | {"main_outcome": evil}
    show([plan, STATUS | {"outcomes": {evil: 0.25}}, {"event": "warning", "message": evil}])
    err = capsys.readouterr().err
    assert "warning: [2J31mwon" in err
    assert "[2J31mwon 25 %" in err
    assert not re.search("\x1b\\[2J|[\x9b\u202e\a]", err)


class Gone(io.StringIO):
    """A terminal that was closed."""

    def write(self, text):
        raise OSError(errno.EIO, "Input/output error")


def test_a_closed_terminal_does_not_end_the_training(events, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr", Gone())
    show(events)


def test_alarms_of_a_row_are_told_and_shares_are_in_the_line(events, capsys, monkeypatch):
    monkeypatch.setattr("mission_gym.report.screen.live._RUN_S", 0.0)
    first = next(number for number, event in enumerate(events) if event["event"] == "progress")
    row = events[first] | {"time/alarms": ["the rate fell"], "machine/cpu": 0.5, "machine/gpu_use": 0.25}
    show([*events[:first], row, *events[first + 1 :]])
    err = capsys.readouterr().err
    assert "warning: the rate fell" in err
    assert "env n/a, act n/a, learn n/a, cpu n/a" in err  # before the first row
    assert re.search(r"training  env \d+ %, act \d+ %, learn \d+ %, cpu \d+ %, gpu 25 %", err)
