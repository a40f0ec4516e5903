"""N + resume + M = N + M: a run that was stopped anywhere and resumed equals a straight run, bit for bit.

`CASES` lists what is protected: environments, algorithms, backends, observations and actions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from games import forget_processes, game, processes
from mission_gym.errors import RunStateError
from mission_gym.run.resume import resume_run
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.rundir import RunDir
from mission_gym_missions import CAPTURE_ID, EXPLORE_ID, PLACEMENT_ID
from runs import (
    NO_EVALS,
    assert_equal_arrays,
    assert_equal_runs,
    cache_runs,
    final_state,
    last_replay,
    resume,
    rows,
    silent,
    start,
    train,
)
from stage_toys import STAGES

Flags = dict[str, Any]


class Case(NamedTuple):
    """A run that is stopped at polls, in collecting, learning or evaluating, and resumed.

    note: part of a note of the resume. like: the flags of the straight run, if it has others (so a case also
    shows that two backends are equal), and like_env its environment.
    """

    env: str
    flags: Flags
    polls: tuple[int, ...]
    note: str = ""
    like: Flags | None = None
    like_env: str = ""


ANYWHERE = (10, 30, 75, 140)
REPLAY, STATE = "restored by replay", "restored by state"
OVERLAP, NO_OVERLAP = {"overlap": "on"}, {"overlap": "off"}
WORKERS = {"vector": "workers", "num_workers": 2}
THREADS = {"vector": "threads", "overlap": "off"}
BY_TWO = {"acting_rows": 2}
DQN = {"algo": "dqn"}
SAC = {"algo": "sac"}
NOISY = DQN | {"exploration": "noisy", "exploration_fraction": None}
FULL = {"prioritized": True, "n_step": 3, "dueling": True}
STACK: Flags = {"n_envs": 2, "timesteps": 192, "eval_freq": 64, "checkpoint_freq": 32}
STACK |= {"env_kwargs": {"stack": 0}, "wrap": ["frame-stack:3"]}
AGENTS = {"n_envs": 2, "timesteps": 576, "eval_freq": 192, "checkpoint_freq": 96}  # 6 x 16 rows
AIO = {"vector": "aio"} | NO_OVERLAP | NO_EVALS
TINY_SITE = {"env_kwargs": {"num_pages": 60, "latency_ms": 0, "jitter_ms": 0}}
BRIDGE = {"n_envs": 3, "timesteps": 144, "network_arch": "8", "tune": False} | NO_EVALS
STAGED = {"curriculum": STAGES, "acting_rows": 4}
GRU = {"recurrent": "gru", "recurrent_size": 8}
CRITIC = {"critic_keys": "hidden"} | NO_OVERLAP | NO_EVALS

CASES = {
    "cartpole": Case("CartPole-v1", {}, (*range(0, 60, 4), 75, 140), REPLAY),
    "pendulum": Case("Pendulum-v1", {}, ANYWHERE, REPLAY),
    "lunar lander": Case("LunarLander-v3", {}, ANYWHERE, REPLAY),
    "dict and mask": Case("toys:DictMask", {}, ANYWHERE, REPLAY),
    "own state": Case("toys:Stateful", {}, ANYWHERE, STATE),
    **{
        f"{mission}, {vector}": Case(mission, {"vector": vector}, (40,), f"4 of 4 environments {STATE}")
        for mission in (CAPTURE_ID, PLACEMENT_ID)
        for vector in ("serial", "batched")
    },
    "explore, aio": Case(EXPLORE_ID, TINY_SITE | AIO, (3,), STATE),
    "explore, threads": Case(
        EXPLORE_ID, TINY_SITE | THREADS | NO_EVALS, (3,), STATE, like=TINY_SITE | AIO
    ),
    **{
        f"bridge, {vector}, {how}": Case(
            f"bridge:{game('walk_game', *words)}", BRIDGE | flags, (8,), f"restored by {how}"
        )
        for words, how in (((), "state"), (("stateless",), "replay"))
        for vector, flags in (("serial", {}), ("workers", WORKERS))
    },
    # Backends.
    "workers": Case("CartPole-v1", WORKERS, (2, 5, 9), like=BY_TWO),
    "workers, central acting": Case("toys:DictMask", WORKERS | NO_EVALS, (30,)),
    "aio": Case(
        "coroutine_toys:Awaited", {"env_kwargs": {"plain": "toys:DictMask"}} | AIO, (2, 5),
        like=NO_OVERLAP | NO_EVALS, like_env="toys:DictMask",
    ),
    "agents, serial": Case("agent_toys:Lives", AGENTS, (40,), f"2 of 2 environments {REPLAY}"),
    "agents, workers": Case("agent_toys:Lives", AGENTS | WORKERS, (4,), f"2 of 2 environments {REPLAY}"),
    "agents, threads, overlap": Case(
        "agent_toys:Lives", AGENTS | OVERLAP | {"vector": "threads"}, (4,), f"2 of 2 environments {REPLAY}"
    ),
    # Collecting during updates; polls are counted over both threads.
    "overlap": Case("CartPole-v1", OVERLAP, (8, 21, 30, 47, 75)),
    "overlap, dict and mask": Case("toys:DictMask", OVERLAP, (30,)),
    "overlap, workers": Case(
        "CartPole-v1", OVERLAP | WORKERS | NO_EVALS, (3, 9), like=OVERLAP | NO_EVALS | BY_TWO
    ),
    "overlap, threads": Case(
        "CartPole-v1", OVERLAP | NO_EVALS | BY_TWO | {"vector": "threads"}, (3,),
        like=OVERLAP | NO_EVALS | BY_TWO,
    ),
    # Networks.
    "critic keys": Case("toys:Blindfold", {"critic_keys": "hidden"}, (75,)),
    "critic keys, images": Case("toys:DictMask", {"critic_keys": "camera,body.pose"}, (75,)),
    **{
        f"critic keys, {name}": Case("toys:Blindfold", CRITIC | flags | BY_TWO, (3,), like=CRITIC | BY_TWO)
        for name, flags in (("workers", WORKERS), ("threads", THREADS))
    },
    # Memory: a stop may leave a block within a chunk, and the policy's running memory with it.
    "memory": Case("CartPole-v1", GRU, (5, 13, 30, 75, 140), REPLAY),
    "memory, lstm, images, mask": Case("toys:DictMask", GRU | {"recurrent": "lstm"}, (10, 30, 75)),
    "memory, mingru, own state": Case("toys:Stateful", GRU | {"recurrent": "mingru"}, (30,), STATE),
    "memory, critic keys": Case("toys:Blindfold", GRU | {"critic_keys": "hidden"}, (75,)),
    "memory, overlap": Case("CartPole-v1", GRU | OVERLAP, (8, 21, 30, 47)),
    "memory, batched": Case(PLACEMENT_ID, GRU | {"vector": "batched"}, (40,), f"4 of 4 environments {STATE}"),
    "memory, agents, overlap": Case("agent_toys:Lives", GRU | AGENTS | OVERLAP, (30,)),
    "memory, stages": Case("stage_toys:Staged", GRU | STAGED, (59, 63)),
    **{
        f"memory, {name}": Case(
            "CartPole-v1", GRU | flags | NO_OVERLAP | NO_EVALS | BY_TWO, (2, 5), like=GRU | NO_EVALS | BY_TWO
        )
        for name, flags in (("workers", WORKERS), ("threads", THREADS))
    },
    "memory, aio": Case(
        "coroutine_toys:Awaited", {"env_kwargs": {"plain": "toys:DictMask"}} | GRU | AIO, (2, 5),
        like=GRU | NO_OVERLAP | NO_EVALS, like_env="toys:DictMask",
    ),
    "memory, overlap, workers": Case(
        "CartPole-v1", GRU | OVERLAP | WORKERS | NO_EVALS, (3, 9), like=GRU | OVERLAP | NO_EVALS | BY_TWO
    ),
    "frames": Case("toys:Glimpses", STACK, (60,)),
    "frames, workers": Case("toys:Glimpses", STACK | WORKERS | {"n_epochs": None}, (60,)),
    "frames, overlap": Case("toys:Glimpses", STACK | OVERLAP | {"n_epochs": None}, (60,)),
    "frames, dqn": Case("toys:Glimpses", STACK | DQN | {"replay_size": 64, "dueling": True}, (60,)),
    # Actions.
    "throw": Case("action_toys:Throw", {}, (30,), REPLAY),
    "guarded, torch": Case("action_toys:Guarded", {"kernel": "torch"}, (30,), REPLAY),
    "couples, workers": Case("action_toys:Couples", WORKERS, (9,), REPLAY),
    "couples, dqn": Case("action_toys:Couples", DQN, (60,)),
    # DQN, with its replay.
    "dqn": Case("CartPole-v1", DQN | {"double": False, "loss": "mse"}, (40, 61, 90)),
    "dqn, full": Case("CartPole-v1", DQN | FULL, (40, 61, 90)),
    "dqn, full, masks": Case("toys:Corridor", DQN | FULL, (40, 61, 90)),
    "dqn, noisy": Case(
        "CartPole-v1", NOISY | {"tau": 0.05, "target_update_interval": None}, (40, 61, 90)
    ),
    "dqn, noisy, workers": Case(
        "toys:Corridor", NOISY | NO_OVERLAP | WORKERS | BY_TWO, (30,), like=NOISY | NO_OVERLAP | BY_TWO
    ),
    "dqn, overlap": Case("CartPole-v1", DQN | OVERLAP | {"prioritized": True, "n_step": 2}, (40, 61, 90)),
    "dqn, overlap, every place": Case(  # in updates, in blocks, and between an update and an unfinished block
        "CartPole-v1", DQN | OVERLAP | {"prioritized": True} | NO_EVALS, tuple(range(8, 100, 7))
    ),
    "sac": Case("Pendulum-v1", SAC, (40, 61, 90)),
    "sac, full": Case(
        "Pendulum-v1",
        SAC | {"prioritized": True, "n_step": 3, "num_quantiles": 3, "policy_delay": 2},
        (40, 61),
    ),
    "sac, overlap, workers": Case(
        "Pendulum-v1", SAC | OVERLAP | WORKERS | BY_TWO, (40, 61), like=SAC | OVERLAP | BY_TWO
    ),
    "dqn, text": Case("observation_toys:Shown", DQN | {"env_kwargs": {"form": "words"}}, (60,)),
    "dqn, sequences": Case(
        "observation_toys:Shown", DQN | {"env_kwargs": {"form": "list"}, "max_sequence": 6}, (60,)
    ),
    # Curricula: within a stage, and at its end.
    "stages": Case("stage_toys:Staged", STAGED, (40, *range(59, 65), 79, 80, 110)),
    "stages, own state": Case("stage_toys:Saving", STAGED, (40, 75, 110), f"4 of 4 environments {STATE}"),
    "stages, overlap": Case("stage_toys:Staged", STAGED | OVERLAP, (45, 70)),
    "stages, dqn, overlap": Case(  # may leave an update done, and its next block begun in the stage before
        "stage_toys:Staged", STAGED | OVERLAP | DQN | {"timesteps": 256, "threads": 1}, (45, 70, 100)
    ),
}  # fmt: skip

# Every kind of observation and action: on workers and threads in turn, equal to serial; and as a batch.
FORMS = ("mission", "code", "list", "stack", "grid", "wide_grid", "planes", "floats", "frames", "large")
KINDS: list[Flags] = [
    *({"toy": "observation_toys:Shown", "form": form} for form in FORMS),
    {"toy": "action_toys:Throw"},
    {"toy": "action_toys:Levers"},
    {"toy": "action_toys:Guarded", "form": "dict"},
    {"toy": "action_toys:Guarded", "form": "tuple"},
    {"toy": "action_toys:Couples", "form": "flat"},
]
TWO_UPDATES = {"timesteps": 64, "n_steps_per_env": 8, "n_epochs": 1, "checkpoint_freq": 1000} | NO_EVALS
TWO_UPDATES |= {"device": "cpu", "threads": 1, "overlap": "off"}
ONE, MANY = "batch_toys:make_one", "batch_toys:make_many"


def list_kinds() -> dict[str, Case]:
    cases = {}
    for number, kind in enumerate(KINDS):
        name = " ".join(kind.values()).partition(":")[2]
        flags = TWO_UPDATES | ({"max_sequence": 6} if kind.get("form") in ("list", "stack") else {})
        single = flags | {"env_kwargs": kind | {"length": 7}} | BY_TWO
        backend = THREADS if number % 2 else WORKERS
        cases[f"{name}, {backend['vector']}"] = Case(ONE, single | backend, (3,), like=single)
        mode = ("SAME_STEP", "NEXT_STEP")[number % 2]
        batch = {"env_kwargs": kind | {"length": 7, "mode": mode}, "acting_rows": 4, "vector": "batched"}
        cases[f"{name}, batched"] = Case(MANY, flags | batch, (10,))
    for toy, mode, algo in (
        ({"toy": "observation_toys:Shown", "form": "words"}, "SAME_STEP", DQN),
        ({"toy": "action_toys:Couples"}, "NEXT_STEP", DQN),
        ({"toy": "observation_toys:Shown", "form": "grid"}, "NEXT_STEP", {}),
    ):
        batch = {"env_kwargs": toy | {"length": 7, "mode": mode}, "acting_rows": 4, "vector": "batched"}
        name = f"{toy.get('form', 'couples')}, batched, {mode}{', dqn' if algo else ''}"
        cases[name] = Case(MANY, batch | algo | NO_EVALS | {"timesteps": 128}, (20,))
    return cases


CASES |= list_kinds()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunDir]:
    return cache_runs(lambda: tmp_path_factory.mktemp("straight"))


@pytest.mark.parametrize(
    ("name", "poll"), [(name, poll) for name, case in CASES.items() for poll in case.polls]
)
def test_a_stopped_and_resumed_run_equals_a_straight_run(
    name: str, poll: int, tmp_path: Path, straight: Callable[..., RunDir]
) -> None:
    case = CASES[name]
    expected = straight(case.like_env or case.env, **(case.flags if case.like is None else case.like))
    forget_processes()
    run = train(tmp_path, case.env, stop_at=poll, **case.flags)
    assert run.read_status()["state"] == "stopped"
    notes = resume(run)
    assert "the resume is exact" in notes
    assert any(case.note in note for note in notes), notes
    assert_equal_runs(run, expected)
    if "algo" in case.flags:
        assert_equal_arrays(last_replay(run), last_replay(expected))
    assert not case.env.startswith("bridge:") or not processes()


def test_rows_written_after_the_last_checkpoint_are_made_again_not_doubled(tmp_path: Path) -> None:
    """A kill leaves newer rows than the newest checkpoint."""
    flags = {"checkpoint_freq": 10_000} | NO_EVALS
    run = train(tmp_path, "CartPole-v1", **flags)
    with start(tmp_path, "CartPole-v1", **flags) as session:
        for progress in session.updates():
            if progress.update == 2:
                session.save()
            if progress.update == 5:
                session.run.write_status(state="running")
                session._save_and_end = lambda state, cause: None  # type: ignore[method-assign]
                break
        killed = session.run
    assert len(rows(killed)) == 5
    resume(killed)
    assert rows(killed) == rows(run)
    assert final_state(killed)[0] == final_state(run)[0]


def test_an_environment_that_ignores_its_seed_starts_a_new_episode_with_a_note(tmp_path: Path) -> None:
    run = train(tmp_path, "toys:Unseeded", stop_at=30)
    notes = resume(run)
    assert any("boundary" in note for note in notes)
    assert any("not exact" in note for note in notes)
    assert run.read_status()["state"] == "done"


def test_same_seed_same_hash_other_seed_other_hash(tmp_path: Path, straight: Callable[..., RunDir]) -> None:
    again, other = train(tmp_path, "CartPole-v1"), train(tmp_path, "CartPole-v1", seed=4)
    assert_equal_runs(again, straight("CartPole-v1"))
    assert final_state(other)[0] != final_state(again)[0]


@pytest.mark.parametrize(("flags", "poll"), [({}, None), (OVERLAP, None), (OVERLAP, 10)])
def test_an_extended_run_equals_a_longer_one(
    flags: Flags, poll: int | None, tmp_path: Path, straight: Callable[..., RunDir]
) -> None:
    """With overlap, the next block is collected with the weights before the last update, as it would have
    been; also if the extension is interrupted."""
    constant = flags | {"learning_rate_final": "none", "clip_range_final": "none"}
    run = train(tmp_path, "CartPole-v1", **constant)
    finished = r"is finished \(all steps made, 384 steps\); .* --timesteps N` extends it"
    with pytest.raises(RunStateError, match=finished), resume_run(run, silent):
        pass
    below = "timesteps=300 is not above the 384 steps"
    with pytest.raises(RunStateError, match=below), resume_run(run, silent, timesteps=300):
        pass
    resume(run, stop_at=poll, timesteps=512)
    if poll is not None:
        assert 384 < run.read_status()["step"] < 448  # within the first block
        resume(run)
    assert run.read_status()["step"] == 512
    longer = straight("CartPole-v1", timesteps=512, **constant)
    assert final_state(run)[0] == final_state(longer)[0]
    assert rows(run, "progress") == rows(longer, "progress")


def test_a_run_that_is_stopped_again_and_again_equals_a_straight_run(
    tmp_path: Path, straight: Callable[..., RunDir]
) -> None:
    flags = OVERLAP | NO_EVALS
    run = train(tmp_path, "CartPole-v1", stop_at=25, **flags)
    interruptions = 0
    while run.read_status()["state"] != "done":
        resume(run, stop_at=30)
        interruptions += 1
    assert interruptions > 3
    assert_equal_runs(run, straight("CartPole-v1", **flags))


def test_a_damaged_checkpoint_is_skipped_with_a_note(tmp_path: Path) -> None:
    run = train(tmp_path, "CartPole-v1", stop_at=100)
    newest = list_checkpoints(run.checkpoints)[-1]
    damaged = newest.path / "policy.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-10])
    notes = resume(run)
    assert any("truncated or altered" in note for note in notes)
    assert any("using checkpoint" in note for note in notes)
    assert run.read_status()["state"] == "done"


def test_a_locked_run_is_refused(tmp_path: Path) -> None:
    with start(tmp_path, "CartPole-v1") as session:
        run = session.run
        with pytest.raises(RunStateError, match="process"), resume_run(run, silent):
            pass
