"""`mission-gym tune` on a real environment."""

import json

from mission_gym.cli.main import main
from timeouts import scale_timeout

ENV_ID = "toys:Identity"
KEYS = {"backend", "n_envs", "num_workers", "predicted_steps_per_s", "reasons"}


def test_tune_measures_once_and_stores_the_plan(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = ["tune", ENV_ID, "--n-envs", "4", "--num-workers", "1", "--budget", f"{scale_timeout(3):.0f}s"]
    assert main([*asked, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document.keys() >= KEYS
    assert (document["n_envs"], document["num_workers"], document["cached"]) == (4, 1, False)
    assert "timing the environment" in err
    assert sum(point["knee"] for point in document["scaling"]) == 1
    assert main(asked) == 0
    out, err = capsys.readouterr()
    assert "from the stored plan" in out
    assert "<- knee" in out
    assert "timing" not in err
    assert main([*asked, "--markdown"]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith(f"# Scaling guide: {ENV_ID}\n\nMachine: ")
    assert "| environments | steps/s | gain | memory | per env |  |" in out
    assert "| 5M | " in out
    assert main([*asked, "--markdown", "--json"]) == 2
    assert "JSON and Markdown can't both be printed" in capsys.readouterr().err


def test_tune_plans_dqn_from_its_profile(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = ["tune", ENV_ID, "--algo", "dqn", "--prioritized", "--budget", f"{scale_timeout(3):.0f}s"]
    assert main([*asked, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["n_envs"] * document["n_steps_per_env"] == 32  # of the profile: 8 environments, 4 steps
    assert document["predicted_steps_per_s"] > 0
    assert any("of update per step" in reason for reason in document["reasons"])


def test_invalid_flags_are_refused(capsys):
    assert main(["tune", ENV_ID, "--budget", "1s"]) == 2
    assert "budget=1s is below 2 s; give more time [--budget]" in capsys.readouterr().err
    assert main(["tune", "toys:Nothing"]) == 2
    assert "has no callable" in capsys.readouterr().err
    assert main(["tune", ENV_ID, "--eval-freq", "3"]) == 2
    assert "unknown flag '--eval-freq'" in capsys.readouterr().err


def test_an_environment_that_fails_while_timed_is_one_message(capsys):
    kwargs = ["--env-kwargs", "fail=raise", "at=1", "--vector", "workers"]
    assert main(["tune", "toys:Faulty", *kwargs, "--budget", f"{scale_timeout(3):.0f}s"]) == 3
    err = capsys.readouterr().err
    assert "step() raised RuntimeError: the simulator fell over" in err
    assert "Traceback" not in err
