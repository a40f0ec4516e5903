"""Seeds: one per episode, disjoint ranges, nothing shared between training and evaluation."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mission_gym.streams import (
    Streams,
    episode_seed,
    generator,
    suite_seeds,
)

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


def test_streams_draw_the_numbers_of_generators() -> None:
    streams = Streams()
    for number in (7, 8, 7, 0, -1):
        drawn = streams.begin(1, "replay", number).random(5)
        np.testing.assert_array_equal(drawn, generator(1, "replay", number).random(5))
        streams.begin(1, "replay", 9).integers(9, size=3)  # half of a word is left over
