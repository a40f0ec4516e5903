"""Films of a trained policy, read back with the libraries that wrote them."""

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
from mission_gym.video.film import place_beside, play_frames, write_films
from mission_gym.video.studio import take_picture
from waits import patience

TOY = "toys:Identity"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run on CartPole and one on a toy that draws nothing."""
    folder = tmp_path_factory.mktemp("films")
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
    with Image.open(out) as film:
        assert film.size == (600, 400)
        assert film.info["duration"] == 60  # every third of 50 pictures a second
        assert film.n_frames > 2
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["toy"], "can't be filmed: its render modes are none; an environment that draws has rgb_array"),
        (
            ["pole", "--out", "film.avi"],
            r"'film.avi' has no known ending; films end in .gif, .mp4, .html [--out]",
        ),
        (["pole", "--out", "nowhere/film.gif"], "the folder nowhere does not exist"),
        (
            ["pole", "--out", "film.html"],
            "CartPole-v1 makes no pages of its episodes: it has no method make_page()",
        ),
        (
            ["pole", "--out", "film.html", "--episodes", "2"],
            "episodes=2: a page plays one; use 1 [--episodes]",
        ),
        (["pole", "--episodes", "0"], "episodes=0 is not a positive count [--episodes]"),
    ],
)
def test_what_can_not_be_filmed(runs, args, message, capsys):
    assert main(["record", *args, "--runs-dir", str(runs)]) == 2
    assert message in capsys.readouterr().err


def test_films_side_by_side_wait_for_the_longest():
    def film(count, value):
        return iter([np.full((40, 100, 3), value, np.uint8)] * count)

    pictures = list(place_beside([("a", film(2, 50)), ("b", film(5, 90))], 50))
    assert len(pictures) == 5
    assert {picture.shape for picture in pictures} == {(20 + 30, 100, 3)}
    assert pictures[-1][-1, [25, 75], 0].tolist() == [50, 90]


def test_a_gif_keeps_the_colour_of_a_few_pixels(tmp_path):
    frame = np.full((64, 64, 3), 20, np.uint8)
    frame[:, :32] = np.arange(64, dtype=np.uint8)[:, None, None]
    frame[5, 60] = (248, 40, 40)
    write_films([tmp_path / "a.gif", tmp_path / "a.mp4"], iter([frame] * 3), 10.0)
    with Image.open(tmp_path / "a.gif") as film:
        shown = np.asarray(film.convert("RGB"), int)
    assert np.abs(shown - frame).max() <= 8
    assert count_frames(tmp_path / "a.mp4")[1] == (64, 64)


def test_a_film_that_breaks_leaves_nothing(tmp_path):
    def frames():
        yield np.zeros((16, 16, 3), np.uint8)
        raise RuntimeError("the environment broke")

    with pytest.raises(RuntimeError, match="broke"):
        write_films([tmp_path / "a.gif", tmp_path / "a.mp4"], frames(), 10.0)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_the_environment_can_not_give_is_told() -> None:
    class Broken(toys.Identity):
        def render(self) -> None:
            raise RuntimeError("no screen")

    with pytest.raises(EnvContractError, match=r"render\(\) raised RuntimeError: no screen"):
        take_picture(Broken())


HAZARD = "mission_gym_bench.faults.hazard:Hazard"


@pytest.mark.parametrize(
    ("kind", "code", "message"),
    [
        ("segfault", 3, "the process that played it was killed by SIGSEGV"),
        ("exit", 3, "the process that played it ended with code"),
        ("KeyboardInterrupt", 3, "the environment raised KeyboardInterrupt"),
        ("hang", 3, "no answer to take_picture within"),
        ("raise", 2, "render() raised"),
        ("shape", 2, "render() gave"),
    ],
)
def test_an_environment_that_breaks_while_it_is_filmed_is_told_in_one_message(
    kind, code, message, tmp_path, capsys
):
    values = {"kind": kind, "place": "render", "after": 3}
    timeout_s = patience(2.0) if kind == "hang" else 60.0
    sizes = {"n_envs": 2, "n_steps_per_env": 32, "timesteps": 64, "eval_freq": 0, "tensorboard": False}
    mg.train(HAZARD, env_kwargs=values, env_timeout=timeout_s, run_name="h", runs_dir=str(tmp_path), **sizes)
    capsys.readouterr()
    assert main(["record", "h", "--runs-dir", str(tmp_path), "--out", str(tmp_path / "film.gif")]) == code
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback (most recent call last)" not in told
    assert not list(tmp_path.glob("*film*"))
