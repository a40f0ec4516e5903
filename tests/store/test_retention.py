from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from mission_gym.store.checkpoints import CheckpointInfo, plan_retention


def info(step, score=None, size_bytes=10):
    return CheckpointInfo(step, Path("."), size_bytes, {} if score is None else {"score": score})


def plan(infos, *, keep_last=2, keep_best=1, budget_bytes=None, pinned=()):
    return plan_retention(
        infos, keep_last=keep_last, keep_best=keep_best, budget_bytes=budget_bytes, pinned=pinned
    )


def kept(infos, **options):
    deleted = plan(infos, **options)
    return [one.step for one in infos if one.step not in deleted]


def test_last_best_log_spaced_and_pinned_stay():
    infos = [info(step, score=1.0 if step in (6, 7) else 0.0) for step in range(1, 21)]
    # 1, 2, 4, 8, 16 open their powers of two; 7 is the later of two equally good ones.
    assert kept(infos, pinned={13, 99}) == [1, 2, 4, 7, 8, 13, 16, 19, 20]
    assert kept(infos, keep_best=0, keep_last=1) == [1, 2, 4, 8, 16, 20]


def test_the_budget_takes_the_log_spaced_first_and_spares_the_vital():
    infos = [info(step, score=-step) for step in range(1, 17)]
    options = {"keep_last": 3, "keep_best": 2, "pinned": {5}}
    assert kept(infos, **options) == [1, 2, 4, 5, 8, 14, 15, 16]
    assert kept(infos, **options, budget_bytes=79) == [1, 2, 5, 8, 14, 15, 16]
    assert kept(infos, **options, budget_bytes=60) == [1, 2, 5, 14, 15, 16]
    assert kept(infos, **options, budget_bytes=50) == [1, 5, 14, 15, 16]
    assert kept(infos, **options, budget_bytes=0) == [1, 5, 16]


def test_nothing_to_plan():
    assert plan([]) == []
    assert plan([info(0)], keep_last=0, budget_bytes=0) == []


@given(
    st.lists(st.integers(1, 10**6), unique=True, min_size=1).map(sorted),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sets(st.integers(1, 100)),
)
def test_planning_while_growing_equals_planning_at_the_end(steps, keep_last, keep_best, pinned):
    options = {"keep_last": keep_last, "keep_best": keep_best, "pinned": pinned}
    infos = [info(step, score=step % 7) for step in steps]
    grown = []
    for one in infos:
        grown.append(one)
        gone = plan(grown, **options)
        grown = [other for other in grown if other.step not in gone]
    assert [one.step for one in grown] == kept(infos, **options)
