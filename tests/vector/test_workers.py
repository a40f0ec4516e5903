"""Worker processes: equal to serial, and every way to die contained with nothing left behind."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hazards import Hazard
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.errors import (
    EnvContractError,
    EnvFailure,
    UsageError,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
)
from mission_gym.procs import BoundedLog
from mission_gym.vector import pool as pool_module
from mission_gym.vector.pool import probe_in_worker
from mission_gym.vector.record import Limits, Source, VectorOptions, WorkerExtension, split_envs
from mission_gym.vector.serial import SerialVec
from mission_gym.vector.threads import ThreadedVec
from mission_gym.vector.workers import WorkersVec
from timeouts import LONG_S, is_alive, scale_timeout, wait_until
from toys import seed_of
from vectors import assert_equal, play

SPEC = probe(Hazard, "hazard")


def own_processes() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def memory_files() -> int:
    return sum("mission-gym" in os.readlink(f"/proc/self/fd/{fd}") for fd in _open_fds())


def _open_fds() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    gc.collect()  # the memory goes with its last array
    processes, files = own_processes(), memory_files()
    yield
    assert own_processes() == processes
    gc.collect()
    assert memory_files() <= files


NO_RESTARTS = VectorOptions(limits=Limits(max_restarts=0))


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_CLOSE_S", scale_timeout(1.0))
    monkeypatch.setattr(pool_module, "_INSPECT_S", 0.05)


def make(hazards: dict[int, Any], num_envs: int = 4, num_workers: int = 2, **limits: Any) -> WorkersVec:
    """Harmless environments but for those named, in that many workers."""
    factories = [partial(Hazard, **hazards.get(env_id, {})) for env_id in range(num_envs)]
    limits = {"timeout_s": LONG_S} | limits
    return WorkersVec(
        factories, SPEC, num_envs, seed_of, VectorOptions(num_workers=num_workers, limits=Limits(**limits))
    )


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "toys:DictMask"])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_equal_actions_give_equal_transitions(env: str, num_workers: int) -> None:
    factory = make_factory(EnvRequest(env))
    spec = probe(factory, env)
    rng = np.random.default_rng(0)
    with (
        WorkersVec(factory, spec, 5, seed_of, VectorOptions(num_workers=num_workers)) as one,
        SerialVec(factory, spec, 5, seed_of) as two,
    ):
        mine, theirs = one.reset(), two.reset()
        for number in range(60):
            assert_equal(mine, theirs)
            if spec.mask_source:
                legal = [int(row[:3].argmax()) for row in theirs.mask]
                actions = np.stack([legal, rng.integers(0, 2, 5)], 1)
            else:
                actions = np.stack([spec.action_space.sample() for _ in range(5)])
            ids = None if number % 3 else [4, 1, 2]
            for vec in (one, two):
                vec.send(actions if ids is None else actions[ids], ids)
            mine, theirs = one.recv(), two.recv()
            order = np.argsort(theirs.env_ids)
            if ids is not None:  # workers answer in the order of the rows
                for leaf, other in zip(mine.obs, theirs.obs, strict=True):
                    np.testing.assert_array_equal(leaf[np.argsort(mine.env_ids)], other[order])
                mine, theirs = one.restore(one.state())[0], two.restore(two.state())[0]


def test_rows_are_split_in_whole_units() -> None:
    assert split_envs(8, 3, 2) == [range(2), range(2, 4), range(4, 8)]
    assert split_envs(7, 2, 4) == [range(4), range(4, 7)]
    assert split_envs(2, 16) == [range(1), range(1, 2)]


def test_a_raise_costs_one_episode_and_its_siblings_go_on(tmp_path: Path) -> None:
    with make({5: {"kind": "raise", "once": str(tmp_path / "x")}}, 16) as vec:
        batches = play(vec, 6)
        pids = vec.pool.pids()
        assert all(psutil.pid_exists(pid) for pid in pids)
    lost = batches[2]
    assert lost.valid.tolist() == [env_id != 5 for env_id in range(16)]
    assert lost.truncated.tolist() == [env_id == 5 for env_id in range(16)]
    np.testing.assert_array_equal(lost.final_obs[0], [[2, 1]])  # the last good observation
    np.testing.assert_array_equal(lost.obs[0][5], [0, 0])
    assert [(e.env_id, e.number, e.failed, e.length) for e in lost.episodes] == [(5, 0, True, 2)]
    np.testing.assert_array_equal(batches[5].obs[0][:, 0], [3 if i == 5 else 6 for i in range(16)])
    assert vec.num_restarts == 0


@pytest.mark.parametrize("kind", ["exit", "segfault", "kill"])
def test_a_dead_worker_is_replaced_and_only_its_episodes_are_lost(kind: str, tmp_path: Path) -> None:
    with make({1: {"kind": kind, "once": str(tmp_path / "x")}}) as vec:
        batches = play(vec, 5)
    lost = batches[2]
    assert lost.valid.tolist() == [False, False, True, True]
    assert [(e.env_id, e.number, e.failed) for e in lost.episodes] == [(0, 0, True), (1, 0, True)]
    np.testing.assert_array_equal(lost.final_obs[0], [[2, 0], [2, 1]])
    assert batches[4].obs[0][:, 0].tolist() == [2, 2, 5, 5]
    assert vec.num_restarts == 1


@pytest.mark.parametrize("kind", ["hang", "stop"])
def test_a_silent_worker_is_replaced(kind: str, tmp_path: Path) -> None:
    with make({1: {"kind": kind, "once": str(tmp_path / "x")}}, timeout_s=scale_timeout(0.5)) as vec:
        batches = play(vec, 5)
    assert batches[2].valid.tolist() == [False, False, True, True]
    assert batches[4].obs[0][:, 0].tolist() == [2, 2, 5, 5]


@pytest.mark.parametrize(
    ("kind", "error", "match"),
    [
        ("raise", EnvFailure, r"(?s)environment 1, seed 100\d, .* step 2: step\(\) raised RuntimeError: the "
         r"simulator fell over; the action was 1.*failed 2 times.*--max-restarts.*Traceback.*in fail"),
        ("reset", EnvFailure, r"(?s)reset\(\) raised RuntimeError: the map file is missing.*Traceback"),
        ("exit", WorkerDied, r"environment 1, seed 1001, episode 1, step 2: .* ended with code 7; the"),
        ("segfault", WorkerDied, r"(?s)was killed by SIGSEGV; the action was 1.*failed 2 times"),
        ("hang", WorkerTimeout, r"(?s)step\(\) did not return within \d+ s \[--env-timeout\].*in hang_here"),
    ],
)  # fmt: skip
def test_beyond_its_restarts_the_failure_is_told_in_full(kind: str, error: type, match: str) -> None:
    timeout_s = scale_timeout(0.4) if kind == "hang" else LONG_S
    with make({1: {"kind": kind}}, max_restarts=1, timeout_s=timeout_s) as vec:
        with pytest.raises(error, match=match) as caught:
            play(vec, 8)
        if kind != "reset":
            assert caught.value.facts is not None
            assert caught.value.facts["actions"] == [1, 1, 1]
            assert caught.value.facts["env_index"] == 1
        assert vec.episode_numbers()[2:] == [0, 0]


def test_all_may_crash_at_once(tmp_path: Path) -> None:
    hazards = {i: {"kind": "kill", "once": str(tmp_path / str(i))} for i in range(4)}
    with make(hazards, num_workers=4) as vec:
        batches = play(vec, 6)
    assert not batches[2].valid.any()
    assert batches[-1].obs[0][:, 0].tolist() == [3, 3, 3, 3]
    assert vec.num_restarts == 4


def test_a_constructor_error_shows_the_original() -> None:
    with pytest.raises(RuntimeError, match="no licence for the simulator"):
        make({2: {"kind": "constructor"}})
    factory = make_factory(partial(Hazard, kind="constructor"))
    with pytest.raises(EnvContractError, match=r"building .*partial.* raised RuntimeError: no licence"):
        WorkersVec(factory, SPEC, 2, seed_of, VectorOptions(num_workers=2))


def test_a_worker_that_is_killed_while_it_builds_costs_a_restart(tmp_path: Path) -> None:
    hazard = {"births": str(tmp_path), "deaths": [0, 1]}
    with make({2: hazard}) as vec:
        assert vec.num_restarts == 2
        assert play(vec, 4)[-1].obs[0][:, 0].tolist() == [4, 4, 4, 4]
        assert vec.num_restarts == 2


def test_a_replacement_that_is_killed_while_it_builds_costs_one_more(tmp_path: Path) -> None:
    hazard = {"kind": "kill", "once": str(tmp_path / "once"), "births": str(tmp_path), "deaths": [1]}
    with make({2: hazard}) as vec:
        batches = play(vec, 6)
        assert [batch.valid.all() for batch in batches] == [True, True, False, True, True, True]
        assert vec.num_restarts == 2


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_a_worker_that_is_killed_whenever_it_builds_is_given_up(max_restarts: int, tmp_path: Path) -> None:
    hazard = {"births": str(tmp_path), "deaths": range(99)}
    rule = (
        rf"^environments 2 to 3: the worker process was killed by SIGKILL while building its environments\n"
        rf"environment 2 failed {max_restarts + 1} times .*the limit is {max_restarts} restarts"
    )
    with pytest.raises(WorkerDied, match=rule):
        make({2: hazard}, max_restarts=max_restarts)
    assert len(list(tmp_path.iterdir())) == max_restarts + 1


def test_a_constructor_that_ends_its_process_is_refused_at_once() -> None:
    words = r"^environments 2 to 3: the worker process ended with code 7 while building its environments; its"
    with pytest.raises(WorkerDied, match=words):
        make({2: {"kind": "exit constructor"}})


def test_a_probe_that_is_killed_is_repeated(tmp_path: Path) -> None:
    factory = partial(Hazard, births=str(tmp_path), deaths=[0, 1])
    with pytest.raises(
        WorkerDied, match=r"probed the environment was killed by SIGKILL(.|\n)*the limit is 1"
    ):
        probe_in_worker(Source("hazard", factory, options=VectorOptions(limits=Limits(max_restarts=1))))
    assert probe_in_worker(Source("hazard", factory, options=NO_RESTARTS))[0] == SPEC


def test_an_exception_class_of_the_users_is_not_loaded_in_this_process(tmp_path: Path) -> None:
    """Else the module of an environment that runs in workers would be imported beside the learner."""
    (tmp_path / "simulator.py").write_text(
        "class Broken(Exception): ...\ndef build():\n    raise Broken('no licence')\n"
    )

    def build() -> Any:
        import simulator

        return simulator.build()

    sys.path.append(str(tmp_path))
    try:
        with pytest.raises(WorkerError, match=r"^Broken: no licence$"):
            WorkersVec(build, SPEC, 2, seed_of, VectorOptions(num_workers=1))
    finally:
        sys.path.remove(str(tmp_path))
    assert "simulator" not in sys.modules


@pytest.mark.parametrize("kind", ["shape", "space"])
def test_a_wrong_shape_is_refused_and_touches_no_neighbour(kind: str) -> None:
    with make({1: {"kind": kind}}) as vec:
        vec.reset()
        vec.shared.steps.obs[0][3:] = vec.shared.previous_obs[0][:] = 55.0  # canaries
        before = [array.copy() for array in (vec.shared.actions, vec.shared.journal)]
        with pytest.raises(EnvContractError, match=r"environment 1.*has shape \(4,\)"):
            step_often(vec)
        assert not (vec.shared.steps.obs[0] == 77.0).any()
        assert not (vec.shared.previous_obs[0] == 77.0).any()
        for array, old in zip((vec.shared.actions, vec.shared.journal), before, strict=True):
            np.testing.assert_array_equal(array, old)


def step_often(vec: WorkersVec) -> None:
    for _ in range(4):
        vec.step(np.zeros(4, int))


def test_not_a_number_is_refused_with_its_place() -> None:
    match = r"environment 1, seed \d+, episode 0, step 3: the observation has nan at index \[1\]"
    with make({1: {"kind": "nan"}}) as vec, pytest.raises(EnvContractError, match=match):
        play(vec, 3)


def test_close_that_raises_or_hangs_is_noted_and_ended() -> None:
    with make({0: {"kind": "close raises"}, 3: {"kind": "close hangs"}}) as vec:
        play(vec, 2)
    errors = vec.close_errors
    assert any("environment 0: RuntimeError: the window is gone" in error for error in errors)
    assert any(re.search(r"did not close in \d+ s and was killed", error) for error in errors)


@pytest.mark.parametrize("kind", [SerialVec, ThreadedVec])
def test_a_raise_without_a_text_costs_one_episode(kind: type[SerialVec], tmp_path: Path) -> None:
    factories = [Hazard, partial(Hazard, kind="mute", once=str(tmp_path / "x"))]
    with WorkersVec(
        factories, SPEC, 2, seed_of, VectorOptions(limits=Limits(max_restarts=1)), kind=kind
    ) as vec:
        assert play(vec, 4)[2].valid.tolist() == [True, False]
    factories[1] = partial(Hazard, kind="mute")
    unread = r"MuteError \(its text can't be read\)"
    with (
        WorkersVec(
            factories, SPEC, 2, seed_of, VectorOptions(limits=Limits(max_restarts=0)), kind=kind
        ) as vec,
        pytest.raises(EnvFailure, match=rf"environment 1, .*step\(\) raised {unread}; the action was 1"),
    ):
        play(vec, 4)


def test_texts_that_can_not_be_read_are_met_everywhere() -> None:
    unread = r"MuteError \(its text can't be read\)"
    with (
        make({1: {"kind": "mute reset"}}, max_restarts=0) as vec,
        pytest.raises(EnvFailure, match=rf"reset\(\) raised {unread}"),
    ):
        vec.reset()
    with make({1: {"kind": "mute close"}}) as vec:
        vec.reset()
    assert vec.close_errors == ["environment 1: MuteError (its text can't be read)"]
    with pytest.raises(WorkerError, match=rf"^{unread}$"):
        make({1: {"kind": "mute constructor"}})
    factory = make_factory(partial(Hazard, kind="mute constructor"))
    with pytest.raises(EnvContractError, match=rf"building .* raised {unread}"):
        probe_in_worker(Source("hazard", factory))


@pytest.mark.parametrize("kind", ["close hangs", "close exits"])
def test_a_close_that_never_returns_hides_no_spec(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_CLOSE_S", scale_timeout(0.3))
    spec, pace = probe_in_worker(Source("hazard", partial(Hazard, kind=kind), options=NO_RESTARTS), 0.05)
    assert spec == SPEC
    assert pace is not None


@pytest.mark.skipif(sys.platform != "linux", reason="reads the state of the process")
@pytest.mark.parametrize(("cost", "waits"), [({"spins": 10**8}, False), ({"wait_s": 60.0}, True)])
def test_a_long_step_that_waits_for_a_core_does_not_count_as_waiting(
    cost: dict[str, Any], waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged from outside, before the step has ended; its CPU time may be too short to be counted."""
    read = pool_module._read_use
    monkeypatch.setattr(pool_module, "_read_use", lambda pid: (0.0, read(pid)[1]))
    monkeypatch.setattr(pool_module, "_CLOSE_S", 0.0)
    factory = make_factory(EnvRequest("mission_gym_bench.synthetic:Burn", cost))
    _, pace = probe_in_worker(Source("burn", factory, options=NO_RESTARTS), 0.05)
    assert pace is not None
    assert (pace.num_steps, pace.waits) == (0, waits)


def test_a_close_that_never_returns_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_CLOSE_S", scale_timeout(0.3))
    with pytest.raises(EnvContractError, match="the map file is missing"):
        probe_in_worker(Source("hazard", partial(Hazard, kind="reset, close hangs")))


def test_a_fault_of_our_own_in_a_worker_costs_what_its_death_costs(tmp_path: Path) -> None:
    log = tmp_path / "envs.log"
    extension = WorkerExtension("hazards:serve_faulty", str(tmp_path / "x"), lambda carver: None)
    options = VectorOptions(num_workers=2, log=BoundedLog(log), extension=extension)
    with WorkersVec(Hazard, SPEC, 4, seed_of, options) as vec:
        batches = play(vec, 5)
        assert vec.num_restarts == 1
    assert batches[2].valid.tolist() == [False, False, True, True]
    assert batches[4].obs[0][:, 0].tolist() == [2, 2, 5, 5]
    assert "KeyError: 'a fault of ours'" in log.read_text()
    (tmp_path / "x").unlink()
    options = replace(options, log=None, limits=Limits(max_restarts=0))
    with (
        WorkersVec(Hazard, SPEC, 4, seed_of, options) as vec,
        pytest.raises(
            WorkerDied, match=r"(?s)environment 1, .* ended with code 1; .*--max-restarts.*'a fault of ours'"
        ),
    ):
        play(vec, 5)


def test_a_flood_of_output_goes_to_a_log_with_a_cap(tmp_path: Path) -> None:
    path = tmp_path / "envs.log"
    factories = [partial(Hazard, kind="print"), Hazard]
    log = BoundedLog(path, 100_000)
    with WorkersVec(factories, SPEC, 2, seed_of, VectorOptions(num_workers=2, log=log)) as vec:
        assert play(vec, 5)[-1].valid.all()
    assert 100_000 <= path.stat().st_size < 101_000
    assert path.read_text().endswith("[the log is full; further output is dropped]\n")


def test_children_of_environments_end_with_their_worker(tmp_path: Path) -> None:
    notes = [tmp_path / "0", tmp_path / "1"]
    with make({i: {"kind": "grandchild", "note": str(note)} for i, note in enumerate(notes)}, 2) as vec:
        play(vec, 2)
        pids = [int(note.read_text()) for note in notes]
        assert all(psutil.pid_exists(pid) for pid in pids)
        os.kill(vec.pool.pids()[0], 9)
        assert vec.step(np.zeros(2, int)).valid.tolist() == [False, True]
        wait_until_gone(pids[:1])
        pids[0] = int(notes[0].read_text())
    wait_until_gone(pids)


def wait_until_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.slow
def test_a_worker_over_its_memory_limit_is_replaced(tmp_path: Path) -> None:
    hazard = {"kind": "leak", "once": str(tmp_path / "x")}
    with make({0: hazard}, memory_bytes=120_000_000) as vec:
        batches = play(vec, 5)
    assert batches[2].valid.tolist() == [False, False, True, True]
    greedy = make({0: hazard | {"once": ""}}, memory_bytes=120_000_000, max_restarts=0)
    with greedy as vec, pytest.raises(WorkerDied, match=r"uses \d+ MB, over its limit of 120 MB"):
        play(vec, 5)


def test_calls_out_of_order_are_refused() -> None:
    with make({}) as vec:
        with pytest.raises(UsageError, match=r"send\(\) before reset"):
            vec.send(np.zeros(4, int))
        vec.reset()
        with pytest.raises(UsageError, match=r"recv\(\) without send"):
            vec.recv()
        vec.send(np.zeros(4, int))
        with pytest.raises(UsageError, match=r"send\(\) twice without recv"):
            vec.send(np.zeros(4, int))
        with pytest.raises(UsageError, match="between send"):
            vec.reset()
        vec.recv()
        with pytest.raises(UsageError, match=r"actions have shape \(3,\)"):
            vec.send(np.zeros(3, int))
    with pytest.raises(UsageError, match="closed"):
        vec.reset()


def test_what_cannot_be_sent_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"can't be sent to a worker.*serial"):
        WorkersVec(lambda: Hazard(str(lock)), SPEC, 1, seed_of)


def test_first_ready_rows_do_not_wait_for_the_slowest(tmp_path: Path) -> None:
    factories = [partial(Hazard, kind="hang", at=1), Hazard]
    with WorkersVec(factories, SPEC, 2, seed_of, VectorOptions(num_workers=2, first_ready=True)) as vec:
        vec.reset()
        vec.send(np.zeros(2, int))
        for count in range(1, 6):
            batch = vec.recv()
            assert batch.env_ids.tolist() == [1]
            assert batch.obs[0][0, 0] == count
            vec.send(np.zeros(1, int), [1])
        vec.recv()


def test_an_environment_a_hundred_times_slower_costs_the_others_nothing(tmp_path: Path) -> None:
    note = str(tmp_path / "x")
    factories = [partial(Hazard, kind="slow", at=1, note=note), partial(Hazard, kind="fast", note=note)]
    with WorkersVec(factories, SPEC, 2, seed_of, VectorOptions(num_workers=2, first_ready=True)) as vec:
        vec.reset()
        vec.send(np.zeros(2, int))
        shares = [0, 0]
        while not shares[0]:
            batch = vec.recv()
            assert batch.valid.all()
            for env_id in batch.env_ids.tolist():
                shares[env_id] += 1
            vec.send(np.zeros(len(batch.env_ids), int), batch.env_ids.tolist())
        assert shares[1] >= 100
        assert vec.num_restarts == 0


def test_with_threads_at_the_pipes_as_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mission_gym.procs.pipes.CAN_POLL", False)
    hazards = {1: {"kind": "kill", "once": str(tmp_path / "x")}, 3: {"kind": "close hangs"}}
    with make(hazards) as vec:
        batches = play(vec, 5)
        assert len(vec.state()) == 4
    assert batches[2].valid.tolist() == [False, False, True, True]
    assert batches[4].obs[0][:, 0].tolist() == [2, 2, 5, 5]
    with (
        make({1: {"kind": "hang"}}, timeout_s=scale_timeout(0.4), max_restarts=0) as vec,
        pytest.raises(WorkerTimeout),
    ):
        play(vec, 5)


SCRIPT = """
import sys, os, gymnasium as gym, numpy as np
import mission_gym.vector.workers as w
from mission_gym.env.probe import probe
from mission_gym.vector.record import VectorOptions
class Local(gym.Env):
    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        assert "torch" not in sys.modules and os.environ["OMP_NUM_THREADS"] == "1"
        return np.ones(1, np.float32), 1.0, False, False, {}
options = VectorOptions(num_workers=2)
vec = w.WorkersVec(Local, probe(Local, "local"), 2, lambda env, n: n, options)
vec.reset()
assert vec.step(np.zeros(2, int)).valid.all()
print(*vec.pool.pids(), flush=True)
"""


def test_a_script_without_a_guard_works_and_its_workers_die_with_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "sys.stdin.read()\n")
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    process.communicate()
    wait_until_gone(pids)


def test_a_script_from_a_pipe_that_forgets_to_close_leaves_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-"], input=SCRIPT, capture_output=True, text=True, timeout=LONG_S, check=True
    )
    wait_until_gone([int(word) for word in done.stdout.split()])


class Moody(Hazard):
    """Raises in reset() where asked to, or takes its time; its infos tell the seed."""

    def reset(self, *, seed=None, options=None):
        if options and options["raise"]:
            raise RuntimeError("not today")
        time.sleep(0.2)
        obs, info = super().reset(seed=seed, options=None)
        return obs, info | {"seed": seed}


def test_an_error_of_one_worker_leaves_no_reply_of_another_behind() -> None:
    factories, limits = [Moody] * 2, Limits(LONG_S, max_restarts=0)
    with WorkersVec(
        factories, SPEC, 2, seed_of, VectorOptions(infos=True, num_workers=2, limits=limits)
    ) as vec:
        moods = [{"raise": True}, {"raise": False}]
        with pytest.raises(EnvFailure, match="not today"):
            vec.reset(seeds=[1, 2], options=moods)
        batch = vec.reset(seeds=[3, 4])
        assert [batch.infos[row]["seed"] for row in range(2)] == [3, 4]
        assert vec.step(np.array([0, 1])).valid.all()
