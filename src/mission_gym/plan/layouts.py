"""The layouts that a plan may choose: so many environments, on this backend, in so many processes.

Where their number is open, learning stays comparable: the rollout and the number of its gradient steps are
held, and no segment gets shorter than the horizon of the advantage's trace. Environments that wait, and whose
backend lets them do so side by side, may be more: then the rollout grows, minibatches keep their size, and so
the gradient steps for each transition are held.
"""

from __future__ import annotations

from math import log2

from mission_gym.plan.facts import Facts, Layout
from mission_gym.procs import MachineFacts
from mission_gym.vector.record import Backend

_MOST_ENVS = 1024


def list_layouts(facts: Facts) -> list[Layout]:
    """Every layout that the wishes allow, the fixed rules' own first."""
    wishes, ruled = facts.wishes, facts.wishes.layout
    layouts = [ruled]
    if not wishes.open_envs:
        layouts += spread(facts, ruled.n_envs)
    else:
        for n_envs in _list_sizes(facts):
            layouts += spread(facts, n_envs)
        for backend in wishes.backends:
            for n_envs in _list_grown(facts, backend):
                layouts += [each for each in spread(facts, n_envs) if each.backend == backend]
    return _leave_possible(facts, list(dict.fromkeys(layouts)))


def spread(facts: Facts, n_envs: int) -> list[Layout]:
    """The ways to spread this many environments over backends and workers."""
    wishes, ruled = facts.wishes, facts.wishes.layout
    layouts = []
    for backend in wishes.backends:
        workers = _list_workers(facts, backend, n_envs) if backend.chooses_workers else [1]
        if backend == ruled.backend and backend.chooses_workers and not wishes.open_workers:
            workers = [min(ruled.num_workers, n_envs)]
        sizes = _fit_steps(facts, backend, n_envs)
        layouts += [
            Layout(backend, number, n_envs, sizes[0], ruled.num_agents, sizes[1]) for number in workers
        ]
    return _leave_possible(facts, layouts)


def may_grow(facts: Facts, backend: Backend) -> bool:
    """Whether the rollout may grow with the number of environments."""
    return facts.env.waits and backend.for_waiting


def _fit_steps(facts: Facts, backend: Backend, n_envs: int) -> tuple[int, int | None]:
    """Steps of each environment, and the minibatches of a rollout that grew."""
    wishes, ruled = facts.wishes, facts.wishes.layout
    if not wishes.open_steps:
        steps = ruled.n_steps_per_env
        return steps, wishes.minibatch if may_grow(facts, backend) and n_envs > ruled.n_envs else None
    steps = ruled.n_envs * ruled.n_steps_per_env // n_envs
    if steps >= wishes.min_steps or not may_grow(facts, backend):
        return max(1, steps), None
    steps, size = wishes.min_steps, wishes.minibatch or 1
    while steps * n_envs * ruled.num_agents % size:
        steps += 1
    return steps, wishes.minibatch


def _list_sizes(facts: Facts) -> list[int]:
    """Numbers of environments that hold the rollout, while no segment gets too short."""
    wishes = facts.wishes
    if not wishes.open_steps:
        sizes = [1 << power for power in range(int(log2(_MOST_ENVS)) + 1)]
        batch, steps = wishes.batch_size or 1, wishes.layout.n_steps_per_env * wishes.layout.num_agents
        return [number for number in sizes if number * steps % batch == 0]
    rollout = wishes.layout.rollout // wishes.layout.num_agents
    most = min(rollout // wishes.min_steps, _MOST_ENVS)
    return [number for number in range(1, most + 1) if rollout % number == 0]


def _list_grown(facts: Facts, backend: Backend) -> list[int]:
    """Numbers of environments whose rollout is larger than the fixed rules', up to the largest allowed."""
    wishes, ruled = facts.wishes, facts.wishes.layout
    if not may_grow(facts, backend) or not wishes.open_steps:
        return []
    sizes = [1 << power for power in range(int(log2(backend.most_envs)) + 1)]
    grown = {number: _fit_steps(facts, backend, number)[0] for number in sizes}
    rollouts = {number: number * steps * ruled.num_agents for number, steps in grown.items()}
    return [number for number in sizes if ruled.rollout < rollouts[number] <= wishes.max_rollout]


def _leave_possible(facts: Facts, layouts: list[Layout]) -> list[Layout]:
    """Without those that put several into a process where only one can be built; all, if that leaves none."""
    if not facts.env.one_per_process:
        return layouts
    return [each for each in layouts if each.num_workers == each.n_envs] or layouts


def _list_workers(facts: Facts, backend: Backend, n_envs: int) -> list[int]:
    """Numbers of processes worth a thought: powers of two, all fast cores, all cores; more if environments
    wait for one another in them."""
    cores, env = facts.machine.usable_cores, facts.env
    if env.one_per_process:
        return [n_envs]
    most = cores
    if env.waits and not backend.for_waiting:
        most = max(cores, min(4 * cores, int(cores / max(env.cpu_share, 0.05))))
    most = min(most, n_envs)
    wanted = {count_fast(facts.machine), cores, most, *(1 << power for power in range(most.bit_length()))}
    return sorted(number for number in wanted if number <= most)


def count_fast(machine: MachineFacts) -> int:
    """Usable cores that are not efficiency cores, 1 at least."""
    return max(1, min(machine.usable_cores, machine.allowed_cores - machine.efficiency_cores))
