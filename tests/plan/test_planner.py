"""Plans for invented machines: 1 to 256 cores, no card to several, 4 to 512 GB, quotas, slow cores."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest

from measurements import GB, machine
from mission_gym.errors import ConfigError
from mission_gym.plan.facts import ActCost, EnvFacts, PlanFacts, PlanInput, RunLayout, UpdateCost
from mission_gym.plan.memory import fits, predict_memory
from mission_gym.plan.planner import (
    choose,
    choose_update,
    list_layouts,
    make_scaling,
    model_collect_s,
    predict_collect_s,
    predict_rate,
    shortlist,
)
from mission_gym.procs import MachineFacts
from mission_gym.vector.backends import load_backend

SERIAL, WORKERS, THREADS, AIO = map(load_backend, ("serial", "workers", "threads", "aio"))
NUMPY = UpdateCost("cpu", "numpy", 1, 20e-6)
OURS = PlanInput(RunLayout(WORKERS, 2, 8, 128), (WORKERS,), open_envs=True)


def facts(
    of: MachineFacts,
    env: EnvFacts,
    inputs: PlanInput = OURS,
    updates: tuple[UpdateCost, ...] = (NUMPY,),
    trials: Mapping[RunLayout, float] | None = None,
) -> PlanFacts:
    return PlanFacts(of, env, ActCost(), updates, inputs, trials or {})


MACHINES = {
    "2 cores, 4 GB": machine(2, 4),
    "8 cores": machine(8),
    "64 cores, quota of 2": machine(64, 64, cpu_quota=2.0),
    "16 threads of 8 cores": machine(16, 32, physical_cores=8),
    "12 cores, 4 of them slow": machine(12, 16, efficiency_cores=4),
    "256 cores, 512 GB": machine(256, 512),
    "1 core, 4 GB": machine(1, 4),
}
ENVS = {
    "cheap": EnvFacts(5e-6),
    "usual": EnvFacts(100e-6, spread=0.3, slowdown=1.2),
    "slow": EnvFacts(5e-3, spread=1.0, slowdown=1.5),
    "waits": EnvFacts(20e-3, cpu_share=0.01),
    "large": EnvFacts(1e-3, memory_bytes=GB // 4),
}


@pytest.mark.parametrize(("of", "env"), list(product(MACHINES, ENVS)))
@pytest.mark.parametrize("gamma", [0.9, 0.99])
def test_learning_stays_comparable_and_everything_fits(of: str, env: str, gamma: float) -> None:
    inputs = replace(OURS, backends=(WORKERS, THREADS, AIO), trace_decay=0.95 * gamma, minibatch=64)
    given = facts(MACHINES[of], ENVS[env], inputs)
    plan = choose(given)
    layout = plan.layout
    if ENVS[env].waits and layout.rollout > OURS.default.rollout:
        assert (layout.batch_size, layout.rollout % 64) == (64, 0)  # the gradient steps for a transition
        assert layout.backend.for_waiting
    else:
        assert (layout.rollout, layout.batch_size) == (OURS.default.rollout, None)
    assert layout.n_steps_per_env >= inputs.min_steps == {0.9: 7, 0.99: 17}[gamma]
    assert layout.num_workers <= layout.n_envs
    if not ENVS[env].waits:
        assert layout.num_workers <= max(MACHINES[of].usable_cores, OURS.default.num_workers)
    assert fits(given.machine, given.env, inputs, layout)
    assert plan.memory_bytes == predict_memory(given.env, inputs, layout)
    assert plan == choose(given)
    assert bool(plan.changes) == (layout.n_envs != 8)
    assert sum(point["knee"] for point in make_scaling(given, plan.update)) == 1


@pytest.mark.parametrize(
    ("of", "env", "workers"),
    [
        ("8 cores", "slow", 8),
        ("64 cores, quota of 2", "slow", 2),
        ("12 cores, 4 of them slow", "slow", 8),  # a block waits for its slowest worker
        ("256 cores, 512 GB", "slow", 32),  # as many as hold the rollout in segments of the horizon
        ("1 core, 4 GB", "slow", 1),
    ],
)
def test_a_worker_for_each_core_that_helps(of: str, env: str, workers: int) -> None:
    inputs = replace(OURS, default=RunLayout(WORKERS, 1, 8, 128))
    assert choose(facts(MACHINES[of], ENVS[env], inputs)).layout.num_workers == workers


def test_many_slow_cores_are_worth_having() -> None:
    few = machine(20, efficiency_cores=16)
    inputs = replace(OURS, default=RunLayout(WORKERS, 4, 40, 32), open_envs=False)
    assert choose(facts(few, EnvFacts(5e-3), inputs)).layout.num_workers == 20


WAITING = replace(OURS, backends=(WORKERS, THREADS), minibatch=64, overlaps=lambda layout, update: True)


@pytest.mark.parametrize(
    ("step_s", "cpu_share", "inputs", "expected"),
    [
        # The learner has 20 us for each transition, so 50,000 of them a second are enough.
        (20e-3, 0.001, {}, (THREADS, 1, 512, 17, 64)),  # one process is full
        (20e-3, 0.001, {"backends": (WORKERS, AIO)}, (AIO, 2, 1024, 17, 64)),  # and a second one
        (20e-3, 0.001, {"backends": (WORKERS, THREADS, AIO)}, (AIO, 2, 1024, 17, 64)),
        (1.0, 0.0001, {"backends": (WORKERS, AIO)}, (AIO, 1, 4096, 17, 64)),  # as many as there may be
        (1.0, 0.0001, {}, (THREADS, 1, 1024, 17, 64)),
        (20e-3, 0.02, {"backends": (WORKERS, AIO)}, (AIO, 4, 256, 17, 64)),
        (2e-3, 0.01, {"backends": (WORKERS, AIO)}, (AIO, 2, 128, 17, 64)),
        (20e-3, 0.001, {"max_rollout": 2048}, (THREADS, 1, 64, 17, 64)),
        (20e-3, 0.001, {"max_rollout": 1024}, (THREADS, 1, 32, 32, None)),  # the rollout can't grow
        (20e-3, 0.001, {"minibatch": None}, (THREADS, 1, 512, 17, None)),  # dqn: no minibatches of it
        (20e-3, 0.001, {"minibatch": 48}, (THREADS, 1, 512, 18, 48)),
        (20e-3, 0.001, {"open_steps": False}, (THREADS, 1, 512, 128, 64)),
        (20e-3, 0.001, {"open_envs": False, "backends": (THREADS,)}, (THREADS, 1, 8, 128, None)),
    ],
)
def test_environments_that_wait_grow_until_a_core_is_full(
    step_s: float, cpu_share: float, inputs: dict[str, object], expected: tuple[object, ...]
) -> None:
    given = facts(machine(4, 64), EnvFacts(step_s, cpu_share), replace(WAITING, **inputs))
    chosen = choose(given).layout
    found = (chosen.backend, chosen.num_workers, chosen.n_envs, chosen.n_steps_per_env, chosen.batch_size)
    assert found == expected


def test_processes_for_environments_that_wait_are_not_limited_by_cores() -> None:
    """If only processes were requested, many of them share a core."""
    inputs = replace(OURS, default=RunLayout(WORKERS, 2, 32, 32), open_envs=False)
    assert choose(facts(machine(2, 16), EnvFacts(20e-3, 0.05), inputs)).layout.num_workers == 32


def test_a_larger_rollout_must_gain_a_tenth() -> None:
    """32 environments make 1,500 steps a second, and the learner 1,600."""
    default = RunLayout(AIO, 1, 8, 4)
    inputs = replace(
        WAITING, default=default, backends=(AIO,), minibatch=None, trace_decay=0.0, max_rollout=8192
    )
    slow = UpdateCost("cpu", "compiled", 1, 1 / 1600)
    plan = choose(facts(machine(2), EnvFacts(20e-3, 0.001), inputs, (slow,)))
    assert (plan.layout.n_envs, plan.layout.n_steps_per_env) == (32, 1)
    reason = "more need a larger rollout, with fewer updates, and gain less than 10 %"
    assert f"32 environments: {reason}" in plan.reasons


def test_environments_that_wait_grow_until_memory_ends() -> None:
    plan = choose(facts(machine(4, 4), EnvFacts(20e-3, 0.001, memory_bytes=GB // 64), WAITING))
    assert (plan.layout.n_envs, plan.layout.batch_size) == (128, 64)
    assert any("128 environments: more would need rollouts of more than" in each for each in plan.reasons)
    assert plan.changes == [
        "n_envs 8 -> 128",
        "n_steps_per_env 128 -> 17",
        "the rollout 1024 -> 2176; minibatches of 64 keep the gradient steps per transition",
    ]
    assert any("and waits 100 % of it" in reason for reason in plan.reasons)


def test_a_rollout_does_not_grow_for_a_small_gain() -> None:
    slow = UpdateCost("cpu", "torch", 1, 0.62e-3)  # 32 environments make 1,500 steps a second
    chosen = choose(facts(machine(4), EnvFacts(20e-3, 0.001), WAITING, updates=(slow,))).layout
    assert (chosen.n_envs, chosen.rollout) == (32, 1024)
    quick = replace(slow, step_s=0.3e-3)
    assert choose(facts(machine(4), EnvFacts(20e-3, 0.001), WAITING, updates=(quick,))).layout.n_envs == 128


@pytest.mark.parametrize(("step_s", "backend"), [(3e-6, SERIAL), (1e-3, WORKERS)])
def test_cheap_steps_stay_in_process(step_s: float, backend: str) -> None:
    inputs = PlanInput(RunLayout(SERIAL, 1, 8, 32), (SERIAL, WORKERS))
    plan = choose(facts(machine(4), EnvFacts(step_s), inputs))
    assert plan.layout.backend == backend
    assert plan.layout.n_envs == 8
    assert "8 environments: fixed by the config" in plan.reasons


def test_given_steps_and_workers_stay() -> None:
    inputs = replace(OURS, open_steps=False, open_workers=False)
    layouts = list_layouts(facts(machine(16), ENVS["slow"], inputs))
    assert {each.n_steps_per_env for each in layouts} == {128}
    assert {each.num_workers for each in layouts} == {1, 2}  # one environment has one worker
    plan = choose(facts(machine(16), ENVS["waits"], replace(inputs, backends=(THREADS, WORKERS))))
    assert plan.changes[-1] == f"the rollout 1024 -> {plan.layout.rollout}"


def test_a_small_gain_does_not_leave_the_fixed_rules() -> None:
    ruled, rival = RunLayout(SERIAL, 1, 8, 32), RunLayout(WORKERS, 2, 8, 32)
    inputs = PlanInput(ruled, (SERIAL, WORKERS))
    for seconds, chosen in ((95e-6, ruled), (40e-6, rival)):
        trials = {ruled: 100e-6, rival: seconds}
        assert choose(facts(machine(2), EnvFacts(80e-6), inputs, trials=trials)).layout == chosen


def test_trials_scale_the_model() -> None:
    near, far = RunLayout(WORKERS, 4, 8, 128), RunLayout(WORKERS, 4, 32, 32)
    given = facts(machine(4), ENVS["usual"])
    doubled = replace(given, trials={near: 2.0 * model_collect_s(given, near)})
    assert predict_collect_s(doubled, near) == pytest.approx(2.0 * model_collect_s(given, near))
    assert predict_collect_s(doubled, far) == pytest.approx(2.0 * model_collect_s(given, far))


def test_few_layouts_are_tried_the_fixed_rules_first() -> None:
    inputs = replace(OURS, backends=(WORKERS, THREADS))
    tried = shortlist(facts(machine(16), ENVS["slow"], inputs), 4)
    assert tried[0] == inputs.default
    assert len(set(tried)) == 4
    assert {each.backend for each in tried} == {WORKERS}  # threads would take turns
    both = shortlist(facts(machine(16), ENVS["waits"], inputs), 3)
    assert {each.backend for each in both} == {WORKERS, THREADS}


@pytest.mark.parametrize(
    ("updates", "kernel"),
    [
        ((NUMPY, UpdateCost("cpu", "torch", 8, 19e-6)), "numpy"),  # not clearly faster
        ((NUMPY, UpdateCost("cpu", "torch", 8, 10e-6)), "torch"),
        ((NUMPY, UpdateCost("cuda", "torch", 1, 90e-6)), "numpy"),  # a card that is slower
    ],
)
def test_the_device_is_chosen_by_speed(updates: tuple[UpdateCost, ...], kernel: str) -> None:
    given = facts(machine(8), ENVS["usual"], updates=updates)
    assert choose_update(given).kernel == kernel
    plan = choose(given)
    collect_s = predict_collect_s(given, plan.layout)
    assert plan.steps_per_s == pytest.approx(1 / (collect_s + plan.update.step_s))
    assert any(str(updates[1]) in reason for reason in plan.reasons)


def test_a_device_that_learns_beside_collecting_wins_at_equal_speed() -> None:
    """Both phases take 100 us: in turns 5,000 steps/s, side by side 10,000."""
    card = UpdateCost("cuda", "torch", 1, 100e-6)
    inputs = replace(OURS, open_envs=False, overlaps=lambda layout, update: update.device == "cuda")
    given = facts(machine(2), EnvFacts(1e-6), inputs, (replace(NUMPY, step_s=100e-6), card))
    assert choose_update(replace(given, trials={inputs.default: 100e-6})) == card


def test_a_learner_beside_workers_on_every_core_is_counted() -> None:
    card = UpdateCost("cuda", "torch", 1, 5e-6)
    inputs = replace(OURS, overlaps=lambda layout, update: True)
    given = facts(machine(4), ENVS["usual"], inputs, (card,))
    slower = {
        workers: predict_rate(given, layout, card) * predict_collect_s(given, layout)
        for workers in (3, 4)
        for layout in [RunLayout(WORKERS, workers, 12, 128)]
    }
    assert slower[3] == pytest.approx(1.0)
    assert slower[4] < 0.99


def test_memory_bounds_the_environments() -> None:
    inputs = replace(OURS, default=RunLayout(WORKERS, 2, 8, 128), base_bytes=GB // 2)
    given = facts(machine(8, 4), EnvFacts(5e-3, memory_bytes=GB), inputs)
    plan = choose(given)
    assert plan.layout.n_envs == 2
    assert [point["fits"] for point in make_scaling(given, plan.update)[:4]] == [True, True, False, False]


def test_what_does_not_fit_is_refused_with_the_nearest_that_does() -> None:
    fixed = replace(OURS, open_envs=False, base_bytes=GB // 2)
    with pytest.raises(ConfigError, match=r"needs 9\.2 GB and 4\.3 GB are free.*use n_envs=3 or fewer"):
        choose(facts(machine(8, 4), EnvFacts(5e-3, memory_bytes=GB), fixed))
    images = replace(fixed, step_bytes=84 * 84 * 4)
    small = machine(8, 16, shared_free_bytes=64 << 20)
    with pytest.raises(ConfigError, match=r"0\.07 GB of them shared memory.*use n_envs=\d or fewer"):
        choose(facts(small, EnvFacts(5e-3), replace(images, default=RunLayout(WORKERS, 8, 32, 256))))
    with pytest.raises(ConfigError, match=r"use n_envs=1 with n_steps_per_env=2048"):
        choose(facts(small, EnvFacts(5e-3), replace(images, default=RunLayout(WORKERS, 1, 1, 4096))))
    with pytest.raises(ConfigError, match="not even one step of one environment fits"):
        choose(facts(machine(8, 0.1), EnvFacts(5e-3), fixed))


def test_the_slower_phase_counts_where_both_run_at_once() -> None:
    card = UpdateCost("cuda", "torch", 1, 1e-3)
    on_card = replace(OURS, overlaps=lambda layout, update: update.device == "cuda")
    given = facts(machine(4), ENVS["usual"], on_card)
    assert predict_rate(given, OURS.default, card) == pytest.approx(1000.0)
    collect_s = predict_collect_s(given, OURS.default)
    assert predict_rate(given, OURS.default, NUMPY) == pytest.approx(1 / (collect_s + NUMPY.step_s))


@pytest.mark.parametrize("open_envs", [True, False])
def test_what_can_not_be_built_twice_gets_a_worker_for_each(open_envs: bool) -> None:
    alone = EnvFacts(1e-3, one_per_process=True)
    inputs = replace(OURS, backends=(SERIAL, WORKERS, THREADS), open_envs=open_envs)
    given = facts(machine(4), alone, inputs)
    assert all(each.num_workers == each.n_envs for each in list_layouts(given))
    plan = choose(given)
    assert plan.layout.num_workers == plan.layout.n_envs
    assert any("one per worker" in reason for reason in plan.reasons)
    assert all(point["num_workers"] == point["n_envs"] for point in make_scaling(given, plan.update))
    fixed = replace(inputs, default=RunLayout(WORKERS, 2, 8, 128), open_workers=False, open_envs=False)
    assert list_layouts(replace(given, inputs=fixed))[0] == fixed.default  # asked for: it is told there
