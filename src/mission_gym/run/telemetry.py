"""What a run measures while it trains: phases, use of the machine, the timeline and the verdict.

Nothing here changes the training. Seconds of a role are split into phases that add up to its wall time. A
coarse phase contains the fine ones of its role, so its remainder is a phase too: copying rows in `collect`,
gradient steps in `update`. Time outside all phases is `idle`.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import Any, Self

from mission_gym.check.devices import time_product
from mission_gym.clock import ROLES, PhaseClock
from mission_gym.config.schema import Settled
from mission_gym.data import EnvSpec, Phases, Progress, Span
from mission_gym.learner.contract import Learner
from mission_gym.names import BRIDGE
from mission_gym.procs import usable_cores
from mission_gym.run.build import algorithm_of
from mission_gym.run.failures import FailureLog
from mission_gym.run.sampler import MachineSampler, Probe, Use, load_nvml, open_gpu
from mission_gym.run.snapshot import RunContext
from mission_gym.run.verdict import VerdictFacts, judge
from mission_gym.vector.backends import load_backend

_NUM_UPDATES = 20  # of a timeline
_NUM_TIMELINES = 20  # in a run, about
_MATMUL_SIZES = {"cpu": 512, "mps": 1024, "cuda": 2048}  # of the square product that is timed
_MATMUL_TIMES = 10  # milliseconds each; on a busy machine the best of a few is far from the best possible
_NUM_SPANS = 1000  # of a row, for the use of the machine by phase


def account(phases: Phases, wall_s: float) -> dict[str, dict[str, float]]:
    """Seconds by role and phase; the phases of a role, including idle, add up to `wall_s`."""
    table: dict[str, dict[str, float]] = {
        role: {name: phases.seconds.get((role, name), 0.0) for name in names} for role, names in ROLES.items()
    }
    collector, learner = table["collector"], table["learner"]
    collect_s = phases.seconds.get(("collector", "collect"), 0.0)
    # Workers use their own clocks, so the remainder may be slightly negative.
    rest_s = max(0.0, collect_s - collector["act"] - collector["env"] - collector["wait"])
    collector["lost"] = min(collector["lost"], rest_s)  # several workers may be waited for at once
    collector["copy"] = rest_s - collector["lost"]
    learner["update"] -= learner["values"]
    for row in table.values():
        row["idle"] = wall_s - sum(row.values())
    return table


def compute_overlap(collect_s: float, learn_s: float, wall_s: float) -> float | None:
    """The share of collecting and learning that ran concurrently: 0 if they alternate, at most 0.5.

    wall_s: without the time of the main role.
    """
    both_s = collect_s + learn_s
    return max(0.0, 1.0 - wall_s / both_s) if both_s > 0 else None


def phase_metrics(phases: Phases, wall_s: float) -> dict[str, float]:
    """The keys `phase/*` of a row over the last `wall_s` seconds."""
    table = account(phases, wall_s)
    collector, learner, main = table["collector"], table["learner"], table["main"]
    collect_s, learn_s = wall_s - collector["idle"], wall_s - learner["idle"]
    seconds = {"wall": wall_s, "collect": collect_s, "learn": learn_s}
    for role, row in table.items():
        seconds |= {f"{role}_idle" if name == "idle" else name: spent for name, spent in row.items()}
    seconds["collect_cpu"] = phases.seconds.get(("collector", "cpu"), 0.0)
    metrics = {f"phase/{name}_s": round(spent, 6) for name, spent in seconds.items()}
    overlap = compute_overlap(collect_s, learn_s, main["idle"])
    return metrics if overlap is None else metrics | {"phase/overlap": round(overlap, 4)}


class Telemetry:
    """A context manager around the training of one process. clock: of the main role."""

    def __init__(self, context: RunContext, failures: FailureLog) -> None:
        config = context.config
        self.clock = PhaseClock("main")
        self._context, self.failures = context, failures
        self.sampler = MachineSampler(_make_probes(config.compute.device))
        self._every = max(1, config.run.timesteps // config.rollout_size // _NUM_TIMELINES)
        self._updates: deque[tuple[int, list[Span]]] = deque(maxlen=_NUM_UPDATES)
        self._row, self._total = Phases(), Phases()
        self._row_at = time.perf_counter()
        self._wall_s = 0.0
        self._use = Use()
        self._facts: VerdictFacts | None = None
        self._first_gradient_steps = 0

    def __enter__(self) -> Self:
        context = self._context
        self._facts = make_facts(context.config, context.spec, context.learner)
        self._first_gradient_steps = context.learner.gradient_steps
        self.sampler.__enter__()
        self._row_at = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.sampler.__exit__(*error)

    def see(self, progress: Progress) -> None:
        """Add an update, and the phases of the main role since the last one."""
        phases = progress.phases | self.clock.take()
        self._row |= phases
        del self._row.spans[:-_NUM_SPANS]
        self._updates.append((progress.update, phases.spans))

    @property
    def env_cpu_is_known(self) -> bool:
        """Whether the timed process steps the environments."""
        return self._facts is not None and self._facts.env_cpu_is_known

    def take_row(self) -> dict[str, float]:
        """Phases and use of the machine since the last row."""
        self.clock.split()  # a row is taken within the phase `record`
        # The clocks still hold the phases that a stop interrupted.
        clocks = (self.clock, self._context.collector.clock, self._context.learner.clock)
        phases = reduce(or_, (clock.take() for clock in clocks), self._row)
        before, self._row_at = self._row_at, time.perf_counter()
        self._row = Phases()
        self._total |= Phases(phases.seconds)
        self._wall_s += self._row_at - before
        samples, use = self.sampler.take(), Use()
        use.add(samples, phases.spans)
        self._use.add(samples, phases.spans)
        return phase_metrics(phases, self._row_at - before) | use.metrics()

    def make_timeline(self, update: int | None = None) -> dict[str, Any] | None:
        """The fields of a `timeline` event if one is due after this update, or at the end (None)."""
        if not self._updates or (update is not None and update % self._every):
            return None
        spans = [span for _, spans in self._updates for span in spans]
        origin = min((span.start for span in spans), default=0.0)
        return {
            "time/updates": [self._updates[0][0], self._updates[-1][0]],
            "time/spans": [
                [span.role, span.phase, round(span.start - origin, 6), round(span.end - origin, 6)]
                for span in sorted(spans, key=lambda span: span.start)
            ],
            "time/cores": self._use.cores(),
        }

    def summarize(self) -> dict[str, Any]:
        """This process's use of the machine, and the verdict."""
        phases, use = phase_metrics(self._total, self._wall_s), self._use.metrics()
        verdict = None
        if self._facts is not None:
            made = self._context.learner.gradient_steps - self._first_gradient_steps
            hung = self.failures.describe_hung()
            verdict = judge(phases, use, replace(self._facts, gradient_steps=made, hung=hung))
        return {"time/machine": use, "time/verdict": verdict and verdict.model_dump()}


def make_facts(config: Settled, spec: EnvSpec, learner: Learner) -> VerdictFacts:
    """The facts about a run that its verdict needs in addition to times."""
    num_parameters = learner.num_weights
    algorithm, backend, compute = algorithm_of(config), load_backend(config.vector.vector), config.compute
    size = _MATMUL_SIZES[compute.device.partition(":")[0]]
    is_flat = algorithm.layout(config, spec).has_numpy_form
    return VerdictFacts(
        config=config,
        backend=backend,
        cores=usable_cores(),
        n_epochs=algorithm.num_epochs(config),
        num_parameters=num_parameters,
        # Environments behind a bridge compute in the processes of their games, which are not timed.
        env_cpu_is_known=(
            backend.cpu_is_known
            and (backend.runs_here or compute.acting == "numpy")
            and not config.env.env_id.startswith(BRIDGE)
        ),
        flops_per_sample=algorithm.flops_per_parameter(config) * num_parameters if is_flat else None,
        matmul_flops_per_s=2.0 * size**3 / time_product(compute.device, size, _MATMUL_TIMES),
    )


def _make_probes(device: str) -> dict[str, Probe]:
    """The sampler's probes of the learner's device."""
    if device == "cpu":
        return {}
    import torch

    if device == "mps":
        return {"gpu_memory_bytes": torch.mps.driver_allocated_memory}
    uuid = torch.cuda.get_device_properties(device).uuid
    # A MIG slice has its own name. NVML reports the memory of the whole GPU, torch that of this process.
    return open_gpu(load_nvml(), f"GPU-{uuid}", f"MIG-{uuid}") | {
        "gpu_memory_bytes": partial(torch.cuda.memory_reserved, device)
    }
