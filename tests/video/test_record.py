"""Videos of a trained policy, read back with the libraries that wrote them."""

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

import mission_gym as mg
import toys
from mission_gym.cli.main import main
from mission_gym.errors import EnvContractError
from mission_gym.run.open import open_run
from mission_gym.store.resolve import find_run
from mission_gym.video.play import render_frame
from mission_gym.video.record import join_videos, play_frames, write_video
from timeouts import scale_timeout

TOY = "toys:Identity"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run on CartPole and one on a toy without a render mode."""
    folder = tmp_path_factory.mktemp("videos")
    shared = {"runs_dir": str(folder), "progress": False, "n_envs": 2, "n_steps_per_env": 32, "timesteps": 64}
    shared |= {"batch_size": 32, "n_epochs": 1, "eval_freq": 0, "tensorboard": False}
    mg.train("CartPole-v1", run_name="pole", network_arch="8", **shared)
    mg.train(TOY, run_name="toy", **shared)
    return folder


def count_frames(path):
    reader = imageio_ffmpeg.read_frames(str(path))
    size = next(reader)["size"]
    return sum(1 for _ in reader), size


def test_record_writes_an_mp4_into_the_run(runs, capsys):
    assert main(["record", "pole", "--runs-dir", str(runs), "--seed", "3"]) == 0
    path = capsys.readouterr().out.strip()
    assert path.endswith("step_000000000064.mp4")
    count, size = count_frames(path)
    length = len(list(play_frames(open_run(find_run("pole", runs)), 3)))
    assert (count, size) == (length, (600, 400))


def test_record_writes_a_gif_of_several_sampled_episodes(runs, tmp_path):
    out = tmp_path / "pole.gif"
    args = ["--episodes", "2", "--stochastic", "--out", str(out), "--runs-dir", str(runs)]
    assert main(["record", "pole@0", *args]) == 0
    with Image.open(out) as video:
        assert video.size == (600, 400)
        assert video.info["duration"] == 60  # every third of 50 frames per second
        assert video.n_frames > 2
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["toy"], "can't be recorded: its render modes are none; it needs rgb_array in metadata"),
        (
            ["pole", "--out", "video.avi"],
            r"'video.avi' has an unknown ending; videos end in .gif, .mp4, .html [--out]",
        ),
        (["pole", "--out", "nowhere/video.gif"], "the folder nowhere does not exist"),
        (["pole", "--out", "video.html"], "CartPole-v1 has no pages: it needs a method make_page()"),
        (
            ["pole", "--out", "video.html", "--episodes", "2"],
            "episodes=2 is not possible: a page replays one episode; use 1 [--episodes]",
        ),
        (["pole", "--episodes", "0"], "episodes=0 is not a positive count [--episodes]"),
    ],
)
def test_invalid_recordings_are_refused(runs, args, message, capsys):
    assert main(["record", *args, "--runs-dir", str(runs)]) == 2
    assert message in capsys.readouterr().err


def test_joined_videos_last_as_long_as_the_longest():
    def video(count, value):
        return iter([np.full((40, 100, 3), value, np.uint8)] * count)

    frames = list(join_videos([("a", video(2, 50)), ("b", video(5, 90))], 50))
    assert len(frames) == 5
    assert {frame.shape for frame in frames} == {(20 + 30, 100, 3)}
    assert frames[-1][-1, [25, 75], 0].tolist() == [50, 90]


def test_a_gif_keeps_the_colour_of_a_few_pixels(tmp_path):
    frame = np.full((64, 64, 3), 20, np.uint8)
    frame[:, :32] = np.arange(64, dtype=np.uint8)[:, None, None]
    frame[5, 60] = (248, 40, 40)
    write_video([tmp_path / "a.gif", tmp_path / "a.mp4"], iter([frame] * 3), 10.0)
    with Image.open(tmp_path / "a.gif") as video:
        shown = np.asarray(video.convert("RGB"), int)
    assert np.abs(shown - frame).max() <= 8
    assert count_frames(tmp_path / "a.mp4")[1] == (64, 64)


def test_an_error_while_recording_leaves_no_file(tmp_path):
    def frames():
        yield np.zeros((16, 16, 3), np.uint8)
        raise RuntimeError("the environment broke")

    with pytest.raises(RuntimeError, match="broke"):
        write_video([tmp_path / "a.gif", tmp_path / "a.mp4"], frames(), 10.0)
    assert list(tmp_path.iterdir()) == []


def test_an_exception_of_render_is_an_env_contract_error() -> None:
    class Broken(toys.Identity):
        def render(self) -> None:
            raise RuntimeError("no screen")

    with pytest.raises(EnvContractError, match=r"render\(\) raised RuntimeError: no screen"):
        render_frame(Broken())


HAZARD = "mission_gym_bench.faults.hazard:Hazard"


@pytest.mark.parametrize(
    ("kind", "code", "message"),
    [
        ("segfault", 3, "its process was killed by SIGSEGV"),
        ("exit", 3, "its process ended with code"),
        ("KeyboardInterrupt", 3, "the environment raised KeyboardInterrupt"),
        ("hang", 3, "no answer to render() within"),
        ("raise", 2, "render() raised"),
        ("shape", 2, "render() returned"),
    ],
)
def test_a_broken_environment_ends_a_recording_with_one_message(kind, code, message, tmp_path, capsys):
    values = {"kind": kind, "place": "render", "after": 3}
    timeout_s = scale_timeout(2.0) if kind == "hang" else 60.0
    sizes = {"n_envs": 2, "n_steps_per_env": 32, "timesteps": 64, "eval_freq": 0, "tensorboard": False}
    mg.train(HAZARD, env_kwargs=values, env_timeout=timeout_s, run_name="h", runs_dir=str(tmp_path), **sizes)
    capsys.readouterr()
    assert main(["record", "h", "--runs-dir", str(tmp_path), "--out", str(tmp_path / "video.gif")]) == code
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback (most recent call last)" not in printed
    assert not list(tmp_path.glob("*video*"))
