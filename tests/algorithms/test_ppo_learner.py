"""PPO on blocks made by hand: the first-minibatch invariant, restoring, refusing what is not finite."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.ppo import learner as ppo
from mission_gym.algorithms.ppo import torch_kernel
from mission_gym.algorithms.ppo.compiled_kernel import CompiledKernel
from mission_gym.algorithms.ppo.kernel import COLUMNS, Kernel
from mission_gym.algorithms.ppo.learner import MOST_SKIPPED, PpoLearner
from mission_gym.algorithms.ppo.loss import Losses, Minibatch, compute_losses
from mission_gym.algorithms.ppo.section import SettledPpo, StepSettings
from mission_gym.algorithms.ppo.torch_kernel import TorchKernel
from mission_gym.data import Block, EnvSpec, Final, LeafSpec, UpdateStats
from mission_gym.errors import NotFiniteError
from mission_gym.learner.contract import Schedule
from mission_gym.policy import NumpyPolicy, PolicySpec
from mission_gym.policy.sampling import draw_noise
from mission_gym.policy.torch_forms import TorchPolicy
from mission_gym.rollout.blocks import make_block
from mission_gym.streams import generator

ACTIONS = {
    "discrete": ActionSpec("categories", (), "int64", nvec=(4,), start=(0,)),
    "multi_discrete": ActionSpec("categories", (3,), "int64", nvec=(3, 2, 4), start=(0, 0, 0)),
    "multi_binary": ActionSpec("binary", (3,), "int8"),
    "box": ActionSpec("box", (2,), "float32", low=(-2.0, -1.0), high=(2.0, 1.0)),
}
VECTOR = LeafSpec("", (3,), "float32", "vector")
IMAGE = LeafSpec("eye", (12, 12), "uint8", "image")
T, S = 16, 8


def make_learner(spec: PolicySpec, kernel: Kernel | None = None, **changes: object) -> PpoLearner:
    values = {
        "batch_size": 32, "n_epochs": 2, "gamma": 0.99, "gae_lambda": 0.95, "learning_rate": 3e-4,
        "clip_range": 0.2, "ent_coef": 0.01, "ent_coef_final": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5,
    }  # fmt: skip
    normalize_returns = changes.pop("normalize_returns", True)
    return PpoLearner(
        kernel or TorchKernel(spec, seed=1),
        spec,
        SettledPpo(**(values | changes)),
        total_steps=1000,
        seed=5,
        normalize_returns=normalize_returns,
    )


def make_filled_block(spec: PolicySpec, learner: PpoLearner, masked: bool = False) -> Block:
    """A block acted by the policy itself on random observations."""
    env = EnvSpec("toy", spec.leaves, spec.action, None, None, mask_source="info" if masked else "")
    block = make_block(env, T, S)
    rng = np.random.default_rng(0)
    for leaf in block.obs:
        leaf[:] = (
            rng.integers(0, 256, leaf.shape) if leaf.dtype == np.uint8 else rng.normal(2.0, 3.0, leaf.shape)
        )
    learner.prime(tuple(leaf.reshape((-1, *leaf.shape[2:])) for leaf in block.obs))
    if block.mask is not None:
        block.mask[:] = rng.random(block.mask.shape) < 0.5
        block.mask[..., np.cumsum((0, *spec.action.nvec[:-1]))] = True
    policy = NumpyPolicy(spec) if spec.has_numpy_form else TorchPolicy(spec)
    policy.load(learner.weights())
    noise = draw_noise(spec.action, generator("block"), T, S)
    for t in range(T):
        mask = None if block.mask is None else block.mask[t]
        out = policy.act(tuple(leaf[t] for leaf in block.obs), mask, noise[t])
        block.action[t], block.log_prob[t] = out.action, out.log_prob
    block.reward[:] = rng.normal(size=(T, S))
    block.terminated[:] = rng.random((T, S)) < 0.05
    block.truncated[:] = rng.random((T, S)) < 0.05
    block.valid[:] = True
    for t, s in np.argwhere(block.truncated & ~block.terminated).tolist():
        block.finals.append(Final(t, s, tuple(leaf[t, s] for leaf in block.obs), None))
    block.filled[:] = T
    return block


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("leaves", [(VECTOR,), (VECTOR, IMAGE)], ids=["mlp", "image"])
def test_first_minibatch_has_ratio_one(name: str, masked: bool, leaves: tuple[LeafSpec, ...]) -> None:
    if masked and ACTIONS[name].kind != "categories":
        pytest.skip("masks exist for categories only")
    spec = PolicySpec(leaves, ACTIONS[name], (16,))
    learner = make_learner(spec)
    block = make_filled_block(spec, learner, masked)
    log_prob, _ = learner.kernel.evaluate(
        learner.encoder.encode(tuple(leaf[:-1].reshape((-1, *leaf.shape[2:])) for leaf in block.obs)),
        block.action.reshape(T * S, -1),
        None if block.mask is None else block.mask[:-1].reshape(T * S, -1),
    )
    np.testing.assert_allclose(log_prob.reshape(T, S), block.log_prob, atol=1e-5)
    stats = learner.update(block)
    assert stats is not None
    assert stats.gradient_steps == 2 * T * S // 32
    assert stats.metrics["train/first_ratio_error"] < 1e-5
    assert abs(stats.metrics["train/first_kl"]) < 1e-6


def collected_by(version: int, learner: PpoLearner, spec: PolicySpec) -> Block:
    block = make_filled_block(spec, learner)
    block.version[:] = version
    return block


def test_without_a_lag_no_importance_touches_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lag 0 with the correction in place, and with it cut out: the same bits."""
    spec = PolicySpec((VECTOR,), ACTIONS["discrete"], (16,))
    hashes = []
    for machinery in (True, False):
        if not machinery:
            monkeypatch.setattr(ppo, "compute_importance", lambda *_: None)
        learner = make_learner(spec)
        learner.update(collected_by(0, learner, spec))
        block = collected_by(1, learner, spec)
        block.log_prob -= 0.3  # what the behaviour policy said does not matter where it is the learner's
        stats = learner.update(block)
        assert stats is not None
        assert stats.metrics["train/lag"] == stats.metrics["train/lag_gradient_steps"] == 0.0
        assert stats.metrics["train/importance_mean"] == 1.0
        hashes.append({name: array.tobytes() for name, array in learner.arrays().items()})
    assert hashes[0] == hashes[1]


def test_a_lagging_block_is_weighed_against_the_policy_that_collected_it() -> None:
    spec = PolicySpec((VECTOR,), ACTIONS["discrete"], (16,))
    learner = make_learner(spec)
    first = learner.update(collected_by(0, learner, spec))
    assert first is not None
    block = collected_by(0, learner, spec)
    block.version[S // 2 :] = 1  # a mixed block
    block.log_prob += np.log(2.0)  # mu twice as sure of every action: the ratio is 1/2
    block.valid[3, 0] = False
    samples = learner._prepare(block).samples
    assert samples.importance is not None
    importance = samples.importance.reshape(T, S)
    np.testing.assert_allclose(importance[:, : S // 2], 0.5, rtol=1e-5)
    assert (importance[:, S // 2 :] == 1.0).all()
    stats = learner.update(block)
    assert stats is not None
    assert stats.metrics["train/lag"] == 1.0
    assert stats.metrics["train/lag_gradient_steps"] == first.gradient_steps == 8
    expected = (importance.sum() - 0.5) / (T * S - 1)
    assert stats.metrics["train/importance_mean"] == pytest.approx(expected, rel=1e-5)
    assert stats.metrics["train/first_ratio_error"] < 1e-5  # the clip is around the learner's own policy


def test_counters_of_an_older_checkpoint_are_read() -> None:
    learner = make_learner(PolicySpec((VECTOR,), ACTIONS["discrete"], (16,)))
    learner.load_arrays(learner.arrays() | {"counters": np.array([4, 512, 32])})
    assert (learner.version, learner.step, learner.gradient_steps, learner.recent) == (4, 512, 32, [])


def test_a_stop_request_leaves_everything_as_before() -> None:
    spec = PolicySpec((VECTOR,), ACTIONS["box"], (16,))
    learner = make_learner(spec)
    block = make_filled_block(spec, learner)
    learner.update(block)
    before = learner.arrays()
    calls = iter(range(100))
    assert learner.update(block, lambda: next(calls) >= 5) is None
    after = learner.arrays()
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    # The update that is repeated is the update that would have been.
    twin = make_learner(spec)
    twin.load_arrays(before)
    learner.update(block)
    twin.update(block)
    for name, array in learner.arrays().items():
        np.testing.assert_array_equal(array, twin.arrays()[name], err_msg=name)


def test_invalid_transitions_have_no_weight() -> None:
    spec = PolicySpec((VECTOR,), ACTIONS["discrete"], (16,), normalize_obs=False)
    outcomes = []
    for poison in (0.0, 50.0):
        learner = make_learner(spec, batch_size=T * S, normalize_returns=False)
        block = make_filled_block(spec, learner)
        block.valid[3, :] = False
        block.truncated[2, :], block.terminated[2, :] = False, True  # the lost transition follows an end
        block.finals = [final for final in block.finals if final.t != 2]
        block.reward[3, :] = poison
        learner.update(block)
        outcomes.append(learner.kernel.parameters())
    for name, array in outcomes[0].items():
        np.testing.assert_allclose(array, outcomes[1][name], atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_actors_step_does_not_depend_on_the_critics_gradient(compiled: bool) -> None:
    """Networks that share nothing are clipped by their own norms."""
    spec, found = PolicySpec((VECTOR,), ACTIONS["box"], (16,)), []
    for vf_coef in (0.5, 500.0):
        torch_form = TorchKernel(spec, seed=1)
        kernel = CompiledKernel(spec, torch_form.parameters(), threads=2) if compiled else torch_form
        learner = make_learner(spec, kernel, vf_coef=vf_coef, ent_coef=0.0)
        stats = learner.update(make_filled_block(spec, learner))
        assert stats is not None
        found.append((learner.weights().arrays, stats.metrics["train/grad_norm"]))
    (one, norm), (other, larger) = found
    assert larger > 100 * norm
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


class TestScaleOfValues:
    """`normalize_returns`: raw rewards, and a critic on the scale of its targets."""

    spec = PolicySpec((VECTOR,), ACTIONS["box"], (16,))

    def learn(self, learner: PpoLearner, blocks: list[Block]) -> dict[str, float]:
        for number, block in enumerate(blocks):
            block.version[:] = number
            stats = learner.update(block)
            assert stats is not None
        return stats.metrics

    @pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
    def test_the_unit_of_the_reward_changes_no_bit_of_what_is_learned(self, factor: float) -> None:
        """Powers of two, which scale without rounding."""
        learners = [make_learner(self.spec) for _ in range(2)]
        metrics = []
        for learner, unit in zip(learners, (1.0, factor), strict=True):
            blocks = [make_filled_block(self.spec, learner) for _ in range(3)]
            for block in blocks:
                block.reward *= unit
            metrics.append(self.learn(learner, blocks))
        one, other = (learner.kernel.parameters() for learner in learners)
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name], err_msg=name)
        for name in ("train/value_mean", "train/value_scale", "train/value_offset"):
            assert metrics[1][name] == factor * metrics[0][name] != 0.0
        for name in ("train/value_loss", "train/explained_variance", "train/approx_kl"):
            assert metrics[0][name] == metrics[1][name]

    def test_old_values_are_the_critics(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In the first minibatch of every update, also of the first one, whose values have no scale yet."""
        seen: list[float] = []

        def measure(batch: Minibatch, settings: StepSettings) -> Losses:
            seen.append(float((batch.value.detach() - batch.old_value).abs().max()))
            return compute_losses(batch, settings)

        monkeypatch.setattr(torch_kernel, "compute_losses", measure)
        learner, first = make_learner(self.spec), []
        for number in range(4):
            block = make_filled_block(self.spec, learner)
            block.reward += 5.0 * number
            seen.clear()
            block.version[:] = number
            learner.update(block)
            first.append(seen[0])
        assert max(first) < 1e-5

    def test_without_a_reward_values_are_zero_and_the_first_one_does_not_explode(self) -> None:
        learner = make_learner(self.spec)
        blocks = [make_filled_block(self.spec, learner) for _ in range(30)]
        for block in blocks:
            block.reward[:] = 0.0
        silent = self.learn(learner, blocks[:-1])
        assert (
            silent["train/value_mean"] == silent["train/value_scale"] == silent["train/value_offset"] == 0.0
        )
        blocks[-1].reward[7, 3] = 1000.0
        samples = learner._prepare(blocks[-1]).samples
        # The targets are part of the deviation that they are divided by: a tenth of it at least.
        assert float(np.square(samples.returns).mean()) < 10.0
        assert learner.value_scale is not None
        assert learner.value_scale.std > 1.0

    def test_300_and_1000_stay_apart(self) -> None:
        learner = make_learner(self.spec)
        block = make_filled_block(self.spec, learner)
        block.reward[:] = 0.0
        block.terminated[:] = block.truncated[:] = False
        block.finals = []
        block.terminated[8, :2] = True
        block.reward[8, 0], block.reward[8, 1] = 300.0, 1000.0
        samples = learner._prepare(block).samples
        prizes = samples.advantage.reshape(T, S)[8, :2]
        assert prizes[1] == pytest.approx(prizes[0] * 10 / 3, rel=1e-5)

    @pytest.mark.parametrize("kind", ["torch", "compiled"])
    def test_values_move_with_the_mean_of_their_targets_and_keep_their_differences(self, kind: str) -> None:
        kernel = (
            None if kind == "torch" else CompiledKernel(self.spec, TorchKernel(self.spec, 1).parameters())
        )
        learner = make_learner(self.spec, kernel=kernel)
        blocks = [make_filled_block(self.spec, learner) for _ in range(2)]
        blocks[1].reward[:] = 50.0 * blocks[1].reward + 20.0
        self.learn(learner, blocks[:1])
        scale = learner.value_scale
        assert scale is not None
        level = scale.mean
        before = learner._prepare(blocks[1]).values
        inputs = learner.encoder.encode(
            tuple(leaf[:-1].reshape((-1, *leaf.shape[2:])) for leaf in blocks[1].obs)
        )
        _, after = learner.kernel.evaluate(inputs, blocks[1].action.reshape(T * S, -1), None)
        assert scale.mean > level + 5.0
        moved = before + scale.mean - level
        np.testing.assert_allclose(scale.denormalize(after), moved, atol=1e-5 * scale.std)

    def test_a_branch_keeps_its_parents_values_with_a_scale_or_without(self) -> None:
        parent = make_learner(self.spec)
        blocks = [make_filled_block(self.spec, parent) for _ in range(3)]
        for block in blocks:
            block.reward[:] = 20.0 * block.reward + 5.0
        self.learn(parent, blocks)
        block, arrays, says = blocks[0], parent.arrays(), {}
        values = parent._prepare(block).values
        for name, given, on in (("same", arrays, True), ("off", arrays, False)):
            child = make_learner(self.spec, normalize_returns=on)
            child.load_from_parent(given)
            child_arrays = child.arrays()
            says[name] = child._prepare(block).values
            if name == "off":
                again = make_learner(self.spec)
                again.load_from_parent(child_arrays)
                says["on again"] = again._prepare(block).values
        for name in ("same", "off", "on again"):
            np.testing.assert_allclose(says[name], values, rtol=1e-4, atol=1e-3, err_msg=name)


@pytest.mark.parametrize(
    ("field", "match"),
    [
        ("reward", "reward of environment 2 is nan at step 4 of update 0"),
        ("obs", "observation leaf 0 of environment 2 is nan at step 4"),
    ],
)
def test_nan_in_a_block_is_named_before_learning(field: str, match: str) -> None:
    spec = PolicySpec((VECTOR,), ACTIONS["discrete"], (16,))
    learner = make_learner(spec)
    block = make_filled_block(spec, learner)
    before = learner.arrays()
    (block.reward if field == "reward" else block.obs[0])[4, 2] = np.nan
    with pytest.raises(NotFiniteError, match=match):
        learner.update(block)
    np.testing.assert_array_equal(before["policy/actor.0.weight"], learner.arrays()["policy/actor.0.weight"])


class TestSkippedUpdates:
    """A gradient that is not finite: the block is skipped, and several in a row end the run."""

    spec = PolicySpec((VECTOR,), ACTIONS["discrete"], (16,), normalize_obs=False)

    def make(self) -> tuple[PpoLearner, Block, Block]:
        """A learner, a block that explodes and one that does not."""
        learner = make_learner(self.spec, normalize_returns=False, normalize_advantage=False)
        bad, good = (make_filled_block(self.spec, learner) for _ in range(2))
        bad.reward[:] = 3e38
        return learner, bad, good

    def update(self, learner: PpoLearner, block: Block) -> UpdateStats:
        block.version[:] = learner.version
        with np.errstate(over="ignore"):
            stats = learner.update(block)
        assert stats is not None
        return stats

    def test_the_state_is_put_back_and_the_block_counted(self) -> None:
        learner, bad, good = self.make()
        self.update(learner, good)
        before = learner.arrays()
        stats = self.update(learner, bad)
        assert stats.gradient_steps == 0
        assert stats.metrics["train/skipped_updates"] == 1.0
        after = learner.arrays()
        for name in before.keys() - {"counters", "skipped"}:
            np.testing.assert_array_equal(before[name], after[name], err_msg=name)
        assert after["counters"].tolist() == [2, 2 * T * S, 8, 0, 8]
        behind = learner.previous_weights()
        assert behind is not None
        assert behind.version == 1
        learner.undo()  # with overlap, where the block behind it is not whole
        for name, array in learner.arrays().items():
            np.testing.assert_array_equal(before[name], array, err_msg=name)

    def test_several_in_a_row_end_the_run(self) -> None:
        learner, bad, good = self.make()
        for _ in range(2):
            for _ in range(MOST_SKIPPED - 1):
                self.update(learner, bad)
            stats = self.update(learner, good)  # begins a new row
        assert stats.metrics["train/skipped_updates"] == 2 * (MOST_SKIPPED - 1)
        for _ in range(MOST_SKIPPED - 1):
            self.update(learner, bad)
        before = learner.arrays()
        match = rf"gradient norm is .* in update 14 \(not finite: .*\), after {MOST_SKIPPED - 1} updates"
        with pytest.raises(NotFiniteError, match=match):
            self.update(learner, bad)
        for name, array in before.items():
            np.testing.assert_array_equal(array, learner.arrays()[name])

    def test_a_resume_goes_on_counting(self) -> None:
        learner, bad, good = self.make()
        twin, *_ = self.make()
        for _ in range(3):
            self.update(learner, bad)
        twin.load_arrays(learner.arrays())
        for each in (learner, twin):
            self.update(each, bad)
            self.update(each, good)
        for name, array in learner.arrays().items():
            np.testing.assert_array_equal(array, twin.arrays()[name], err_msg=name)
        assert (twin.skipped, twin.skipped_in_row) == (4, 0)


@pytest.mark.parametrize("kind", ["torch", "compiled"])
def test_a_ratio_beyond_what_exp_can_give_is_learned_from(kind: str) -> None:
    """Actions 60 deviations from the mean: a gradient step towards them makes log-ratios of hundreds."""
    spec = PolicySpec((VECTOR,), ACTIONS["box"], (16,), log_std_init=-3.0)
    kernel = None if kind == "torch" else CompiledKernel(spec, TorchKernel(spec, 1).parameters())
    learner = make_learner(spec, kernel, learning_rate=0.1, n_epochs=3)
    block = make_filled_block(spec, learner)
    block.action += 3.0
    stats = learner.update(block)
    assert stats is not None
    assert stats.metrics["train/skipped_updates"] == 0.0
    assert stats.metrics["train/approx_kl"] > 1e3
    assert all(np.isfinite(array).all() for array in learner.kernel.parameters().values())


def test_a_limited_ratio_still_has_a_gradient() -> None:
    """A bad action that became e^100 times as likely comes down; a good one is clipped as ever."""
    log_prob = torch.tensor([100.0, 100.0, 1.0], requires_grad=True)
    zeros = torch.zeros(3)
    batch = Minibatch(
        log_prob=log_prob, entropy=zeros, value=zeros, old_log_prob=zeros, old_value=zeros, returns=zeros,
        advantage=torch.tensor([-1.0, 1.0, -1.0]), weight=torch.full((3,), 1 / 3),
    )  # fmt: skip
    losses = compute_losses(batch, StepSettings(1e-3, 0.2, 0.0, 0.5, 0.5, True))
    losses.total.backward()
    assert log_prob.grad is not None
    expected = np.array([np.exp(20.0), 0.0, np.exp(1.0)]) / 3
    np.testing.assert_allclose(log_prob.grad.numpy(), expected, rtol=1e-5)
    assert losses.ratio_error.item() == pytest.approx(np.exp(20.0) - 1, rel=1e-5)


def restless_network(spec: PolicySpec) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 8))


def batch_network(spec: PolicySpec) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))


@pytest.mark.parametrize("network", ["restless_network", "batch_network"])
def test_the_first_ratio_is_one_with_layers_that_learn_otherwise_than_they_act(network: str) -> None:
    spec = PolicySpec((VECTOR,), ACTIONS["box"], (), network=f"{__name__}:{network}")
    learner = make_learner(spec)
    for number in range(2):
        block = make_filled_block(spec, learner)
        block.version[:] = number
        stats = learner.update(block)
        assert stats is not None
        assert stats.metrics["train/first_ratio_error"] < 1e-5


def test_target_kl_ends_the_update_after_an_epoch_and_reports_the_steps_made() -> None:
    spec = PolicySpec((VECTOR,), ACTIONS["discrete"], (16,))
    learner = make_learner(spec, n_epochs=50, target_kl=1e-4, learning_rate=1e-2)
    stats = learner.update(make_filled_block(spec, learner))
    assert stats is not None
    assert stats.gradient_steps < 50 * T * S // 32
    assert stats.gradient_steps == stats.metrics["train/epochs_made"] * T * S // 32


def test_schedules_follow_the_absolute_step() -> None:
    schedule = Schedule(1.0, 0.5, 1000)
    assert [schedule.at(step) for step in (0, 500, 1000, 2000)] == [1.0, 0.75, 0.5, 0.5]


class LossesWithTerm(NamedTuple):
    """The fields of `loss.Losses` and one more, as an edit of that file would have them."""

    total: torch.Tensor
    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    approx_kl: torch.Tensor
    clip_fraction: torch.Tensor
    ratio_error: torch.Tensor
    size: torch.Tensor


def test_a_term_added_to_the_loss_shows_in_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute_with_term(batch: Minibatch, settings: StepSettings) -> LossesWithTerm:
        losses, size = compute_losses(batch, settings), batch.value.square().mean()
        return LossesWithTerm(losses.total + 3.0 * size, *losses[1:], size)

    spec = PolicySpec((VECTOR,), ACTIONS["discrete"], (16,))
    plain = make_learner(spec).update(make_filled_block(spec, make_learner(spec)))
    monkeypatch.setattr(torch_kernel, "compute_losses", compute_with_term)
    monkeypatch.setattr(TorchKernel, "columns", (*COLUMNS, "size"))
    learner = make_learner(spec)
    stats = learner.update(make_filled_block(spec, learner))
    assert plain is not None
    assert stats is not None
    metrics = stats.metrics
    assert set(metrics) - set(plain.metrics) == {"train/loss_size"}
    parts = metrics["train/policy_gradient_loss"] + 0.5 * metrics["train/value_loss"]
    parts += 0.01 * metrics["train/entropy_loss"] + 3.0 * metrics["train/loss_size"]
    assert metrics["train/loss"] == pytest.approx(parts, rel=1e-4)


def test_critics_are_neither_sent_nor_stored_with_the_policy() -> None:
    spec = PolicySpec((VECTOR, IMAGE), ACTIONS["discrete"], (16,))
    learner = make_learner(spec)
    acting = set(learner.weights().arrays)
    assert {"actor.0.weight", "trunk.convs.0.1.weight", "normalizer.mean"} <= acting
    assert not [name for name in acting if name.startswith("critic.")]
    stored = learner.arrays()
    assert {name.partition("/")[0] for name in stored if "critic." in name} == {"training", "optimizer"}
    other = make_learner(spec, TorchKernel(spec, seed=2))
    other.load_arrays(stored)
    for name, array in stored.items():
        np.testing.assert_array_equal(other.arrays()[name], array, err_msg=name)
