"""A stranger's run or config is opened with every command, and none of what it names is run unasked."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mission_gym.cli.main import main
from mission_gym.store import trusted
from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.trust import edit_values

TOUCH = "import pathlib; pathlib.Path({canary!r}).touch()\n"
ENVS = """
import gymnasium as gym

def make():
    return gym.make('CartPole-v1')

class Own(gym.Wrapper):
    pass
"""
SMALL = ("--timesteps", "512", "--n-envs", "2", "--n-steps", "128", "--batch-size", "64", "--eval-freq", "0")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    code = main(["train", "CartPole-v1", "--no-tune", "--no-tensorboard", "--runs-dir", str(folder), *SMALL])
    assert code == 0
    return next(folder.iterdir())


@pytest.fixture
def stranger(trained, tmp_path, monkeypatch):
    """A copy of a run, in a folder that is not its own, and a state folder in which nothing is allowed."""
    run = tmp_path / "kept" / trained.name  # `runs` is a module of the tests
    shutil.copytree(trained, run)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(trusted, "_here", set())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return run


def edit(run, section="env", **values):
    edit_values(RunDir(run), section, **values)


def all_commands(run):
    bundle = run / "repro-env0-episode0.json"
    config = yaml.safe_load((run / "config.yaml").read_text())["env"]
    facts = {"env_id": config["env_id"], "env_kwargs": config["env_kwargs"], "wrap": list(config["wrap"])}
    bundle.write_text(json.dumps(facts | {"seed": 1, "actions": [0]}))
    return [
        ["eval", str(run), "--episodes", "1"],
        ["resume", str(run), "--timesteps", "1024"],
        ["branch", str(run), "--timesteps", "1024"],
        ["record", str(run)],
        ["train", "--config", str(run / "config.yaml")],
        ["check", "--repro", str(bundle)],
    ]


def expect_refusals(run, capfd, canary, text, extra=()):
    for args in all_commands(run):
        assert main([*args, *extra]) == 2, args
        assert text in capfd.readouterr().err, args
        assert not canary.exists(), args


def test_commands_of_the_standard_library_are_never_run(stranger, tmp_path, capfd):
    canary = tmp_path / "canary"
    edit(stranger, env_id="subprocess:getoutput", env_kwargs={"cmd": f"touch {canary}"})
    expect_refusals(stranger, capfd, canary, "never run", extra=["--trust"])


def test_a_function_under_another_name_is_refused_as_what_it_is(stranger, tmp_path, capfd):
    """`os.system` is the same function wherever it is imported to."""
    canary = tmp_path / "canary"
    Path("tools_of_mine.py").write_text("from os import system\n")
    edit(stranger, env_id="tools_of_mine:system", env_kwargs={"command": f"touch {canary}"})
    expect_refusals(stranger, capfd, canary, "never run", extra=["--trust"])


def test_code_inside_the_run_is_never_run(stranger, tmp_path, capfd, monkeypatch):
    canary = tmp_path / "canary"
    (stranger / "evil_inside.py").write_text(TOUCH.format(canary=str(canary)) + ENVS)
    lineage = json.loads((stranger / "lineage.json").read_text())
    (stranger / "lineage.json").write_text(json.dumps(lineage | {"folder": str(stranger)}))
    edit(stranger, env_id="evil_inside:make")
    for args in all_commands(stranger):
        assert main([*args, "--trust"]) == 2, args
        assert not canary.exists(), args
    monkeypatch.chdir(stranger)
    expect_refusals(stranger, capfd, canary, "code inside a run", extra=["--trust"])


CLASS = """
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Env(CartPoleEnv):
    pass
"""


def test_a_dotted_name_into_a_run_is_never_run(stranger, tmp_path, capfd, monkeypatch):
    canary = tmp_path / "canary"
    monkeypatch.chdir(tmp_path)
    (stranger / "env").mkdir(exist_ok=True)
    (stranger / "env" / "evil.py").write_text(TOUCH.format(canary=str(canary)) + CLASS)
    edit(stranger, env_id=f"kept.{stranger.name}.env.evil:Env")
    expect_refusals(stranger, capfd, canary, "code inside a run", extra=["--trust"])
    (stranger / "__init__.py").write_text("")
    monkeypatch.chdir(stranger.parent)
    edit(stranger, env_id=f"{stranger.name}.env.evil:Env")
    expect_refusals(stranger, capfd, canary, "code inside a run", extra=["--trust"])


def test_a_run_that_is_opened_from_inside_shadows_nothing(stranger, tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    for name in ("numpy", "psutil", "queue", "cloudpickle"):
        (stranger / f"{name}.py").write_text(TOUCH.format(canary=str(canary)))
    monkeypatch.chdir(stranger)
    for args in (["eval", ".", "--episodes", "1"], ["record", "."]):
        code = f"import sys; sys.path.remove(''); from mission_gym.cli.main import main; main({args!r})"
        subprocess.run([sys.executable, "-c", code], check=True)
        assert not canary.exists(), args


def test_classes_of_the_benchmarks_and_recorders_need_leave(stranger, tmp_path, capfd):
    canary = tmp_path / "canary"
    hazard = {"kind": "background process", "once": str(canary), "pids": str(tmp_path / "pids")}
    edit(stranger, env_id="mission_gym_bench.faults.hazard:Hazard", env_kwargs=hazard)
    expect_refusals(stranger, capfd, canary, "is made for tests, and may write files or start processes")
    edit(
        stranger,
        env_id="CartPole-v1",
        env_kwargs={},
        wrap=[f"gymnasium.wrappers:RecordVideo({str(canary)!r})"],
    )
    expect_refusals(stranger, capfd, canary, "may write files")
    pytest.importorskip("stable_baselines3")
    edit(stranger, wrap=[f"stable_baselines3.common.monitor:Monitor({str(canary)!r})"])
    expect_refusals(stranger, capfd, canary, "may write files")
    assert not canary.with_name("canary.monitor.csv").exists()


OWN_CLASS = """
import pathlib

from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Env(CartPoleEnv):
    def __init__(self, render_mode=None):
        super().__init__(render_mode=render_mode)
        with pathlib.Path("pids").open("a") as file:
            import os

            file.write(f"{os.getpid()}\\n")
"""


@pytest.mark.parametrize("command", ["eval", "resume", "branch", "record", "train"])
def test_a_file_steps_nothing_in_this_process(stranger, command):
    """There, an environment could end the run, or leave processes."""
    Path("own_stepped.py").write_text(OWN_CLASS)
    edit(stranger, env_id="own_stepped:Env")
    edit(stranger, "vector", vector="serial")
    (args,) = [each for each in all_commands(stranger) if each[0] == command]
    assert main(args) == 0
    assert str(os.getpid()) not in Path("pids").read_text().split()


def test_a_vector_form_that_a_file_names_needs_leave(stranger, capfd):
    Path("own_batched.py").write_text(OWN_CLASS)
    edit(stranger, env_id="own_batched:Env")
    edit(stranger, "vector", vector="batched")
    for args in all_commands(stranger)[:5]:
        if args[0] != "branch":  # chosen by a plan, so a branch chooses again
            assert main(args) == 2, args
            text = "asks to step own_batched:Env in the training process (vector=batched); nothing was run"
            assert text in capfd.readouterr().err, args
    assert not Path("pids").exists()


def test_stepping_in_this_process_is_allowed_once(stranger, tmp_path, capfd):
    Path("own_allowed.py").write_text(OWN_CLASS)
    own = ["--vector", "serial", "--no-tune", "--runs-dir", str(tmp_path / "own"), *SMALL]
    assert main(["train", "own_allowed:Env", *own]) == 0
    assert set(Path("pids").read_text().split()) == {str(os.getpid())}
    edit(stranger, env_id="own_allowed:Env")
    edit(stranger, "vector", vector="serial")
    Path("pids").unlink()
    assert main(["eval", str(stranger), "--episodes", "1"]) == 0
    assert set(Path("pids").read_text().split()) == {str(os.getpid())}


SECRET = """
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Env(CartPoleEnv):
    def __init__(self, key, render_mode=None):
        assert key == "hunter" + "2"
        super().__init__(render_mode=render_mode)
"""


def test_the_value_of_a_variable_is_never_stored(stranger, tmp_path, capfd, monkeypatch):
    Path("own_secret.py").write_text(SECRET)
    monkeypatch.setenv("OWN_KEY", "hunter2")
    where = ["--runs-dir", str(tmp_path / "own")]
    flags = ["--env-kwargs", "key=env:OWN_KEY", "--no-tune", *where, *SMALL]
    assert main(["train", "own_secret:Env", *flags]) == 0
    (run,) = (tmp_path / "own").iterdir()
    assert main(["eval", str(run), "--episodes", "1"]) == 0
    assert main(["report", str(run), "--out", str(run / "report.html"), *where]) == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert not [path for path in files if b"hunter2" in path.read_bytes()]
    assert "env:OWN_KEY" in (run / "config.yaml").read_text()
    monkeypatch.delenv("OWN_KEY")
    assert main(["eval", str(run), "--episodes", "1"]) == 2
    assert "needs the environment variable OWN_KEY, which is not set" in capfd.readouterr().err


def test_a_variable_that_a_file_names_needs_leave(stranger, capfd, monkeypatch):
    Path("own_secret_asked.py").write_text(SECRET)
    monkeypatch.setenv("OWN_KEY", "hunter2")
    edit(stranger, env_id="own_secret_asked:Env", env_kwargs={"key": "env:OWN_KEY"})
    for args in all_commands(stranger):
        assert main(args) == 2, args
        text = "own_secret_asked:Env with key from the environment variable OWN_KEY; nothing was run"
        assert text in capfd.readouterr().err, args
    assert main(["eval", str(stranger), "--episodes", "1", "--trust"]) == 0


def test_the_message_tells_imported_from_called(stranger, tmp_path, capfd):
    canary = tmp_path / "canary"
    Path("own_named.py").write_text(TOUCH.format(canary=str(canary)) + ENVS)
    edit(stranger, env_id="own_named:make")
    assert main(["eval", str(stranger), "--episodes", "1"]) == 2
    assert "its module was imported, but it was not called" in capfd.readouterr().err
    assert canary.exists()
    edit(stranger, env_id=f"bridge:touch {canary}2")
    assert main(["eval", str(stranger), "--episodes", "1"]) == 2
    assert "nothing was run" in capfd.readouterr().err


def test_a_line_break_in_a_name_ends(stranger, capfd):
    edit(stranger, env_id="bridge:true\nx")
    assert main(["eval", str(stranger), "--trust"]) == 2
    assert "control characters" in capfd.readouterr().err


def test_the_folder_of_a_stranger_needs_leave(stranger, tmp_path, capfd):
    canary, folder = tmp_path / "canary", tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "evil_elsewhere.py").write_text(TOUCH.format(canary=str(canary)) + ENVS)
    lineage = json.loads((stranger / "lineage.json").read_text())
    (stranger / "lineage.json").write_text(json.dumps(lineage | {"folder": str(folder)}))
    edit(stranger, env_id="evil_elsewhere:make")
    for args in all_commands(stranger):
        assert main(args) == 2, args
        assert not canary.exists(), args
    assert main(["eval", str(stranger), "--episodes", "1", "--trust"]) == 0
    assert canary.exists()
    assert main(["eval", str(stranger), "--episodes", "1"]) == 0  # it was remembered


@pytest.mark.parametrize("field", ["wrap", "network"])
def test_functions_of_wrappers_and_networks_need_leave(stranger, capfd, field):
    Path("own_parts.py").write_text(
        "import gymnasium as gym\nfrom torch import nn\n\n\ndef part(given):\n"
        "    return nn.Linear(4, 8) if not isinstance(given, gym.Env) else given\n"
    )
    if field == "wrap":
        edit(stranger, wrap=["own_parts:part"])
    else:
        edit(stranger, "policy", network="own_parts:part")
    assert main(["eval", str(stranger), "--episodes", "1"]) == 2
    assert "own_parts:part in" in capfd.readouterr().err
    if field == "wrap":
        assert main(["eval", str(stranger), "--episodes", "1", "--trust"]) == 0


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ("os:system('touch canary')", "names the standard library's 'os'"),
        ("subprocess:getoutput('touch canary')", "it is never run"),
        ("own_loud:touch('canary')", "own_loud:touch in"),
        ("own_loud:Own(__import__('os').system('touch canary'))", "is not a literal"),
    ],
)
def test_arguments_do_not_change_who_is_trusted(stranger, capfd, wrapper, said):
    Path("own_loud.py").write_text(
        "import gymnasium as gym\nfrom pathlib import Path\n\n\ndef touch(env, name='canary'):\n"
        "    Path(name).touch()\n    return env\n\n\nclass Own(gym.Wrapper):\n    pass\n"
    )
    edit(stranger, wrap=[wrapper])
    assert main(["eval", str(stranger), "--episodes", "1"]) == 2
    assert said in capfd.readouterr().err
    assert not Path("canary").exists()


def test_ones_own_classes_and_what_was_typed_need_no_ceremony(stranger, capfd):
    Path("own_envs_typed.py").write_text(ENVS)
    edit(stranger, wrap=["own_envs_typed:Own"])
    assert main(["eval", str(stranger), "--episodes", "1"]) == 0  # a class of the current folder
    edit(stranger, env_id="own_envs_typed:make", wrap=[])
    assert main(["eval", str(stranger), "--episodes", "1"]) == 2
    assert main(["check", "own_envs_typed:make"]) in (0, 2)  # typed here
    assert main(["eval", str(stranger), "--episodes", "1"]) == 0


def test_files_that_are_not_in_the_run_are_refused(stranger, capfd):
    (stranger / "env-files.json").write_text(json.dumps({"max_episode_steps": "../../../etc/passwd"}))
    assert main(["eval", str(stranger), "--episodes", "1"]) == 2
    assert "which is not in the run" in capfd.readouterr().err
    (stranger / "env").mkdir(exist_ok=True)
    (stranger / "env" / "link").symlink_to("/etc/passwd")
    (stranger / "env-files.json").write_text(json.dumps({"max_episode_steps": "link"}))
    assert main(["eval", str(stranger), "--episodes", "1"]) == 2


@pytest.mark.parametrize("command", ["branch", "train"])
def test_private_files_are_not_copied_into_a_run(stranger, tmp_path, capfd, command):
    """A shared run would publish them."""
    private = tmp_path / "id_rsa"
    private.write_text("private")
    edit(stranger, env_kwargs={"sutton_barto_reward": str(private)})
    (args,) = [each for each in all_commands(stranger) if each[0] == command]
    assert main(args) == 2
    assert (
        f"a copy of {private} in the run (sutton_barto_reward); nothing was copied" in capfd.readouterr().err
    )
    assert main([*args, "--trust"]) == 0


def test_links_in_the_copies_of_a_parent_are_not_followed(stranger, tmp_path):
    private = tmp_path / "id_rsa"
    private.write_text("private")
    (stranger / "env" / "levels").mkdir(parents=True)
    (stranger / "env" / "levels" / "link").symlink_to(private)
    (stranger / "env-files.json").write_text(json.dumps({"sutton_barto_reward": "levels"}))
    runs_dir = tmp_path / "children"
    assert main(["branch", str(stranger), "--timesteps", "1024", "--runs-dir", str(runs_dir)]) == 0
    assert (next(runs_dir.iterdir()) / "env" / "levels" / "link").is_symlink()


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"\n", 2)])
def test_a_terminal_is_asked(stranger, answer, code):
    Path("own_envs_asked.py").write_text(ENVS)
    edit(stranger, env_id="own_envs_asked:make")
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "mission_gym", "eval", str(stranger), "--episodes", "1"]
    process = subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(master, 1024)
    os.write(master, answer)
    while True:  # the end of the terminal is an error on Linux
        try:
            said += os.read(master, 1024)
        except OSError:
            break
    assert process.communicate()[0] is not None
    assert process.returncode == code, said
    os.close(master)


def test_reading_commands_run_nothing(stranger, tmp_path, capfd):
    canary = tmp_path / "canary"
    edit(stranger, env_id="subprocess:getoutput", env_kwargs={"cmd": f"touch {canary}"})
    for args in (
        ["runs", "show", str(stranger)],
        ["config", str(stranger)],
        ["runs", "lineage", str(stranger)],
    ):
        assert main(args) == 0
    assert not canary.exists()


@pytest.mark.parametrize("env", ["--trust", None])
def test_a_job_file_can_not_trust_itself(stranger, tmp_path, capfd, env):
    canary = tmp_path / "canary"
    values = {"timesteps": 4096, "set": [f"env.env_id=bridge:touch {canary}"]} | ({"env": env} if env else {})
    Path("gift.yaml").write_text(json.dumps({"defaults": values, "jobs": [{"name": "a", "retries": 0}]}))
    assert main(["jobs", "run", "gift.yaml", "--runs-dir", str(tmp_path / "runs")]) != 0
    assert not canary.exists()
    assert not trusted.find_trust_file().exists()


@pytest.mark.parametrize("command", ["resume", "branch", "train"])
def test_the_address_of_a_cluster_needs_leave(stranger, tmp_path, capfd, monkeypatch, command):
    """A hostile head of a Ray cluster runs code here."""
    connected = []
    monkeypatch.setattr("mission_gym.ray.cluster.load_ray", lambda: connected.append(1))
    monkeypatch.setattr("mission_gym.ray.cluster._try_reach", lambda address: connected.append(address))
    edit(stranger, "vector", vector="ray", ray_address="192.0.2.1:6379")
    (args,) = [each for each in all_commands(stranger) if each[0] == command]
    assert main(args) == 2
    assert "the Ray cluster at 192.0.2.1:6379" in capfd.readouterr().err
    assert connected == []


@pytest.mark.parametrize("command", ["resume", "branch", "train"])
def test_trackers_of_a_run_that_was_not_made_here_send_nothing(stranger, capfd, command):
    edit(stranger, "run", track=["trackio"])
    (args,) = [each for each in all_commands(stranger) if each[0] == command]
    assert main(args) == 2
    assert f"the tracker trackio for {stranger}; nothing was sent" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["base_url", "served_at"])
def test_hosts_of_a_run_need_leave(stranger, capfd, name):
    edit(stranger, env_id="mission_gym/Explore-v0", env_kwargs={name: "http://127.0.0.1:45999/"})
    for args in all_commands(stranger):
        assert main(args) == 2, args
        assert f"{name}='http://127.0.0.1:45999/'; nothing was sent" in capfd.readouterr().err, args


WRITTEN = (".lock", ".pins-lock", "metrics.jsonl", "monitor.csv", "log.txt", "progress.csv", ".reserve")


@pytest.mark.parametrize(
    "name", [*WRITTEN, "eval", "tensorboard", "status.json", "pins.json", "step_000000000512.mp4"]
)
def test_nothing_is_written_through_a_link(stranger, tmp_path, name):
    precious = tmp_path / "precious"
    if name in ("eval", "tensorboard"):
        precious.mkdir()
        shutil.rmtree(stranger / name, ignore_errors=True)
    else:
        precious.write_text("mine")
        (stranger / name).unlink(missing_ok=True)
    (stranger / name).symlink_to(precious)
    runs_dir = ["--runs-dir", str(stranger.parent)]
    commands = [each for each in all_commands(stranger) if each[0] in ("eval", "resume", "branch", "record")]
    for args in [*commands, ["runs", "clean", stranger.name, "--yes", *runs_dir]]:
        code = main([*args, *runs_dir] if args[0] == "branch" else args)
        assert code in (0, 2), args
        assert list(precious.iterdir()) == [] if precious.is_dir() else precious.read_text() == "mine", args
