"""PPO with memory on blocks made by hand: chunks, resets, bootstraps and the first-minibatch invariant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.ppo.build import verify_device
from mission_gym.algorithms.ppo.kernel import Samples
from mission_gym.algorithms.ppo.learner import PpoLearner
from mission_gym.algorithms.ppo.section import SettledPpo, StepSettings
from mission_gym.algorithms.ppo.torch_kernel import TorchKernel
from mission_gym.data import Array, Block, EnvSpec, Final, LeafSpec, Leaves, ends_episode
from mission_gym.learner.blocks import SequenceMemory, draw_chunks, read_memory
from mission_gym.policy import Encoded, NumpyPolicy, PolicySpec
from mission_gym.policy.cells import CELLS
from mission_gym.policy.sampling import draw_noise
from mission_gym.policy.torch_cells import TorchMemory
from mission_gym.policy.torch_forms import TorchPolicy
from mission_gym.rollout.blocks import make_block
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.settle import settle
from mission_gym.streams import generator
from mission_gym_bench.fake_gpu import pretend

ACTIONS = {
    "discrete": ActionSpec("categories", (), "int64", nvec=(4,), start=(0,)),
    "multi_discrete": ActionSpec("categories", (3,), "int64", nvec=(3, 2, 4), start=(0, 0, 0)),
    "box": ActionSpec("box", (2,), "float32", low=(-2.0, -1.0), high=(2.0, 1.0)),
}
VECTOR = LeafSpec("", (3,), "float32", "vector")
IMAGE = LeafSpec("eye", (12, 12), "uint8", "image")
HIDDEN = LeafSpec("hidden", (2,), "float32", "vector")
T, S, CHUNK = 16, 8, 4
SETTINGS = StepSettings(3e-4, 0.2, 0.01, 0.5, 0.5, True)


def make_spec(
    kind: str = "gru", leaves: tuple[LeafSpec, ...] = (VECTOR,), name: str = "discrete"
) -> PolicySpec:
    return PolicySpec(leaves, ACTIONS[name], (16,), recurrent=kind, recurrent_size=12)


def make_learner(spec: PolicySpec, **changes: Any) -> PpoLearner:
    values = {"batch_size": 32, "bptt_steps": CHUNK, "n_epochs": 2, "ent_coef": 0.01, "learning_rate": 1e-3}
    options = {
        name: changes.pop(name, default) for name, default in (("normalize_returns", True), ("seed", 1))
    }
    kernel = TorchKernel(spec, seed=options["seed"], batch_size=32)
    learner = PpoLearner(
        kernel,
        spec,
        SettledPpo(**(values | changes)),
        total_steps=10_000,
        seed=5,
        normalize_returns=options["normalize_returns"],
    )
    rng = np.random.default_rng(8)
    learner.prime(tuple(draw_leaf(leaf, (64, *leaf.shape), rng) for leaf in spec.leaves))
    return learner


def draw_leaf(leaf: LeafSpec, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    drawn: Array = rng.integers(0, 256, shape) if leaf.dtype == "uint8" else rng.normal(2.0, 3.0, shape)
    return drawn.astype(leaf.dtype)


def collect(
    spec: PolicySpec,
    learner: PpoLearner,
    state: Leaves = (),
    number: int = 0,
    *,
    masked: bool = False,
    end: float = 0.05,
    truncate_at: int | None = None,
) -> tuple[Block, Leaves]:
    """A block that the acting form filled, with ends and invalid steps, and the memory after it."""
    env = EnvSpec("toy", spec.leaves, spec.action, None, None, mask_source="info" if masked else "")
    state = state or spec.initial_state(S)
    block, rng = make_block(env, T, S, state=state), np.random.default_rng(number)
    for leaf, stored in zip(spec.leaves, block.obs, strict=True):
        stored[:] = draw_leaf(leaf, stored.shape, rng)
    if block.mask is not None:
        block.mask[:] = rng.random(block.mask.shape) < 0.5
        block.mask[..., np.cumsum((0, *spec.action.nvec[:-1]))] = True
    block.reward[:] = rng.normal(size=(T, S))
    block.terminated[:], block.truncated[:] = rng.random((2, T, S)) < end
    block.valid[:] = rng.random((T, S)) >= end
    if truncate_at is not None:
        block.truncated[truncate_at] = True
    policy = NumpyPolicy(spec) if spec.has_numpy_form else TorchPolicy(spec)
    policy.load(learner.weights())
    noise = draw_noise(spec.action, generator("block", number), T, S)
    for own, first in zip(block.state, state, strict=True):
        own[:] = first
    for t in range(T):
        mask = None if block.mask is None else block.mask[t]
        out = policy.act(tuple(leaf[t] for leaf in block.obs), mask, noise[t], state)
        block.action[t], block.log_prob[t] = out.action, out.log_prob
        for s in np.flatnonzero(block.truncated[t] & ~block.terminated[t]).tolist():
            obs = tuple(draw_leaf(leaf, leaf.shape, rng) for leaf in spec.leaves)
            block.finals.append(Final(t, s, obs, None, tuple(each[s].copy() for each in out.state)))
        ended = ends_episode(block.terminated[t], block.truncated[t], block.valid[t])[:, None]
        state = tuple(np.where(ended, np.float32(0), each) for each in out.state)
    block.version[:], block.filled[:] = learner.version, T
    return block, state


LEAVES = {"vector": (VECTOR,), "image": (VECTOR, IMAGE)}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(
    ("name", "masked", "leaves"),
    [("discrete", True, "vector"), ("multi_discrete", True, "image"), ("box", False, "vector")],
)
def test_first_minibatch_has_ratio_one(kind: str, name: str, masked: bool, leaves: str) -> None:
    """Over three updates: the memory is carried from block to block, and weights change between them."""
    spec = make_spec(kind, LEAVES[leaves], name)
    learner, state = make_learner(spec), spec.initial_state(S)
    for number in range(3):
        block, state = collect(spec, learner, state, number, masked=masked)
        memory, num = read_memory(block, CHUNK), T * S
        log_prob, _ = learner.kernel.evaluate(
            learner.encoder.encode(tuple(leaf.reshape((-1, *leaf.shape[2:])) for leaf in block.obs)),
            block.action.reshape(num, -1),
            None if block.mask is None else block.mask[:-1].reshape(num, -1),
            memory,
        )
        np.testing.assert_allclose(log_prob.reshape(T, S), block.log_prob, atol=2e-5)
        stats = learner.update(block)
        assert stats is not None
        assert stats.gradient_steps == 2 * num // 32
        assert stats.metrics["train/first_ratio_error"] < 1e-5
        assert abs(stats.metrics["train/first_kl"]) < 1e-6
        assert stats.metrics["train/memory_drift"] < 1e-6  # the block began with the memory that it computed


@pytest.mark.parametrize("kind", CELLS)
def test_the_pass_over_a_block_ends_with_the_memory_of_the_next_block(kind: str) -> None:
    spec = make_spec(kind)
    learner = make_learner(spec)
    block, state = collect(spec, learner)
    memory = read_memory(block, CHUNK)
    assert memory is not None
    inputs = learner.encoder.encode(tuple(leaf.reshape((-1, *leaf.shape[2:])) for leaf in block.obs))
    learner.kernel.evaluate(inputs, block.action.reshape(T * S, -1), None, memory)
    assert all(each.shape == (T // CHUNK + 1, S, 12) for each in memory.before_chunks)
    for found, expected in zip(memory.after_block, state, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_memory_that_older_weights_computed_is_reported() -> None:
    """As with overlap: the next block began before the update."""
    spec = make_spec()
    learner = make_learner(spec, learning_rate=1e-2)
    first, state = collect(spec, learner)
    second, state = collect(spec, learner, state, 1)
    learner.update(first)
    third, _ = collect(spec, learner, state, 2)
    drifts = [stats.metrics["train/memory_drift"] for stats in map(learner.update, (second, third)) if stats]
    assert drifts[0] < 1e-6  # both sides computed it with the first weights
    assert drifts[1] > 1e-4


class Adder(torch.nn.Module):
    """A network whose memory, and value, is the sum of its inputs since the episode started."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.num_outputs, self.shapes = num_outputs, list[tuple[int, ...]]()

    def __call__(self, inputs: Any, precision: torch.dtype = torch.float32, memory: Any = None) -> Any:
        (state,), starts = memory
        self.shapes.append(tuple(starts.shape))
        values, x = [], inputs[0][:, 0].view(starts.shape)
        for t in range(len(starts)):
            state = torch.where(starts[t], 0.0, state[:, 0])[:, None] + x[t][:, None]
            values.append(state[:, 0])
        return torch.zeros(x.numel(), self.num_outputs), torch.stack(values).reshape(-1), (state,)


def test_every_row_is_computed_with_the_memory_before_it() -> None:
    """Values, also after the last step and of final observations; the same values in every minibatch."""
    num_steps, num_columns, chunk, rng = 6, 8, 3, np.random.default_rng(0)
    kernel = TorchKernel(make_spec(), seed=1)
    kernel._network = network = Adder(4)
    starts = np.zeros((num_steps + 1, num_columns), bool)
    starts[1:] = rng.random((num_steps, num_columns)) < 0.3
    starts[chunk, :4] = True  # also where a chunk begins
    state, final_state = (rng.normal(size=(num, 1)).astype(np.float32) for num in (num_columns, 3))
    memory = SequenceMemory((state,), starts, (final_state,), chunk)
    num = num_steps * num_columns
    x = rng.normal(size=(num + num_columns + 3, 3)).astype(np.float32)
    inputs, action = Encoded(x, ()), np.zeros((num, 1), np.int64)
    log_prob, value = kernel.evaluate(inputs, action, None, memory)
    expected, running = [], state[:, 0]
    for t in range(num_steps + 1):
        running = np.where(starts[t], 0.0, running) + x[t * num_columns : (t + 1) * num_columns, 0]
        expected.append(running)
    expected = [*np.concatenate(expected), *(final_state[:, 0] + x[-3:, 0])]
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(log_prob, np.log(0.25), rtol=1e-5)
    assert network.shapes == [(3, 8), (3, 8), (1, 8), (1, 3)]

    zeros = np.zeros(num, np.float32)
    kernel.load_samples(Samples(inputs, None, action, log_prob, zeros, zeros, zeros, None, memory=memory))
    order = draw_chunks(rng, np.ones((num_steps, num_columns), bool), chunk, 4 * chunk)
    flat, columns, index = kernel._gather(order, SETTINGS)
    assert len(order) == 4
    for minibatch in range(len(order)):
        part = kernel._memory_of(columns[minibatch], index[minibatch])
        _, values, _ = network((flat[minibatch], ()), memory=part)
        np.testing.assert_allclose(values.numpy(), np.array(expected)[order[minibatch]], rtol=1e-5)


def test_a_truncated_episode_bootstraps_with_its_memory_and_not_the_next_ones() -> None:
    """The value of a final observation is that of one more step of the same episode."""
    spec = make_spec()
    learner = make_learner(spec, normalize_returns=False, gae_lambda=0.0, gamma=0.5)
    block, _ = collect(spec, learner, end=0.0)
    straight = learner._prepare(block).samples.returns.reshape(T, S)
    t, s = 9, 3
    policy, state = NumpyPolicy(spec), spec.initial_state(S)
    policy.load(learner.weights())
    for step in range(t + 1):
        state = policy.act(tuple(leaf[step] for leaf in block.obs), None, None, state).state
    block.truncated[t, s] = True
    final = tuple(leaf[t + 1, s].copy() for leaf in block.obs)
    block.finals.append(Final(t, s, final, None, tuple(each[s] for each in state)))
    cut = learner._prepare(block).samples.returns.reshape(T, S)
    np.testing.assert_allclose(cut[: t + 1], straight[: t + 1], atol=1e-5)
    assert abs(cut[t + 1, s] - straight[t + 1, s]) > 1e-3  # here another episode has begun
    others = np.arange(S) != s
    np.testing.assert_allclose(cut[:, others], straight[:, others], atol=1e-5)


def test_a_reward_for_ever_is_worth_100_with_memory() -> None:
    """1 per step, episodes truncated after 10 steps: V = 1 / (1 - 0.99), whatever the memory holds."""
    spec = make_spec()
    learner = make_learner(spec, learning_rate=3e-3, n_epochs=5)
    state: Leaves = ()
    for number in range(120):
        block, state = collect(spec, learner, state, number, end=0.0, truncate_at=9)
        block.reward[:] = 1.0
        learner.update(block)
    values = learner._prepare(block).values
    assert abs(values.mean() - 100.0) < 10.0
    assert values.std() < 10.0


def test_invalid_rows_neither_count_nor_leave_a_trace_in_the_memory() -> None:
    spec, rng = make_spec(), np.random.default_rng(0)
    results = []
    for noise in (0.0, 1.0):
        learner = make_learner(spec, normalize_advantage=False)
        block, _ = collect(spec, learner, end=0.0)
        block.valid[5:8, 2] = False
        block.valid[:, 6] = False
        for rows in (np.s_[5:8, 2], np.s_[:, 6]):
            block.obs[0][:-1][rows] += noise * rng.normal(size=block.obs[0][:-1][rows].shape)
            block.reward[rows] = 0.0
        block.terminated[4, 2] = True  # nothing bootstraps from them
        batch = learner._prepare(block)
        learner.kernel.load_samples(batch.samples)
        order = np.concatenate(list(draw_chunks(np.random.default_rng(1), block.valid, CHUNK, T * S)))[None]
        learner.kernel.epoch(order, learner.step_settings()._replace(ent_coef=0.0), lambda: False)
        results.append(learner.kernel.parameters())
    for name, array in results[0].items():
        np.testing.assert_allclose(results[1][name], array, atol=1e-6, err_msg=name)


def test_actor_and_critic_share_the_core_and_only_the_critic_reads_its_keys() -> None:
    plain = PolicySpec((VECTOR, HIDDEN), ACTIONS["discrete"], (16,), recurrent="gru", recurrent_size=12)
    spec = PolicySpec(
        plain.leaves, plain.action, (16,), critic_leaves=("hidden",), recurrent="gru", recurrent_size=12
    )
    kernel = TorchKernel(spec, seed=1)
    names = kernel.parameters().keys()
    assert {name for name in names if name.startswith("memory.")} <= kernel.acting().keys()
    assert kernel.parameters()["memory.input.weight"].shape == (36, 3)
    assert kernel.parameters()["actor.0.weight"].shape == (16, 12 + 3)
    assert kernel.parameters()["critic.0.weight"].shape == (16, 12 + 5)
    x, rng = np.zeros((2, 5), np.float32), np.random.default_rng(0)
    x[1, 3:] = 1.0  # the critic's keys
    state = rng.normal(size=(2, 12)).astype(np.float32)
    state[1] = state[0]
    starts = np.zeros((2, 2), bool)

    def evaluate(x: Array, state: Array) -> tuple[Array, Array]:
        memory = SequenceMemory((state,), starts, (np.zeros((0, 12), np.float32),), 1)
        both = np.concatenate([x, x])
        return kernel.evaluate(Encoded(both, ()), np.zeros((2, 1), np.int64), None, memory)

    log_prob, value = evaluate(x, state)
    assert log_prob[0] == log_prob[1]
    assert abs(value[0] - value[1]) > 1e-4
    _, other = evaluate(x, state + 1.0)
    assert (abs(other[:2] - value[:2]) > 1e-4).all()  # the critic reads the memory


def test_a_stopped_update_leaves_everything_as_it_was() -> None:
    spec = make_spec("lstm")
    learner = make_learner(spec)
    first, state = collect(spec, learner)
    learner.update(first)
    block, _ = collect(spec, learner, state, 1)
    before = learner.arrays()
    learner.load_arrays(dict(reversed(before.items())))  # files have no order
    np.testing.assert_array_equal(learner.arrays()["learner_memory/1"], before["learner_memory/1"])
    calls = iter(range(100))
    assert learner.update(block, lambda: next(calls) == 5) is None
    after = learner.arrays()
    assert before.keys() == after.keys()
    assert {"learner_memory/0", "learner_memory/1"} <= before.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)


@pytest.mark.parametrize("kind", CELLS)
def test_both_acting_forms_agree(kind: str) -> None:
    spec = make_spec(kind)
    learner, rng = make_learner(spec), np.random.default_rng(0)
    one, other = NumpyPolicy(spec), TorchPolicy(spec)
    states = [spec.initial_state(S)] * 2
    for policy in (one, other):
        policy.load(learner.weights())
    assert set(one.shapes()) <= learner.weights().arrays.keys()
    for name, (shape, _) in one.shapes().items():
        assert learner.weights().arrays[name].shape == shape, name
    for _ in range(20):
        obs = (rng.normal(size=(S, 3)).astype(np.float32),)
        noise = rng.random((S, 1), np.float32)
        outs = [
            policy.act(obs, None, noise, state) for policy, state in zip((one, other), states, strict=True)
        ]
        np.testing.assert_array_equal(outs[0].action, outs[1].action)
        np.testing.assert_allclose(outs[0].log_prob, outs[1].log_prob, atol=1e-5)
        for a, b in zip(outs[0].state, outs[1].state, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
        states = [out.state for out in outs]


def learn(spec: PolicySpec, device: str) -> dict[str, Array]:
    """Two epochs of two gradient steps."""
    kernel, learner = TorchKernel(spec, 1, device), make_learner(spec)
    block, _ = collect(spec, learner)
    samples = learner._prepare(block).samples
    assert samples.memory is not None
    kernel.evaluate(samples.inputs, samples.action, samples.mask, samples.memory)
    kernel.load_samples(samples)
    for seed in range(2):
        order = draw_chunks(np.random.default_rng(seed), block.valid, CHUNK, 2 * T * S // 4)
        kernel.epoch(order, SETTINGS, lambda: False)
    return kernel.parameters() | kernel.optimizer()


@pytest.mark.parametrize("kind", CELLS)
def test_memory_is_learned_on_a_gpu_as_on_the_cpu(kind: str) -> None:
    spec = make_spec(kind)
    with pretend("cuda") as device:
        found = learn(spec, "cuda")
    assert device.counts["replays"] == 4
    for name, array in learn(spec, "cpu").items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_device_is_verified_with_episodes_that_start_inside(
    env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that forgets to reset the memory is refused."""
    flags = {"recurrent": "gru", "recurrent_size": 12, "timesteps": 8192, "n_envs": 4, "tune": False}
    resolved = resolve(env, flags | {"device": "cpu", "threads": 1})
    opened = open_environment(resolved.config, {})
    config = settle(resolved, opened)[0].settled
    config = config.model_copy(update={"compute": config.compute.model_copy(update={"device": "cuda"})})
    whole = TorchKernel._memory_of

    def forgetful(kernel: TorchKernel, columns: torch.Tensor, index: torch.Tensor) -> TorchMemory | None:
        memory = whole(kernel, columns, index)
        if memory is None or kernel.device.type == "cpu":
            return memory
        return memory._replace(starts=torch.zeros_like(memory.starts))

    with pretend("cuda"):
        assert verify_device(config, opened.spec) == ""
        monkeypatch.setattr(TorchKernel, "_memory_of", forgetful)
        assert "its" in verify_device(config, opened.spec)
