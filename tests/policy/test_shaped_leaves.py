"""What networks are given of texts, sequences, ids and pictures, and the layers that read it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from mission_gym.actions import ActionSpec
from mission_gym.data import EnvSpec, LeafSpec
from mission_gym.env.leaves import ObsReader, box_leaf, with_frames
from mission_gym.env.probe import probe
from mission_gym.learner.blocks import unstack_frames
from mission_gym.policy import Encoder, PolicySpec
from mission_gym.policy.layout import count_parameters, feature_width
from mission_gym.policy.torch_forms import ActorCritic
from mission_gym.policy.transfer import ResidentImages
from mission_gym.policy.trunks import Trunk, to_planes
from observation_toys import FORMS, Shown

ACTION = ActionSpec("categories", (), "int64", nvec=(4,), start=(0,))
FLAT = ("words", "mission", "code", "grid", "from_five")


def look(form: str, num: int = 5) -> tuple[EnvSpec, tuple[np.ndarray, ...]]:
    env = Shown(form)
    spec = probe(lambda: env, "told", max_sequence=4)
    read = ObsReader(spec).read
    rows = [read(env.reset(seed=seed)[0]) for seed in range(num)]
    return spec, tuple(np.stack(leaf) for leaf in zip(*rows, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_parameters_and_memory_are_what_the_plan_counts(form: str) -> None:
    spec, obs = look(form)
    policy = PolicySpec(spec.leaves, ACTION, (8,))
    encoded = Encoder(spec.leaves, normalize=True).encode(obs)
    model = ActorCritic(policy, seed=0)
    assert policy.has_numpy_form == (form in FLAT) == (model.trunk is None)
    size = encoded.flat.nbytes + sum(each.nbytes for each in encoded.shaped)
    assert size == 5 * sum(leaf.encoded_bytes for leaf in spec.leaves)
    if not policy.has_numpy_form:
        (leaf,) = spec.leaves
        assert isinstance(model.trunk, Trunk)
        assert sum(each.numel() for each in model.trunk.parameters()) == count_parameters(leaf)
        assert model.trunk.widths == (feature_width(leaf),) * 2


def test_a_text_is_the_counts_of_its_columns() -> None:
    leaf = LeafSpec("", (6,), "uint8", "text")
    flat = Encoder((leaf,), normalize=True).encode((np.array([[3, 3, 255, 1, 0, 0]], np.uint8),)).flat
    assert flat.shape == (1, 255)
    assert {int(i): float(flat[0, i]) for i in flat[0].nonzero()[0]} == {0: 1.0, 2: 2.0, 254: 1.0}


def test_ids_beyond_those_that_were_seen_share_the_last() -> None:
    flat = LeafSpec("", (3, 1), "uint8", "categories", (4, 4, 4), (0, 0, 0), open_ended=True)
    assert Encoder((flat,), False).encode((np.array([[[1], [3], [200]]], np.uint8),)).flat.tolist() == [
        [0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    ]
    image = LeafSpec("", (1, 2, 2), "uint8", "image", (4, 2), (0, 0), channels_last=True, open_ended=True)
    (shown,) = Encoder((image,), False).encode((np.array([[[[3, 1], [200, 9]]]], np.uint8),)).shaped
    planes = to_planes(image, torch.from_numpy(shown))
    assert planes[0, :, 0, 0].tolist() == [0, 0, 0, 1, 0, 1]
    assert planes[0, :, 0, 1].tolist() == [0, 0, 0, 1, 0, 1]


def test_elements_are_scaled_one_hot_and_zero_where_there_is_none() -> None:
    spec, obs = look("list", 12)
    (elements,) = Encoder(spec.leaves, normalize=True).encode(obs).shaped
    lengths = obs[0].copy().view(spec.leaves[0].record)[:, 0]["length"]
    assert {0} < set(lengths.tolist())
    for row, length in zip(elements, lengths, strict=True):
        there = row[:, -1] == 1.0
        assert there.sum() == min(length, 4)
        assert not row[~there].any()
        assert (row[there, :4].sum(1) == 1.0).all()  # its kind
    sizes = elements[..., -2][elements[..., -1] == 1.0]
    assert sizes.min() >= 0.0
    assert 0.6 < sizes.max() <= 1.0


def test_pooling_knows_neither_order_nor_padding() -> None:
    spec, obs = look("list", 12)
    model = ActorCritic(PolicySpec(spec.leaves, ACTION, (8,)), seed=0)
    (elements,) = Encoder(spec.leaves, normalize=True).encode(obs).shaped
    flat = torch.zeros(12, 0)
    with torch.no_grad():
        given = model((flat, (torch.from_numpy(elements),)))[0]
        turned = model((flat, (torch.from_numpy(elements[:, ::-1].copy()),)))[0]
    assert torch.allclose(given, turned, atol=1e-6)
    assert len({tuple(row.tolist()) for row in given}) > 3


def test_frames_are_channels_and_real_numbers_are_scaled() -> None:
    spec, obs = look("frames")
    (frames,) = Encoder(spec.leaves, False).encode(obs).shaped
    assert (frames.shape, frames.dtype) == ((5, 6, 16, 16), np.uint8)
    assert np.array_equal(frames[:, 4], obs[0][:, 1, :, :, 1])
    spec, obs = look("floats")
    (bounded,) = Encoder(spec.leaves, True).encode(obs).shaped
    assert bounded.dtype == np.float32
    assert np.allclose(bounded, (np.moveaxis(obs[0], -1, 1) + 1) / 2)
    open_ended = replace(spec.leaves[0], low=(), high=())
    (logs,) = Encoder((open_ended,), True).encode((obs[0] * 1e6,)).shaped
    assert 13 < logs.max() < 14


def test_an_own_network_gets_planes_and_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[torch.Size] = []

    class Own(torch.nn.Module):
        def forward(self, x: Any) -> torch.Tensor:
            given.append(x.shape)
            return x.flatten(1).float()

    monkeypatch.setattr("mission_gym.policy.trunks.load_network", lambda path: lambda spec: Own())
    shapes = {"wide_grid": (2, 24, 9, 9), "list": (2, 4, 261), "planes": (2, 4, 10, 10), "words": (2, 255)}
    for form, shape in shapes.items():
        spec, _ = look(form)
        ActorCritic(PolicySpec(spec.leaves, ACTION, network="own:net"), seed=0)
        assert given.pop() == shape


BRIGHT = np.linspace(1, 9, 3 * 12 * 14, dtype=np.float32).reshape(12, 14, 3)


@pytest.mark.parametrize(
    "frame",
    [
        spaces.Box(0, 255, (12, 14), np.uint8),
        spaces.Box(0, 255, (12, 14, 3), np.uint8),
        spaces.Box(0, 255, (3, 12, 14), np.uint8),
        spaces.Box(0, 6, (12, 14, 2), np.uint8),
        spaces.Box(-1, 1, (12, 14, 2), np.float32),
        spaces.Box(-BRIGHT, BRIGHT, (12, 14, 3), np.float32),
        spaces.Box(0, 1, (12, 14, 3), np.bool_),
    ],
    ids=["grey", "colour", "planes", "ids", "reals", "by pixel", "bools"],
)
def test_frames_that_are_there_once_are_the_same_inputs(frame: spaces.Box) -> None:
    """In the same layout, too: bits of convolutions depend on it."""
    rng, num = np.random.default_rng(0), 4
    low, high = np.stack([frame.low] * num), np.stack([frame.high] * num)
    leaf = box_leaf(spaces.Box(low, high, dtype=frame.dtype.type), "")
    assert with_frames(leaf, num).frames == num
    frames = rng.integers(0, 2, (9, *frame.shape)).astype(frame.dtype)
    if frame.dtype.kind == "f":
        frames = rng.uniform(-1, 1, frames.shape).astype(np.float32)
    elif frame.dtype == np.uint8:
        frames = rng.integers(0, int(frame.high.max()) + 1, frames.shape).astype(np.uint8)
    places = rng.integers(0, 9, (20, num))
    whole = Encoder((leaf,), True).encode((frames[places],))
    once = Encoder((with_frames(leaf, num),), True).encode((frames,), (places,))
    assert once.flat.shape == whole.flat.shape == (20, 0)
    assert once.shaped[0].nbytes == 9 * (with_frames(leaf, num).encoded_bytes - 8 * num)  # but for the places
    apart = Encoder((with_frames(leaf, num),), True).encode(
        *unstack_frames((frames[places],), (with_frames(leaf, num),))
    )
    one, *others = (ResidentImages(torch.device("cpu")) for _ in range(3))
    one.load(*whole.shaped)
    for other, encoded in zip(others, (once, apart), strict=True):
        other.load(*encoded.shaped, *encoded.frame_index)
        for rows in (slice(3, 11), torch.tensor([5, 5, 0, 19])):
            assert torch.equal(one.take(rows), other.take(rows))
            assert one.take(rows).stride() == other.take(rows).stride()
