"""Real environments timed in real children."""

import sys
from subprocess import PIPE, Popen

import pytest
from gymnasium import spaces

from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.pace import time_steps
from mission_gym.env.probe import probe
from mission_gym.errors import EnvContractError, EnvFailure, WorkerDied
from mission_gym.plan.env_costs import measure_env
from mission_gym.plan.facts import EnvFacts
from timeouts import scale_timeout
from toys import Identity, Toy

TOYS = "toys:"


def measure(name: str, children: int = 1, **kwargs: object) -> EnvFacts:
    factory = make_factory(EnvRequest(name, kwargs))
    harmless = {"after": 1000} if name.endswith("Faulty") else kwargs
    spec = probe(make_factory(EnvRequest(name, harmless)), name)
    return measure_env(factory, spec, children, 0.02)


def test_waiting_is_told_from_computing() -> None:
    facts = measure("mission_gym_bench.synthetic:Burn", children=2, wait_s=0.01)
    assert facts.waits
    assert facts.step_s >= 0.01
    assert facts.slowdown >= 1.0
    assert facts.worker_bytes > 0
    assert not measure("mission_gym_bench.synthetic:Burn", spins=20_000).waits


class Delegating(Identity):
    """Lets a process of its own compute, as one that drives a browser does."""

    code = "import sys\nfor line in sys.stdin: sum(range(400_000)); print(flush=True)"

    def __init__(self) -> None:
        super().__init__()
        command = [sys.executable, "-S", "-c", self.code]
        self.helper = Popen(command, stdin=PIPE, stdout=PIPE, text=True)

    def step(self, action: object) -> tuple[object, float, bool, bool, dict[str, object]]:
        assert self.helper.stdin is not None
        assert self.helper.stdout is not None
        self.helper.stdin.write("go\n")
        self.helper.stdin.flush()
        self.helper.stdout.readline()
        return super().step(action)

    def close(self) -> None:
        self.helper.kill()
        self.helper.communicate()


def test_what_an_environment_lets_others_compute_is_not_waiting_and_has_its_weight() -> None:
    facts = measure_env(Delegating, probe(Delegating, "toy"), 1, scale_timeout(0.3))
    assert not facts.waits
    assert facts.memory_bytes > 2_000_000


def test_masks_are_obeyed_while_timing() -> None:
    factory = make_factory(EnvRequest(f"{TOYS}DictMask"))  # raises at a forbidden action
    timing = time_steps(factory, probe(factory, "toy"), 0.05)
    assert timing.num_steps >= 4
    assert timing.step_s > 0


@pytest.mark.parametrize(
    ("fail", "error", "message"),
    [
        ("raise", EnvFailure, "the simulator fell over"),
        ("reset", EnvFailure, "the map file is missing"),
        ("constructor", EnvContractError, "no licence for the simulator"),
    ],
)
def test_an_environment_that_fails_is_named(fail: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        measure(f"{TOYS}Faulty", fail=fail)


def test_an_environment_that_dies_is_named() -> None:
    spec = probe(make_factory(EnvRequest("CartPole-v1")), "CartPole-v1")
    with pytest.raises(
        WorkerDied, match=r"CartPole-v1: the process that timed the environment ended with code 7"
    ):
        measure_env(lambda: __import__("os")._exit(7), spec, 1, 0.02)


class Alone(Toy):
    """As emulators that allow one instance in a process."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)
    num_built = 0

    def __init__(self) -> None:
        Alone.num_built += 1
        if Alone.num_built > 1:
            raise RuntimeError("one per process")

    def observe(self) -> int:
        return 0

    def step(self, action: object) -> object:
        return self.advance(0.0)


def test_what_can_not_be_built_twice_is_known() -> None:
    factory = make_factory(Alone)
    spec = probe(factory, "alone")
    assert measure_env(factory, spec, 1, 0.02).one_per_process
    assert not measure(f"{TOYS}Identity").one_per_process
