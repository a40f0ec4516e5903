"""SAC: its equations, the parts that each step moves, units, exploration, stops, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.sac import ALGORITHM
from mission_gym.algorithms.sac.compiled_loss import Draw, draw_actions
from mission_gym.algorithms.sac.learner import SacLearner, make_kernel, make_settings
from mission_gym.algorithms.sac.loss import (
    actor_loss,
    compute_targets,
    critic_loss,
    sample_actions,
    temperature_loss,
)
from mission_gym.algorithms.sac.section import SacSection
from mission_gym.algorithms.sac.torch_kernel import TorchSacKernel
from mission_gym.data import Block, EnvSpec, Final, LeafSpec
from mission_gym.errors import ConfigError
from mission_gym.learner.off_policy_learner import Transitions
from mission_gym.learner.replay import ReplayLayout
from mission_gym.policy import PolicySpec
from mission_gym.policy.sampling import sample_squashed
from mission_gym.rollout.blocks import make_block
from mission_gym.run.config import resolve
from mission_gym.run.start import start_run
from runs import silent

LEAF = LeafSpec("", (3,), "float32", "vector")
BOX = ActionSpec("box", (2,), "float32", low=(-2.0, 0.0), high=(2.0, 1.0))
VALUES: dict[str, Any] = {"batch_size": 8, "replay_ratio": 0.5, "learning_starts": 16, "replay_size": 500}
TOTAL = 1000
KERNELS = ("torch", "compiled")


def make_learner(num_envs: int = 4, n_step: int = 1, **changes: Any) -> SacLearner:
    normalize_returns, kernel_name = changes.pop("normalize_returns", False), changes.pop("kernel", "torch")
    action = changes.pop("action", BOX)
    section = SacSection(**(VALUES | changes))
    spec = PolicySpec((LEAF,), action, (16, 16), "relu", form="squashed", outputs_per_real=2)
    kernel = make_kernel(spec, 1, make_settings(section, action.num_reals), kernel_name)
    layout = ReplayLayout((LEAF,), action, 0, num_envs, 500, n_step, 0.9)
    options = {"total_steps": TOTAL, "seed": 5, "normalize_returns": normalize_returns}
    return SacLearner(kernel, spec, section, layout, **options)


def make_filled(number: int, num_envs: int = 4, scale: float = 1.0, first: Any = None) -> Block:
    """A random block of 4 steps, which continues after the observations `first`."""
    block = make_block(EnvSpec("toy", (LEAF,), BOX, None, None), 4, num_envs)
    rng = np.random.default_rng(number)
    block.obs[0][:] = rng.normal(size=block.obs[0].shape)
    if first is not None:
        block.obs[0][0] = first
    block.action[:] = rng.uniform(-1.0, 1.0, block.action.shape)
    block.reward[:] = scale * rng.normal(size=block.reward.shape)
    block.terminated[:] = rng.random(block.reward.shape) < 0.1
    block.valid[:] = True
    block.filled[:] = 4
    return block


def feed(learner: SacLearner, num_blocks: int, scale: float = 1.0) -> None:
    last = None
    for number in range(num_blocks):
        block = make_filled(number, learner.replay.num_columns, scale, last)
        last = block.obs[0][-1]
        assert learner.update(block) is not None


def draw_compiled(outputs: torch.Tensor, noise: torch.Tensor) -> float:
    draw = Draw(*(np.empty(shape, np.float32) for shape in ((1,), (1, 1), (1, 1))))
    draw_actions(outputs.numpy(), noise.numpy(), np.empty((1, 1), np.float32), draw)
    return float(draw.log_prob[0])


@pytest.mark.parametrize("size", [0.1, 3.0, 15.0, -0.1, -15.0])
@pytest.mark.parametrize(
    "find", [lambda outputs, noise: sample_actions(outputs, noise).log_prob.item(), draw_compiled]
)
def test_log_probabilities_are_exact_for_large_actions(find: Any, size: float) -> None:
    mean = torch.full((1, 1), size)
    noise = torch.tensor([[0.3]])
    raw = torch.zeros(1, 1)
    found = find(torch.cat([mean, raw], dim=1), noise)
    log_std = -1.5  # the middle of its range
    u = size + math.exp(log_std) * noise.double().item()
    log_slope = math.log(4.0) - 2.0 * abs(u) - 2.0 * math.log1p(math.exp(-2.0 * abs(u)))  # 1 - tanh(u)^2
    log_normal = -0.5 * noise.double().item() ** 2 - log_std - 0.5 * math.log(2.0 * math.pi)
    assert found == pytest.approx(log_normal - log_slope, rel=1e-5, abs=1e-4)


def test_acting_and_the_loss_draw_from_the_same_policy() -> None:
    rng = np.random.default_rng(0)
    outputs, noise = 2.0 * rng.standard_normal((64, 4), np.float32), rng.standard_normal((64, 2), np.float32)
    expected = sample_actions(torch.from_numpy(outputs), torch.from_numpy(noise)).action
    np.testing.assert_allclose(sample_squashed(outputs, noise, 0.0).action, expected, atol=1e-5)


def test_densities_of_squashed_actions_sum_to_one() -> None:
    """The mean of 1 / density over draws is the size of the action space: 2 per number."""
    torch.manual_seed(0)
    noise = torch.randn(200_000, 1)
    drawn = sample_actions(torch.tensor([[0.4, 0.5]]).expand(len(noise), 2), noise)
    inside = drawn.action.abs().squeeze(1) < 0.95  # tails have heavy weights
    share = (torch.exp(-drawn.log_prob) * inside).mean().item()
    assert share == pytest.approx(1.9, rel=0.02)


@pytest.mark.parametrize("raw", [-9.0, 9.0])
def test_limits_of_the_deviation_have_a_gradient(raw: float) -> None:
    outputs = torch.tensor([[0.0, raw]], dtype=torch.float64, requires_grad=True)
    sample_actions(outputs, torch.ones(1, 1)).log_prob.sum().backward()  # type: ignore[no-untyped-call]
    assert outputs.grad is not None
    assert outputs.grad[0, 1].abs() > 0


def test_targets_use_the_smaller_critic_and_the_entropy_of_the_next_action() -> None:
    values = torch.tensor([[[1.0], [5.0]], [[2.0], [4.0]]])  # [C, B, 1]
    target = compute_targets(
        torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.0]), values, torch.tensor([-1.0, -1.0]),
        torch.tensor([0.2]), 0,
    )  # fmt: skip
    assert target.squeeze(1).tolist() == pytest.approx([0.5 + 0.9 * (1.0 + 0.2), 0.5])


def test_quantile_targets_leave_out_the_highest() -> None:
    values = torch.tensor([[[1.0, 9.0, 3.0]], [[2.0, 8.0, 7.0]]])
    zero, one = torch.zeros(1), torch.ones(1)
    target = compute_targets(zero, one, values, zero, torch.ones(1), 1)
    assert target.tolist() == [[1.0, 2.0, 3.0, 7.0]]  # two of six are left out


def test_quantile_critics_learn_the_quantiles_of_their_targets() -> None:
    torch.manual_seed(0)
    values = torch.zeros(2, 1, 5, requires_grad=True)
    optimizer = torch.optim.Adam([values], lr=0.02)
    for _ in range(3000):
        loss, _ = critic_loss(values, torch.rand(1, 256), None)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    expected = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    # The Huber loss draws quantiles of a narrow distribution towards its mean.
    assert (values[0, 0] - expected).abs().max() < 0.2
    assert values[0, 0].diff().min() > 0


def test_the_temperature_rises_while_the_entropy_is_too_low() -> None:
    for log_prob, rises in ((5.0, True), (-5.0, False)):
        log_alpha = torch.zeros(1, requires_grad=True)
        drawn = torch.full((4,), log_prob, requires_grad=True)
        temperature_loss(log_alpha, drawn, -2.0).sum().backward()  # type: ignore[no-untyped-call]
        assert log_alpha.grad is not None
        assert (log_alpha.grad < 0).item() is rises
        assert drawn.grad is None  # detached


def test_the_actor_maximises_the_smaller_value_and_the_entropy() -> None:
    values = torch.tensor([[[1.0]], [[3.0]]])
    assert actor_loss(values, torch.tensor([2.0]), torch.tensor([0.5])).item() == 0.5 * 2.0 - 1.0


@pytest.mark.parametrize("name", KERNELS)
def test_each_step_moves_its_own_part(name: str) -> None:
    """With a delay of 2 every second step leaves the actor; targets move by tau; critics always move."""
    learner = make_learner(learning_starts=0, replay_ratio=1.0 / 16, policy_delay=2, tau=0.5, kernel=name)
    kernel = learner.kernel
    parts = {"": "actor.0.weight", "critic": "critic.head.weight", "target": "target.head.weight"}
    moved = []
    for number in range(4):
        before = kernel.acting() | kernel.training()
        moments = kernel.optimizer()["mean.critic.head.weight"]
        assert learner.update(make_filled(number)) is not None
        after = kernel.acting() | kernel.training()
        moved.append([not np.array_equal(before[part], after[part]) for part in parts.values()])
        middle = 0.5 * (before["target.head.weight"] + after["critic.head.weight"])
        np.testing.assert_allclose(after["target.head.weight"], middle, rtol=1e-5, atol=1e-7)
        assert not np.array_equal(moments, kernel.optimizer()["mean.critic.head.weight"])
    assert moved == [[True, True, True], [False, True, True]] * 2


def test_the_actors_step_computes_no_gradient_of_the_critics() -> None:
    learner = make_learner()
    feed(learner, 3)
    kernel = learner.kernel
    assert isinstance(kernel, TorchSacKernel)
    critic = kernel.adams["critic"]
    grad, moments = critic.grad.clone(), [tensor.clone() for tensor in critic.state]
    ids = learner.replay.draw(np.random.default_rng(0), 8)
    sampled = learner.replay.gather(ids)
    inputs = torch.from_numpy(learner.encoder.encode(sampled.both).flat[:8]), ()
    minibatch = type("M", (), {"inputs": inputs})
    losses = kernel._policy_losses(minibatch, torch.zeros(8, 2))  # type: ignore[arg-type]
    kernel.adams[""].differentiate(losses.actor)
    assert torch.equal(critic.grad, grad)
    assert all(torch.equal(now, then) for now, then in zip(critic.state, moments, strict=True))
    assert all(parameter.grad is None for parameter in kernel.critics.parameters())


@pytest.mark.parametrize("num_quantiles", [1, 5])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_unit_of_rewards_does_not_change_the_actor(num_quantiles: int, kernel: str) -> None:
    """Scaled by a power of two, bit for bit."""
    changes = {"num_quantiles": num_quantiles, "kernel": kernel, "normalize_returns": True}
    learners = [make_learner(**changes) for _ in range(2)]
    for learner, scale in zip(learners, (1.0, 1024.0), strict=True):
        feed(learner, 6, scale)
    assert learners[1].unit == 1024.0 * learners[0].unit
    one, other = (learner.kernel.acting() for learner in learners)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_a_change_of_the_unit_keeps_what_was_learned() -> None:
    learner = make_learner()
    feed(learner, 4)
    kernel = learner.kernel
    assert isinstance(kernel, TorchSacKernel)
    inputs, action = (torch.randn(5, 3), ()), torch.zeros(5, 2)
    before = kernel.critics(inputs, action)
    alpha = kernel.temperature.log_alpha.exp().item()
    kernel.rescale_values(0.25)
    torch.testing.assert_close(kernel.critics(inputs, action), 0.25 * before)
    assert kernel.temperature.log_alpha.exp().item() == pytest.approx(0.25 * alpha)


@pytest.mark.parametrize("name", KERNELS)
def test_a_change_of_the_unit_keeps_the_size_of_the_next_step(name: str) -> None:
    """Moments of Adam follow the unit of values, in actor and critics."""
    learner, rng = make_learner(), np.random.default_rng(0)
    feed(learner, 3)
    rows = learner.replay.gather(learner.replay.draw(rng, 8))
    both = learner.encoder.encode(rows.both)
    noise, steps = rng.standard_normal((1, 2, 8, 2), np.float32), []
    for factor in (1.0, 0.125):
        kernel = make_kernel(learner.spec, 1, make_settings(learner.section, 2), name)
        for unit in (1.0, 1.0, factor):
            if unit != 1.0:
                kernel.rescale_values(unit)
            before = kernel.acting() | kernel.training()
            reward = rows.reward * np.float32(unit)
            ends = both.rows(slice(8)), both.rows(slice(8, None))
            batch = Transitions(ends[0], rows.action, reward, rows.discount, ends[1], None, None)
            kernel.learn(batch, noise, 1e-5, 0)
        after = kernel.acting() | kernel.training()
        steps.append({key: after[key] - array for key, array in before.items() if "target" not in key})
    for key, step in steps[0].items():  # Adam's epsilon matters to the smallest gradients
        assert np.abs(step - steps[1][key]).mean() < 0.05 * np.abs(step).mean(), key


def test_actions_are_uniform_until_learning_starts() -> None:
    learner = make_learner()
    seen = []
    for number in range(3):
        seen.append(learner.weights().exploration)
        learner.update(make_filled(number))
    assert seen == [1.0, 0.0, 0.0]  # 16 steps each


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prioritized": True},
        {"policy_delay": 2, "num_quantiles": 3, "critic_layer_norm": True, "kernel": "compiled"},
    ],
)
def test_a_stopped_update_continues_where_it_was(changes: dict[str, Any]) -> None:
    """Stopped after every gradient step, saved, loaded into another learner, called with the same block."""
    settings = {"replay_ratio": 0.5, "batch_size": 1024} | changes
    straight = make_learner(**settings)
    feed(straight, 4)
    learner, last = make_learner(**settings), None
    for number in range(4):
        block = make_filled(number, first=last)
        last = block.obs[0][-1]
        polls = stops = 0

        def stop() -> bool:
            nonlocal polls
            polls += 1
            return polls > 1

        while learner.update(block, stop) is None:
            polls, stops = 0, stops + 1
            assert stops < 8, "a stop loses finished steps: 8 are due"
            other = make_learner(**settings)
            other.load_arrays(learner.arrays())
            other.load_extras({name: array.copy() for name, array in learner.extras().items()})
            learner = other
    for name, array in (straight.arrays() | straight.extras()).items():
        np.testing.assert_array_equal(array, (learner.arrays() | learner.extras())[name], err_msg=name)


def test_three_optimizers_and_the_temperature_are_saved() -> None:
    arrays = make_learner().arrays()
    assert {"optimizer/step", "optimizer/step.critic", "optimizer/step.temperature"} <= arrays.keys()
    assert "training/temperature.log_alpha" in arrays
    assert "training/target.head.weight" in arrays
    assert not any(name.startswith(("policy/critic", "policy/target")) for name in arrays)


@pytest.mark.parametrize(
    ("env", "flags", "message"),
    [
        ("CartPole-v1", {}, "algo=sac needs a Box of real numbers as actions, and CartPole-v1 acts"),
        ("toys:Far", {}, "acts with Discrete"),
        ("Pendulum-v1", {"drop_quantiles": 3, "num_quantiles": 3}, "leaves none of num_quantiles=3"),
        ("Pendulum-v1", {"drop_quantiles": 3}, "the critics have no quantiles"),
        ("Pendulum-v1", {"learn_temperature": False, "target_entropy": -2}, "the temperature is not learned"),
        ("Pendulum-v1", {"log_std_init": -1.0}, "the standard deviation depends on the observation"),
    ],
)  # fmt: skip
def test_refusals(env: str, flags: dict[str, Any], message: str, tmp_path: Any) -> None:
    values = {"algo": "sac", "timesteps": 64, "runs_dir": str(tmp_path), **flags}
    with pytest.raises(ConfigError, match=message), start_run(resolve(env, values), silent):
        pass


WIDE = ActionSpec("box", (1,), "float32", low=(-math.inf,), high=(1.0,))
INTEGER = ActionSpec("box", (1,), "int32", low=(-2.0,), high=(2.0,))
SWITCH = ActionSpec("binary", (2,), "int8", name="switch")


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (WIDE, "needs finite action bounds"),
        (INTEGER, "of integers"),
        (ActionSpec.of_parts((SWITCH, BOX)), "needs a Box of real numbers"),
    ],
)
def test_actions_that_are_no_bounded_real_numbers_are_refused(action: ActionSpec, words: str) -> None:
    resolved = resolve("Env-v0", {"algo": "sac"})
    (problem,) = ALGORITHM.refuse(resolved, EnvSpec("toy", (LEAF,), action, None, None))
    assert words in problem


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("end", ["truncated", "terminated"])
def test_a_time_limit_is_no_end(kernel: str, end: str) -> None:
    """1 a step for ever, worth 1 / (1 - 0.9) = 10 if it is truncated at every step, and 1 if it ends there.
    The observation after the reset is another one, of no value."""
    settings = {
        "learning_starts": 0,
        "replay_ratio": 4.0,
        "batch_size": 32,
        "learning_rate": 3e-3,
        "tau": 0.1,
    }
    learner = make_learner(
        2, kernel=kernel, learn_temperature=False, temperature_init=1e-9, **settings
    )  # fmt: skip
    last = (np.full(3, 0.5, np.float32),)
    for number in range(60):
        block = make_filled(number, 2)
        block.obs[0][:] = 0.5
        block.obs[0][1::2] = -0.5  # terminated rows, where nothing is paid
        block.reward[:], block.terminated[:], block.truncated[:] = 1.0, False, False
        block.reward[1::2], block.terminated[1::2] = 0.0, True
        getattr(block, end)[::2] = True
        if end == "truncated":
            block.finals = [Final(t, row, last, None) for t in (0, 2) for row in range(2)]
        stats = learner.update(block)
    assert stats is not None
    expected = {"truncated": 10.0, "terminated": 1.0}[end]
    assert 2.0 * stats.metrics["train/q_mean"] == pytest.approx(expected, rel=0.15)


def test_each_gradient_step_has_its_own_transitions_and_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(replay_ratio=4.0, batch_size=8)
    feed(learner, 1)
    seen: list[tuple[Any, Any]] = []
    learn = learner.kernel.learn

    def watch(batch: Any, noise: Any, *more: Any) -> Any:
        seen.append((batch.action.reshape(-1, 8 * 2), noise.reshape(len(noise) * 2, -1)))
        return learn(batch, noise, *more)

    monkeypatch.setattr(learner.kernel, "learn", watch)
    learner.update(make_filled(1, first=None))
    learner.update(make_filled(2, first=None))
    actions, noises = (np.concatenate(part) for part in zip(*seen, strict=True))
    assert len(actions) == 128
    assert len(np.unique(actions, axis=0)) == 128
    assert len(np.unique(noises, axis=0)) == 256  # also the two of a step


def test_observations_stay_raw_and_statistics_are_frozen_in_an_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = make_learner()
    normalizer, learn = learner.encoder.normalizer, learner.kernel.learn
    assert normalizer is not None
    counts = []

    def watch(*given: Any) -> Any:
        counts.append(normalizer.count)
        return learn(*given)

    monkeypatch.setattr(learner.kernel, "learn", watch)
    block = make_filled(1)
    block.obs[0][:] *= 100.0
    for _ in range(3):
        learner.update(block)
    assert counts == [16.0, 32.0]  # a block has 16 transitions, and each counts once
    np.testing.assert_array_equal(learner.replay.obs[0][:4], block.obs[0][:4])


@pytest.mark.parametrize("kernel", KERNELS)
def test_bounds_do_not_change_what_is_learned(kernel: str) -> None:
    """Actions, densities and the entropy are those in -1..1."""
    other = ActionSpec("box", (2,), "float32", low=(-300.0, -1.0), high=(300.0, -0.5))
    one, two = (make_learner(kernel=kernel, action=action) for action in (BOX, other))
    for learner in (one, two):
        feed(learner, 4)
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, two.arrays()[name], err_msg=name)
