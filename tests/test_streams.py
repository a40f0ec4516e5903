"""Seeds: one per episode, disjoint ranges, nothing shared between training and evaluation."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from mission_gym.streams import NumberedStreams, Streams, episode_seed, generator, spread_seeds, suite_seeds

counts = st.integers(0, 10**9)


@given(counts, counts, counts)
def test_streams_are_disjoint_and_below_2_to_31(seed: int, env: int, episode: int) -> None:
    train, select, report = (episode_seed(seed, name, env, episode) for name in ("train", "select", "report"))
    assert 0 <= train < 1 << 30 <= select < (1 << 30) + (1 << 29) <= report < 1 << 31


def test_every_episode_has_its_own_seed() -> None:
    seeds = {episode_seed(1, "train", env, episode) for env in range(20) for episode in range(50)}
    assert len(seeds) == 1000


def test_a_longer_suite_begins_with_the_shorter_one() -> None:
    assert suite_seeds("report", 100)[:20] == suite_seeds("report", 20)
    assert not set(suite_seeds("report", 256)) & set(suite_seeds("select", 256))
    chosen, further = suite_seeds("select", 2048)[:1024], suite_seeds("select", 2048)[1024:]
    assert not set(chosen) & set(further)  # what confirms the best is not what chose it
    assert len(set(chosen + further)) == 2048


def test_a_generator_is_a_function_of_its_place() -> None:
    assert generator(1, "act", 0, 7).random() == generator(1, "act", 0, 7).random()
    assert generator(1, "act", 0, 7).random() != generator(1, "act", 0, 8).random()


def test_streams_begin_anew_wherever_the_last_one_ended() -> None:
    streams = Streams()
    first = streams.begin(1, "replay", 7).random(5)
    streams.begin(1, "replay", 8).integers(9, size=3)  # half of a word is left over
    assert streams.begin(1, "replay", 7).random(5).tolist() == first.tolist()
    assert Streams().begin(1, "replay", 7).random(5).tolist() == first.tolist()
    assert streams.begin(1, "replay", 8).random() != first[0]


def test_numbered_streams_are_those_of_generator() -> None:
    streams = NumberedStreams(3, "act", 1)
    for number in (
        0,
        1,
        2,
        63,
        64,
        65,
        7,
        1000,
        -1,
    ):  # on, past what was made at once, back, before the first
        expected = generator(3, "act", 1, number).random(5, np.float32)
        np.testing.assert_array_equal(streams.at(number).random(5, np.float32), expected)


@given(st.lists(st.integers(0, 2**128 - 1), min_size=1, max_size=5))
@example([0, 1, 2**32 - 1, 2**32, 2**96, 2**128 - 1])
def test_seeds_are_spread_as_numpy_does(seeds: list[int]) -> None:
    expected = [np.random.Philox(seed).state["state"]["key"] for seed in seeds]
    np.testing.assert_array_equal(spread_seeds(seeds), expected)
