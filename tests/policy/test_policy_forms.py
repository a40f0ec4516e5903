"""Both forms of a policy are the same function, and sampling is what its probabilities say."""

from __future__ import annotations

import numpy as np
import pytest

from mission_gym.actions import ActionSpec
from mission_gym.data import LeafSpec, Weights
from mission_gym.errors import ConfigError
from mission_gym.policy import Encoder, NumpyPolicy, PolicySpec
from mission_gym.policy.encoding import Normalizer
from mission_gym.policy.sampling import Sampler, draw_noise
from mission_gym.policy.torch_forms import ActorCritic, TorchPolicy, model_arrays
from mission_gym.streams import generator

ACTIONS = {
    "discrete": ActionSpec("categories", (), "int64", nvec=(4,), start=(0,)),
    "multi_discrete": ActionSpec("categories", (3,), "int64", nvec=(3, 2, 4), start=(0, 0, 0)),
    "multi_discrete_equal": ActionSpec("categories", (2,), "int64", nvec=(3, 3), start=(0, 0)),
    "multi_binary": ActionSpec("binary", (3,), "int8"),
    "box": ActionSpec("box", (2,), "float32", low=(-2.0, -np.inf), high=(2.0, np.inf)),
}
ACTIONS["hybrid"] = ActionSpec.of_parts(
    tuple(ACTIONS[name] for name in ("box", "discrete", "multi_binary", "multi_discrete"))
)
ACTIONS["hybrid_joint"] = ACTIONS["hybrid"].joined()
ACTIONS["bits_and_box"] = ActionSpec.of_parts((ACTIONS["box"], ACTIONS["multi_binary"]))
LEAVES = (
    LeafSpec("pose", (3,), "float32", "vector"),
    LeafSpec("gear", (), "int64", "categories", nvec=(3,), start=(1,)),
    LeafSpec("switches", (2,), "int8", "binary"),
)


def sample_obs(num: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return (
        rng.normal(5.0, 3.0, (num, 3)).astype(np.float32),
        rng.integers(1, 4, num),
        rng.integers(0, 2, (num, 2)).astype(np.int8),
    )


def sample_mask(action: ActionSpec, num: int) -> np.ndarray | None:
    if not action.nvec:
        return None
    mask = np.random.default_rng(1).random((num, sum(action.nvec))) < 0.6
    starts = np.cumsum((0, *action.nvec[:-1]))
    mask[:, starts] = True
    return mask


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
def test_numpy_form_acts_like_the_torch_form(name: str, activation: str) -> None:
    spec = PolicySpec(LEAVES, ACTIONS[name], (16, 8), activation)
    encoder = Encoder(LEAVES, normalize=True)
    assert encoder.normalizer is not None
    encoder.normalizer.merge(encoder.flatten(sample_obs(100, seed=3)))
    model = ActorCritic(spec, seed=7)
    weights = Weights(3, model_arrays(model) | encoder.normalizer.arrays())
    obs, mask = sample_obs(32), sample_mask(spec.action, 32)
    noise = draw_noise(spec.action, generator("test"), 1, 32)[0]
    acted = []
    for name, (shape, dtype) in NumpyPolicy(spec).shapes().items():
        assert (weights.arrays[name].shape, weights.arrays[name].dtype) == (shape, dtype)
    for policy in (NumpyPolicy(spec), TorchPolicy(spec)):
        policy.load(weights)
        assert policy.version == 3
        acted.append((policy.act(obs, mask, noise), policy.act(obs, mask, None)))
    for ours, theirs in zip(*acted, strict=True):
        np.testing.assert_allclose(ours.action, theirs.action, atol=1e-5)
        np.testing.assert_allclose(ours.log_prob, theirs.log_prob, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_the_mean_is_subtracted_in_the_leafs_own_type(dtype: str) -> None:
    """5,000,000 +- 0.05, or 5,000,000,000 +- 50 as integers: one number as float32."""
    leaves = (LeafSpec("far", (1,), dtype, "vector"), *LEAVES)
    spec = PolicySpec(leaves, ACTIONS["discrete"], (16,))
    offset, spread = {"float64": (5e6, 0.05), "int64": (5e9, 50.0), "int32": (2e9, 50.0)}[dtype]
    encoder, rng = Encoder(leaves, normalize=True), np.random.default_rng(0)
    assert encoder.normalizer is not None

    def observe(num: int) -> tuple[np.ndarray, ...]:
        far = offset + spread * rng.uniform(-1.0, 1.0, (num, 1))
        return (far.astype(dtype), *sample_obs(num))

    for _ in range(3):
        encoder.normalizer.merge(encoder.flatten(observe(1000)))
    assert np.sqrt(encoder.normalizer.var[0]) == pytest.approx(spread / np.sqrt(3), rel=0.05)
    obs = observe(64)
    encoded = encoder.encode(obs)
    assert encoded.flat.dtype == np.float32
    expected = (obs[0][:, 0].astype(np.float64) - offset) / (spread / np.sqrt(3))
    np.testing.assert_allclose(encoded.flat[:, 0], expected, atol=0.1)
    # What stands beside it is what it is without it.
    plain = Encoder(LEAVES, normalize=True)
    assert plain.normalizer is not None
    plain.normalizer.load(
        {name: array if array.ndim == 0 else array[1:] for name, array in encoder.normalizer.arrays().items()}
    )
    np.testing.assert_allclose(encoded.flat[:, 1:], plain.encode(obs[1:]).flat, atol=1e-6)
    model = ActorCritic(spec, seed=7)
    weights = Weights(3, model_arrays(model) | encoder.normalizer.arrays())
    acted = []
    for policy in (NumpyPolicy(spec), TorchPolicy(spec)):
        policy.load(weights)
        acted.append(policy.act(obs, None, None))
    np.testing.assert_array_equal(acted[0].action, acted[1].action)


def test_an_entry_that_never_moved_counts_as_it_is_when_it_first_does() -> None:
    leaves = (LeafSpec("", (3,), "float32", "vector"),)
    encoder = Encoder(leaves, normalize=True)
    assert encoder.normalizer is not None
    rows = np.random.default_rng(0).normal(2.0, 3.0, (100, 3)).astype(np.float32)
    rows[:, 1], rows[:, 2] = 0.0, 0.1  # a flag, and a number whose mean rounds
    encoder.normalizer.merge(encoder.flatten((rows,)))
    flat = encoder.encode((np.array([[2.0, 1.0, 1.1]], np.float32),)).flat[0]
    np.testing.assert_allclose(flat[1:], [1.0, 1.0], rtol=1e-6)
    deviation = np.sqrt(encoder.normalizer.var[0] + 1e-8)
    assert flat[0] == pytest.approx((2.0 - encoder.normalizer.mean[0]) / deviation, rel=1e-5)
    # From then on it has a standard deviation: 0.43 at first, of which the floor makes 0.5.
    rows[:50, 1] = 1.0
    expected = [0.75 / 0.5, 2 / 3 / np.sqrt(2 / 9)]
    for number in expected:
        encoder.normalizer.merge(encoder.flatten((rows,)))
        flat = encoder.encode((np.array([[2.0, 1.0, 0.1]], np.float32),)).flat[0]
        assert flat[1] == pytest.approx(number, rel=1e-5)


def test_a_rare_flag_grows_at_most_twofold_between_updates() -> None:
    """Unset for 100,000 rows, then set in 8 of 256: its standard deviation of 0.01 would make 10 of 1."""
    encoder = Encoder((LeafSpec("", (3,), "float32", "vector"),), normalize=True)
    assert encoder.normalizer is not None
    rng, plain = np.random.default_rng(0), Normalizer(np.ones(1, bool))

    def merge(num_rows: int, num_set: int) -> float:
        """The flag as an input after the block. The others: a usual entry, and one of small numbers."""
        rows = rng.normal(2.0, 3.0, (num_rows, 3)).astype(np.float32)
        rows[:, 1] = np.arange(num_rows) < num_set
        rows[:, 2] = 1e-4 * (num_set > 0) * rng.normal(size=num_rows)
        encoder.normalizer.merge(rows)
        plain.merge(rows[:, :1])
        np.testing.assert_array_equal(encoder.normalizer.std[0], np.sqrt(plain.var[0] + 1e-8))
        return float(encoder.encode((np.array([[0.0, 1.0, 0.0]], np.float32),)).flat[0, 1])

    assert [merge(100_000, 0), merge(256, 0)] == [1.0, 1.0]
    found = [merge(256, number) for number in (8, 0, 8, 8, 8, 8)]
    np.testing.assert_allclose(found, [2, 2, 4, 8, 10, 10], rtol=2e-3)
    # Numbers too small to disturb are scaled up at once.
    assert encoder.normalizer.std[2] < 5e-4


def test_masked_actions_are_never_drawn_and_frequencies_follow_the_softmax() -> None:
    sampler = Sampler(ActionSpec("categories", (2,), "int64", nvec=(3, 2), start=(0, 0)))
    num = 20_000
    params = np.tile(np.log(np.array([1.0, 2.0, 1.0, 3.0, 1.0], np.float32)), (num, 1))
    mask = np.tile(np.array([True, True, False, True, True]), (num, 1))
    noise = draw_noise(sampler.action, generator("frequencies"), 1, num)[0]
    out = sampler(params, None, mask, noise)
    assert set(np.unique(out.action[:, 0])) == {0, 1}
    assert (out.action[:, 0] == 1).mean() == pytest.approx(2 / 3, abs=0.015)
    assert (out.action[:, 1] == 0).mean() == pytest.approx(3 / 4, abs=0.015)
    both = (out.action[:, 0] == 1) & (out.action[:, 1] == 0)
    np.testing.assert_allclose(out.log_prob[both], np.log(2 / 3 * 3 / 4), atol=1e-6)


@pytest.mark.parametrize("noise", [0.0, np.float32(1) - np.float32(2**-24)])
def test_extreme_noise_stays_inside_the_mask(noise: float) -> None:
    sampler = Sampler(ActionSpec("categories", (), "int64", nvec=(5,), start=(0,)))
    mask = np.array([[False, True, False, True, False]])
    out = sampler(np.zeros((1, 5), np.float32), None, mask, np.full((1, 1), noise, np.float32))
    assert mask[0, out.action[0, 0]]


def test_box_actions_are_scaled_and_clipped_for_the_environment_only() -> None:
    action = ActionSpec("box", (3,), "float32", low=(-2.0, -np.inf, 0.0), high=(4.0, np.inf, np.inf))
    stored = np.array([[0.0, 7.5, 2.0], [3.0, -7.5, -1.0]], np.float32)
    np.testing.assert_allclose(action.to_env(stored), [[1.0, 7.5, 2.0], [4.0, -7.5, 0.0]])


def test_normalizer_merges_like_one_pass_and_leaves_one_hot_alone() -> None:
    encoder = Encoder(LEAVES, normalize=True)
    assert encoder.normalizer is not None
    parts = [sample_obs(50, seed) for seed in range(4)]
    for part in parts:
        encoder.normalizer.merge(encoder.flatten(part))
    everything = np.concatenate([part[0] for part in parts]).astype(np.float64)
    np.testing.assert_allclose(encoder.normalizer.mean[:3], everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(encoder.normalizer.var[:3], everything.var(0), rtol=1e-12)
    flat = encoder.encode(parts[0]).flat
    np.testing.assert_array_equal(flat[:, 3:6], np.eye(3, dtype=np.float32)[parts[0][1] - 1])
    np.testing.assert_array_equal(flat[:, 6:], parts[0][2])
    assert (
        np.abs(
            encoder.encode((np.full((1, 3), 1e9, np.float32), *(leaf[:1] for leaf in parts[0][1:]))).flat
        ).max()
        == 10
    )


def test_images_go_through_convolutions_in_either_layout() -> None:
    leaves = (
        LeafSpec("eye", (16, 16, 3), "uint8", "image", channels_last=True),
        LeafSpec("map", (1, 40, 40), "uint8", "image"),
    )
    spec = PolicySpec(leaves, ACTIONS["discrete"], ())
    policy = TorchPolicy(spec)
    policy.load(Weights(0, model_arrays(ActorCritic(spec, seed=1))))
    rng = np.random.default_rng(0)
    obs = (rng.integers(0, 256, (4, 16, 16, 3), np.uint8), rng.integers(0, 256, (4, 1, 40, 40), np.uint8))
    assert policy.act(obs, None, None).action.shape == (4, 1)
    assert not spec.has_numpy_form


def own_network(spec: PolicySpec) -> object:
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 5)

        def forward(self, obs: dict) -> object:
            return self.body(obs["pose"]).relu()

    return Net()


def wrong_network(spec: PolicySpec) -> object:
    from torch import nn

    return nn.Linear(99, 5)


def test_own_network_gets_leaves_by_name_and_a_wrong_one_is_refused() -> None:
    spec = PolicySpec(LEAVES, ACTIONS["box"], network=f"{__name__}:own_network")
    model = ActorCritic(spec, seed=0)
    assert model.actor[-1].in_features == 5
    with pytest.raises(ConfigError, match="fails on a batch of 2 observations"):
        ActorCritic(PolicySpec(LEAVES[:1], ACTIONS["box"], network=f"{__name__}:wrong_network"), seed=0)
    with pytest.raises(ConfigError, match="can't be imported"):
        ActorCritic(PolicySpec(LEAVES, ACTIONS["box"], network="no_such_module:net"), seed=0)


def test_initialisation_depends_on_the_seed_alone() -> None:
    spec = PolicySpec(LEAVES, ACTIONS["discrete"])
    one, same, other = (model_arrays(ActorCritic(spec, seed)) for seed in (1, 1, 2))
    assert all((one[name] == same[name]).all() for name in one)
    assert any((one[name] != other[name]).any() for name in one)
    rows = (
        one["actor.0.weight"]
        if one["actor.0.weight"].shape[0] < one["actor.0.weight"].shape[1]
        else one["actor.0.weight"].T
    )
    np.testing.assert_allclose(rows @ rows.T, 2.0 * np.eye(len(rows)), atol=1e-5)
