"""DQN on blocks made by hand: what is due, when the target moves, stops in the middle, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.dqn.compiled_kernel import CompiledQKernel
from mission_gym.algorithms.dqn.learner import DqnLearner
from mission_gym.algorithms.dqn.section import DqnSection
from mission_gym.algorithms.dqn.torch_kernel import TorchQKernel
from mission_gym.data import Block, EnvSpec, Final, LeafSpec
from mission_gym.errors import NotFiniteError
from mission_gym.learner.blocks import with_prefix
from mission_gym.learner.replay import ReplayLayout
from mission_gym.policy import PolicySpec
from mission_gym.rollout.blocks import make_block

LEAF = LeafSpec("", (3,), "float32", "vector")
CHOICE = ActionSpec("categories", (), "int64", nvec=(4,), start=(0,))
VALUES: dict[str, Any] = {
    "batch_size": 8, "replay_ratio": 0.5, "learning_starts": 16, "learning_rate": 1e-3, "max_grad_norm": 10.0,
    "loss": "huber", "double": True, "tau": 1.0, "target_update_interval": 64, "exploration_initial_eps": 1.0,
    "exploration_final_eps": 0.1, "exploration_fraction": 0.1, "prioritized_beta": 0.4,
}  # fmt: skip
TOTAL = 1000


def make_learner(
    num_envs: int, capacity: int = 500, n_step: int = 1, mask_size: int = 0, **changes: Any
) -> DqnLearner:
    spec = PolicySpec((LEAF,), CHOICE, (16, 16), "relu", form="values")
    kernel = CompiledQKernel(spec, TorchQKernel(spec, seed=1).acting())
    layout = ReplayLayout((LEAF,), CHOICE, mask_size, num_envs, capacity, n_step, 0.9)
    normalize_returns = changes.pop("normalize_returns", False)
    section = DqnSection(**(VALUES | changes))
    scaled = {"normalize_returns": normalize_returns}
    return DqnLearner(kernel, spec, section, layout, total_steps=TOTAL, seed=5, **scaled)


def make_filled(num_steps: int, num_envs: int, number: int, first: np.ndarray | None = None) -> Block:
    """A random block that goes on where the last one ended."""
    block = make_block(EnvSpec("toy", (LEAF,), CHOICE, None, None), num_steps, num_envs)
    rng = np.random.default_rng(number)
    block.obs[0][:] = rng.normal(size=block.obs[0].shape)
    if first is not None:
        block.obs[0][0] = first
    block.action[:] = rng.integers(0, 4, block.action.shape)
    block.reward[:] = rng.normal(size=block.reward.shape)
    block.terminated[:] = rng.random(block.reward.shape) < 0.1
    block.valid[:] = True
    block.filled[:] = num_steps
    return block


def arrays_of(learner: DqnLearner, network: str) -> dict[str, np.ndarray]:
    """The arrays of the online or of the target network."""
    kernel = learner.kernel
    return with_prefix(kernel.training(), "target.") if network == "target" else kernel.acting()


def feed(learner: DqnLearner, num_blocks: int, num_steps: int, start: int = 0) -> list[dict[str, float]]:
    """Learn from blocks; returns the metrics of each update."""
    rows, last = [], None
    for number in range(start, start + num_blocks):
        block = make_filled(num_steps, learner.replay.num_columns, number, last)
        last = block.obs[0][-1]
        stats = learner.update(block)
        assert stats is not None
        rows.append(stats.metrics)
    return rows


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 2.0])
def test_the_replay_ratio_does_not_depend_on_the_number_of_environments(ratio: float) -> None:
    """256 transitions, of which the first 16 are not learned from: the same count for any shape of blocks."""
    made = []
    for num_envs, num_steps in ((1, 1), (1, 8), (8, 4), (64, 2)):
        learner = make_learner(num_envs, replay_ratio=ratio)
        feed(learner, 256 // (num_envs * num_steps), num_steps)
        made.append(learner.gradient_steps)
    assert made == [int(ratio * 240 + 1e-9)] * 4


def test_transitions_that_are_not_valid_are_owed_no_gradient_step() -> None:
    learner = make_learner(4, learning_starts=0, replay_ratio=1.0)
    block = make_filled(8, 4, 0)
    block.valid[2:4] = False
    stats = learner.update(block)
    assert stats is not None
    assert stats.gradient_steps == 24
    assert learner.step == 32


def test_target_epsilon_and_start_go_by_the_absolute_step() -> None:
    learner = make_learner(4)
    first = arrays_of(learner, "target")
    epsilons = []
    for number in range(5):
        epsilons.append(learner.weights().exploration)
        rows = feed(learner, 1, 4, number)
        same = all(np.array_equal(first[name], array) for name, array in arrays_of(learner, "target").items())
        assert same == (learner.step < 64), learner.step
        assert ("train/loss" in rows[0]) == (learner.step > 16)
    np.testing.assert_allclose(epsilons, [1.0 - 0.9 * step / 100 for step in (0, 16, 32, 48, 64)])


@pytest.mark.parametrize("prioritized", [False, True], ids=["uniform", "prioritised"])
def test_a_stopped_update_goes_on_where_it_was(prioritized: bool) -> None:
    """Stopped at every place, saved, loaded into another learner, and called again with the same block."""
    settings = {"prioritized": prioritized, "replay_ratio": 0.5, "batch_size": 1024, "n_step": 3}
    straight = make_learner(4, **settings)
    expected = feed(straight, 4, 4)
    learner, last, rows = make_learner(4, **settings), None, []
    for number in range(4):
        block = make_filled(4, 4, number, last)
        last = block.obs[0][-1]
        polls = 0

        def stop() -> bool:
            nonlocal polls
            polls += 1
            return polls > 1

        while (stats := learner.update(block, stop)) is None:
            polls = 0
            other = make_learner(4, **settings)
            other.load_arrays(learner.arrays())
            other.load_extras({name: array.copy() for name, array in learner.extras().items()})
            learner = other
        rows.append(stats.metrics)
    assert rows == expected
    for name, array in (straight.arrays() | straight.extras()).items():
        np.testing.assert_array_equal(array, (learner.arrays() | learner.extras())[name], err_msg=name)


def test_without_its_replay_learning_starts_anew() -> None:
    learner = make_learner(4)
    feed(learner, 4, 4)
    other = make_learner(4)
    other.load_arrays(learner.arrays())
    before = other.kernel.acting()
    assert not other.replay.can_draw
    first, second = feed(other, 2, 4, 4)
    assert "train/loss" not in first
    assert "train/loss" in second
    assert other.gradient_steps == learner.gradient_steps + 8
    assert any(not np.array_equal(before[name], array) for name, array in other.kernel.acting().items())


def test_priorities_follow_the_errors() -> None:
    learner = make_learner(
        2, prioritized=True, prioritized_alpha=1.0, n_step=2, learning_starts=0, replay_ratio=0.125
    )
    feed(learner, 1, 4)
    assert learner.priorities is not None
    values = learner.priorities.values.reshape(-1, 2)
    assert (values[:3] > 0).all()  # the fourth row has not made its second step
    assert (values[3:] == 0).all()
    assert len(np.unique(values[:3])) > 2
    feed(learner, 1, 4, 1)
    assert (learner.priorities.values.reshape(-1, 2)[:7] > 0).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_before_it_is_stored(poison: float) -> None:
    learner = make_learner(2)
    block = make_filled(4, 2, 0)
    block.reward[1, 1] = poison
    with pytest.raises(NotFiniteError, match=f"reward of environment 1 is {poison} at step 1 of update 0"):
        learner.update(block)
    assert learner.replay.total == 0


def explode(learner: DqnLearner, num_steps: int) -> Block:
    """A block whose squared errors are beyond float32."""
    block = make_filled(num_steps, 2, 0)
    block.reward[:] = 3e38
    return block


def test_gradient_steps_that_are_not_finite_are_skipped_and_counted() -> None:
    learner = make_learner(2, loss="mse", learning_starts=0, replay_ratio=1.0, prioritized=True)
    before = learner.kernel.acting()
    stats = learner.update(explode(learner, 4))
    assert stats is not None
    assert stats.gradient_steps == learner.gradient_steps == 0
    assert stats.metrics["train/skipped_steps"] == 8
    assert "train/loss" not in stats.metrics
    for name, array in learner.kernel.acting().items():
        np.testing.assert_array_equal(array, before[name])
    assert learner.priorities is not None
    assert np.isfinite(learner.priorities.values).all()
    other = make_learner(2, loss="mse", learning_starts=0, replay_ratio=1.0, prioritized=True)
    other.load_arrays(learner.arrays())
    other.load_extras(learner.extras())
    for each in (learner, other):  # the count goes on over updates and checkpoints
        with pytest.raises(
            NotFiniteError, match=r"gradient norm is .* in update 1, as in the 9 gradient steps"
        ):
            each.update(explode(each, 4))
        assert all(np.isfinite(array).all() for array in each.weights().arrays.values())


def test_a_few_gradient_steps_that_are_not_finite_do_not_end_a_run() -> None:
    """One poisoned transition among many: what is drawn without it is learned from."""
    learner = make_learner(2, loss="mse", learning_starts=0, replay_ratio=1.0, batch_size=2)
    block = make_filled(32, 2, 0)
    block.reward[3, 1] = 3e38
    stats = learner.update(block)
    assert stats is not None
    skipped = stats.metrics["train/skipped_steps"]
    assert 0 < skipped < 10
    assert learner.gradient_steps == 64 - skipped
    assert np.isfinite([stats.metrics[f"train/{name}"] for name in ("loss", "q_mean", "td_error")]).all()


def test_values_of_a_known_chain_are_learned_through_truncation() -> None:
    """1 a step for ever, truncated every step: worth 1 / (1 - 0.9) = 10; taken for an end it would be 1."""
    settings = {"learning_starts": 0, "replay_ratio": 2.0, "target_update_interval": 8}
    learner = make_learner(2, learning_rate=3e-3, **settings)
    for _ in range(80):
        block = make_filled(4, 2, 0)
        block.obs[0][:] = 1.0
        block.reward[:], block.terminated[:], block.truncated[:] = 1.0, False, True
        last = (np.ones(3, np.float32),)
        block.finals = [Final(t, row, last, None) for t in range(4) for row in range(2)]
        stats = learner.update(block)
    assert stats is not None
    assert stats.metrics["train/q_mean"] == pytest.approx(10.0, rel=0.1)


def known_chain(learner: DqnLearner, pay: float, num_blocks: int) -> float:
    """`pay` a step for ever, on two observations; returns the mean value that was learned."""
    for number in range(num_blocks):
        block = make_filled(4, 2, number)
        block.obs[0][:] = 1.0
        block.reward[:] = pay * np.random.default_rng(number).uniform(0.5, 1.5, block.reward.shape)
        block.terminated[:] = False
        stats = learner.update(block)
    assert stats is not None
    return stats.metrics["train/q_mean"]


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("power", [-24, 24])
def test_the_unit_of_rewards_changes_no_bit_of_the_weights(power: int, prioritized: bool) -> None:
    """Values that were not learned yet are not rescaled; a power of two scales without rounding."""
    settings = {"learning_starts": 0, "replay_ratio": 1.0, "prioritized": prioritized}
    learners = [make_learner(2, normalize_returns=True, **settings) for _ in range(2)]
    for learner, unit in zip(learners, (1.0, 2.0**power), strict=True):
        for number in range(8):
            block = make_filled(4, 2, number)
            block.reward *= unit
            learner.update(block)
    one, other = (learner.kernel.acting() for learner in learners)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_priorities_follow_the_unit_of_values() -> None:
    learner = make_learner(2, normalize_returns=True, prioritized=True, learning_starts=0, replay_ratio=1.0)
    feed(learner, 4, 4)
    assert learner.scale is not None
    assert learner.priorities is not None
    before, unit = learner.priorities.values.copy(), learner.scale.unit
    learner.learning_starts = 10**6
    block = make_filled(4, 2, 99)
    block.reward[:] = 1e3
    learner.update(block)
    factor = (unit / learner.scale.unit) ** learner.section.prioritized_alpha
    known = before[:30] > 0
    np.testing.assert_allclose(learner.priorities.values[:30][known], before[:30][known] * factor, rtol=1e-6)


@pytest.mark.parametrize("pay", [1e-3, 1.0, 1e4])
def test_values_are_learned_on_the_scale_of_returns(pay: float) -> None:
    """Worth 10 times the pay at gamma 0.9, in 640 gradient steps, whatever it pays."""
    settings = {"learning_starts": 0, "replay_ratio": 1.0, "target_update_interval": 8, "learning_rate": 3e-3}
    learner = make_learner(2, normalize_returns=True, **settings)
    assert known_chain(learner, pay, 80) == pytest.approx(10 * pay, rel=0.2)


def test_a_raw_learner_can_not() -> None:
    settings = {"learning_starts": 0, "replay_ratio": 1.0, "target_update_interval": 8, "learning_rate": 3e-3}
    assert known_chain(make_learner(2, **settings), 1e4, 80) < 1e4


def values_of(learner: DqnLearner, which: str) -> np.ndarray:
    """The action values of some observations in units of reward, by plain matrix products."""
    arrays = arrays_of(learner, which)
    x = np.random.default_rng(0).normal(size=(7, 3))
    for name in ("body.0", "q.0"):
        x = np.maximum(x @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"], 0)
    unit = 1.0 if learner.scale is None else learner.scale.unit
    values: np.ndarray = unit * (x @ arrays["q.2.weight"].T + arrays["q.2.bias"])
    return values


def test_values_stay_where_the_unit_moves() -> None:
    learner = make_learner(2, normalize_returns=True, learning_starts=0, replay_ratio=1.0)
    feed(learner, 6, 4)
    assert learner.scale is not None
    before, unit = [values_of(learner, which) for which in ("online", "target")], learner.scale.unit
    learner.learning_starts = 10**6  # nothing is learned from the next one
    moments = learner.kernel.optimizer()
    block = make_filled(4, 2, 99)
    block.reward[:] = 1e3
    learner.update(block)
    assert learner.scale.unit > 10 * unit
    for values, which in zip(before, ("online", "target"), strict=True):
        np.testing.assert_allclose(values_of(learner, which), values, rtol=1e-4)
    factor, after = unit / learner.scale.unit, learner.kernel.optimizer()
    for name, power in (
        ("mean.q.2.bias", 1),
        ("square.q.2.bias", 2),
        ("mean.q.0.bias", 2),
        ("square.q.0.bias", 4),
    ):
        np.testing.assert_allclose(after[name], moments[name] * factor**power, rtol=1e-4, err_msg=name)


def test_the_unit_is_the_deviation_of_discounted_sums_and_stays_while_that_is_near() -> None:
    learner = make_learner(1, normalize_returns=True, learning_starts=0)
    assert learner.scale is not None
    block = make_filled(5, 1, 0)
    block.reward[:, 0], block.terminated[:, 0] = [4.0, 0.0, 8.0, 2.0, 1.0], [False, False, True, False, False]
    block.valid[3] = False
    learner.update(block)  # gamma 0.9: 4, 3.6, 11.24, then a step that is not valid, 1
    assert learner.scale.unit == pytest.approx(np.std([4.0, 3.6, 11.24, 1.0]))
    assert learner.scale.sums.tolist() == [1.0]
    unit = learner.scale.unit
    more = make_filled(5, 1, 1)
    more.reward[:, 0], more.terminated[:] = [4.0, 1.0, 9.0, 2.0, 1.0], True
    learner.update(more)
    assert learner.scale.unit == unit != learner.scale.std


def test_a_scale_is_restored_from_a_checkpoint() -> None:
    learner = make_learner(2, normalize_returns=True)
    feed(learner, 6, 4)
    assert learner.scale is not None
    other = make_learner(2, normalize_returns=True)
    other.load_arrays(learner.arrays())
    other.load_extras({name: array.copy() for name, array in learner.extras().items()})
    assert feed(other, 2, 4, 6) == feed(learner, 2, 4, 6)
    for name, array in learner.arrays().items():
        np.testing.assert_array_equal(array, other.arrays()[name], err_msg=name)


@pytest.mark.parametrize(("parent", "child"), [(True, True), (True, False), (False, True)])
def test_a_branch_keeps_values_in_units_of_reward(parent: bool, child: bool) -> None:
    """With another number of environments, with and without a scale on either side."""
    one, other = make_learner(2, normalize_returns=parent), make_learner(3, normalize_returns=child)
    feed(one, 6, 4)
    other.load_from_parent(one.arrays())
    np.testing.assert_allclose(values_of(other, "online"), values_of(one, "online"), rtol=1e-4)
    assert (other.scale is not None) == child
    feed(other, 2, 4)
