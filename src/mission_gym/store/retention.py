"""Which checkpoints a run keeps: a pure choice by step, score and size."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mission_gym.store.checkpoints import CheckpointInfo


def plan_retention(
    infos: Sequence[CheckpointInfo],
    *,
    keep_last: int,
    keep_best: int,
    budget_bytes: int | None,
    pinned: Collection[int],
) -> list[int]:
    """The steps to delete: all but the last, the best, the log-spaced and the pinned.

    Log-spaced is the first of each power of two, which stays the same choice as a run grows. Above
    the budget the log-spaced go first, then the others, oldest first, but never the last one, the
    best one (`meta["score"]`, ties to the later) or a pinned one.
    """
    steps = sorted(info.step for info in infos)
    scores = {info.step: info.meta["score"] for info in infos if info.meta.get("score") is not None}
    last = steps[-max(keep_last, 1) :]
    best = sorted(scores, key=lambda step: (scores[step], step), reverse=True)[:keep_best]
    spaced = {step.bit_length(): step for step in reversed(steps)}
    kept = {*last, *best, *spaced.values(), *(step for step in steps if step in pinned)}

    safe = {*last[-1:], *best[:1], *pinned}
    sizes = {info.step: info.size_bytes for info in infos}
    for step in sorted(kept - safe, key=lambda step: (step in last or step in best, step)):
        if budget_bytes is None or sum(sizes[step] for step in kept) <= budget_bytes:
            break
        kept.remove(step)
    return [step for step in steps if step not in kept]
