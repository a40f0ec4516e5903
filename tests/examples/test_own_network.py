"""The example of a network: it trains on a Dict with a category, and evaluates."""

from pathlib import Path

from own_network import Shop

import mission_gym as mg
from mission_gym.check.environment import check_environment
from mission_gym.check.findings import has_errors
from mission_gym.env.factory import EnvRequest

DOCS = Path(__file__).parents[2] / "docs" / "networks.md"


def test_the_environment_has_no_errors() -> None:
    assert not has_errors(check_environment(EnvRequest("own_network:Shop"), num_episodes=3, budget_s=3.0))


def test_the_network_trains_and_evaluates(tmp_path: Path) -> None:
    run = mg.train(
        Shop, network="own_network:ShopNet", timesteps=128, n_envs=2, n_steps_per_env=32, n_epochs=1,
        batch_size=32, eval_freq=0, tensorboard=False, progress=False, runs_dir=str(tmp_path),
        vector="serial",
    )  # fmt: skip
    result = run.evaluate(episodes=2)
    assert set(result["outcomes"]) == {"profit", "loss"}


def test_the_page_shows_the_network_of_the_example() -> None:
    shown = DOCS.read_text().partition("class ShopNet")[2].partition("```")[0]
    code = (DOCS.parents[1] / "examples" / "own_network.py").read_text().partition("class ShopNet")[2]
    lines = [line.strip() for line in shown.splitlines()[3:] if line.strip() and "def " not in line]
    assert [line for line in lines if line.partition("  #")[0] not in code] == []
