"""Observations become what is stored: texts, sequences, grids of ids, pictures; one adapter for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from mission_gym.data import EnvSpec
from mission_gym.env import leaves
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.leaves import ObsReader, TextReader, is_text, leaf_specs
from mission_gym.env.probe import probe
from mission_gym.env.slot import EnvSlot
from mission_gym.errors import EnvContractError
from observation_toys import ELEMENT, FORMS, SENTENCE, Mission, Shown


def spec_of(space: spaces.Space[Any], max_sequence: int = 4) -> EnvSpec:
    action: Any = None
    return EnvSpec("env", leaf_specs(space, max_sequence=max_sequence), action, space, None)


def read(space: spaces.Space[Any], value: Any) -> np.ndarray:
    (leaf,) = ObsReader(spec_of(space)).read(value)
    return np.asarray(leaf)


def test_words_are_hashed_the_same_everywhere_and_their_order_is_kept_in_pairs() -> None:
    reader = TextReader(SENTENCE)
    words, pairs = reader("Go to the RED ball!").reshape(2, -1)[:, :5].tolist()
    assert words == [111, 133, 14, 44, 119]  # these numbers are in every run: they must never change
    assert np.array_equal(reader("go to the red ball"), reader("Go  to the RED ball!"))
    turned = reader("ball red the to go").reshape(2, -1)[:, :5]
    assert sorted(turned[0].tolist()) == sorted(words)
    assert sorted(turned[1].tolist()) != sorted(pairs)


def test_text_without_blanks_is_read_by_characters_at_their_places() -> None:
    reader = TextReader(spaces.Text(6))
    assert (reader.by_words, reader.num_tokens) == (False, 6)
    one, other = (reader(text).reshape(2, -1)[0] for text in ("AB", "BA"))
    assert set(one.tolist()) != set(other.tolist())
    assert not reader("").any()


def test_only_the_first_64_tokens_are_read() -> None:
    assert leaf_specs(Mission())[0].shape == (128,)
    text = " ".join(map(str, range(100)))
    assert np.array_equal(TextReader(Mission())(text), TextReader(Mission())(text[: text.index(" 64")]))


def test_any_space_of_strings_is_a_text() -> None:
    class Silent(spaces.Space[str]):
        """It says nothing of its type: a sample does, drawn from a copy."""

        def sample(self, mask: Any = None, probability: Any = None) -> str:
            return str(self.np_random.random())

    silent = Silent(seed=0)
    before = silent.np_random.bit_generator.state
    assert all(map(is_text, (Mission(), silent, spaces.Text(3))))
    assert silent.np_random.bit_generator.state == before
    assert not any(map(is_text, (spaces.Discrete(3), spaces.Graph(spaces.Discrete(2), None))))


@pytest.mark.parametrize("stack", [False, True])
def test_a_sequence_is_packed_with_its_true_length(stack: bool) -> None:
    space = spaces.Sequence(ELEMENT, stack=stack, seed=3)
    leaf = leaf_specs(space, max_sequence=4)[0]
    for _ in range(20):
        value = space.sample()
        packed = read(space, value).view(leaf.record)[0]
        length = len(value["kind"]) if stack else len(value)
        assert packed["length"] == length
        kinds = value["kind"] if stack else [each["kind"] for each in value]
        assert packed["0"][: min(length, 4)].tolist() == list(kinds)[:4]
        assert not packed["0"][length:].any()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (({"kind": 1, "size": np.full(1, np.nan, np.float32), "name": "a"},), "is not finite"),
        (({"kind": 4, "size": np.zeros(1, np.float32), "name": "a"},), "a category outside of \\[0\\] to"),
        (({"kind": 1, "size": np.zeros(2, np.float32), "name": "a"},), "an element has shape \\(2,\\)"),
        (({"kind": 1.5, "size": np.zeros(1, np.float32), "name": "a"},), "an element has dtype float64"),
        (({"kind": 1, "size": np.zeros(1, np.float32), "name": 7},), "expected a string, got int"),
        (({"kind": 1},), "KeyError"),
        (5, "TypeError"),
    ],
)
def test_elements_that_do_not_fit_are_refused(value: Any, message: str) -> None:
    class Wrong(Shown):
        def observe(self) -> Any:
            return value

    spec = probe(lambda: Shown("list"), "told")
    with pytest.raises(
        EnvContractError, match=f"environment 0, seed 0, .* does not fit its space .*{message}"
    ):
        EnvSlot(lambda: Wrong("list"), spec, 0, lambda episode: episode).reset(0)


def test_large_pictures_are_stored_as_means() -> None:
    space, draw = FORMS["large"]
    picture = draw(np.random.default_rng(0), 3)
    stored = read(space, picture)
    assert stored.shape == (70, 20, 3)
    expected = picture.reshape(70, 2, 20, 2, 3).mean((1, 3))
    assert np.array_equal(stored, np.rint(expected))
    with pytest.raises(ValueError, match=r"shape \(10, 10, 3\), expected \(140, 40, 3\)"):
        read(space, picture[:10, :10])
    frames = leaf_specs(spaces.Box(0, 255, (4, 3, 300, 200), np.uint8))[0]
    assert (frames.shape, frames.shrink) == ((4, 3, 100, 66), 3)


@pytest.mark.parametrize(("form", "kind", "nvec"), [("grid", "categories", 25), ("wide_grid", "image", 1)])
def test_grids_of_ids_are_known_by_their_values(form: str, kind: str, nvec: int) -> None:
    (leaf,) = probe(lambda: Shown(form), "told").leaves
    assert (leaf.kind, leaf.open_ended) == (kind, True)
    assert leaf.nvec == (16, 4, 4) * nvec  # ids up to 6 and 2 were seen, and are counted generously


def test_pictures_stay_pictures_and_bounds_tell_ids_without_a_look() -> None:
    assert probe(make_factory(EnvRequest("toys:Glimpses")), "toys:Glimpses").leaves[0].nvec == ()
    (board,) = leaf_specs(spaces.Box(-1, 1, (8, 8), np.int8))
    assert (board.kind, board.nvec, board.start) == ("image", (3,), (-1,))
    (small,) = leaf_specs(spaces.Box(0, 5, (3, 3), np.int64))
    assert (small.kind, small.nvec) == ("categories", (6,) * 9)
    (table,) = leaf_specs(spaces.Box(0, 100, (8, 8), np.int64))
    assert table.kind == "vector"


@pytest.mark.parametrize("form", ["words", "mission", "list", "stack", "large", "grid"])
def test_a_batch_is_read_like_its_rows(form: str) -> None:
    env = Shown(form)
    spec = probe(lambda: env, "told")
    reader, rows = ObsReader(spec), [env.reset(seed=seed)[0] for seed in range(3)]
    if form == "mission":
        batch: Any = {key: [row[key] for row in rows] for key in rows[0]}
    else:
        batch = np.stack(rows) if form in ("large", "grid") else tuple(rows)
    singles = [reader.read(row) for row in rows]
    for leaf, stacked in enumerate(reader.read_batch(batch)):
        assert np.array_equal(stacked, [single[leaf] for single in singles])
    assert [reader.is_single(rows[0]), reader.is_single(batch)] == [True, False]


def test_what_training_takes_is_one_observation() -> None:
    """Lists and other real numbers too, which the space itself does not call its own."""
    space = spaces.Sequence(spaces.Box(-1.0, 1.0, (2,), np.float32))
    reader = ObsReader(spec_of(space))
    for given in ([[0.5, 0.25]], (np.array([0.5, 0.25]),)):
        assert not space.contains(given)
        assert reader.is_single(given)
    assert not reader.is_single((([0.5, 0.25],), ()))


def test_the_memory_of_texts_is_bounded() -> None:
    reader = TextReader(SENTENCE)
    for number in range(100):
        reader(f"{number} and {number + 1}")
    for cached in (leaves._read, leaves._hash):
        assert cached.cache_info().maxsize is not None
