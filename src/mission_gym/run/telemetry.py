"""What a run knows about its own speed: phases, the machine's use, the timeline and the verdict.

The session tells it every update and asks it for rows; it never changes what is trained.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, replace
from functools import partial, reduce
from operator import or_
from typing import Any, Self

from mission_gym.check.devices import time_product
from mission_gym.clock import PhaseClock
from mission_gym.config.schema import Settled
from mission_gym.data import EnvSpec, Phases, Progress, Span
from mission_gym.learner.contract import Learner
from mission_gym.names import BRIDGE
from mission_gym.procs import usable_cores
from mission_gym.rollout.collector import BlockCollector
from mission_gym.run.accounting import phase_metrics
from mission_gym.run.assemble import algorithm_of
from mission_gym.run.gpu import Probe, load_nvml, open_gpu
from mission_gym.run.sampler import MachineSampler, Use
from mission_gym.run.verdict import VerdictFacts, judge
from mission_gym.vector.backends import load_backend

_NUM_UPDATES = 20  # of a timeline
_NUM_TIMELINES = 20  # in a run, about
_MATMUL_ROWS = {"cpu": 512, "mps": 1024, "cuda": 2048}  # of the square product that is timed
_MATMUL_TIMES = 10  # milliseconds each; on a busy machine the best of few is far from its best
_NUM_SPANS = 1000  # of a row, for the use of the machine by phase


class Telemetry:
    """A context manager around the training of one process; `clock` is for what the main role does."""

    def __init__(self, config: Settled, spec: EnvSpec, collector: BlockCollector, learner: Learner) -> None:
        self.clock = PhaseClock("main")
        self._config, self._spec, self._collector, self._learner = config, spec, collector, learner
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
        self._facts = make_facts(self._config, self._spec, self._learner)
        self._first_gradient_steps = self._learner.gradient_steps
        self.sampler.__enter__()
        self._row_at = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.sampler.__exit__(*error)

    def see(self, progress: Progress) -> None:
        """Count an update, and what the main role did since the last one."""
        phases = progress.phases | self.clock.take()
        self._row |= phases
        del self._row.spans[:-_NUM_SPANS]
        self._updates.append((progress.update, phases.spans))

    @property
    def env_cpu_is_known(self) -> bool:
        """Whether environments are stepped by the process that is timed."""
        return self._facts is not None and self._facts.env_cpu_is_known

    def take_row(self) -> dict[str, float]:
        """Phases and the machine's use since the last row."""
        self.clock.split()  # a row is taken while it is recorded
        # What a stop cut short is still in the clocks.
        clocks = (self.clock, self._collector.clock, self._learner.clock)
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
        """The `timeline` event's fields, where one is due after this update, or at the end (None)."""
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
            made = self._learner.gradient_steps - self._first_gradient_steps
            verdict = judge(phases, use, replace(self._facts, gradient_steps=made))
        return {"time/machine": use, "time/verdict": verdict and asdict(verdict)}


def make_facts(config: Settled, spec: EnvSpec, learner: Learner) -> VerdictFacts:
    """What the verdict must know of a run beside its times."""
    num_parameters = learner.num_weights
    algorithm, backend, compute = algorithm_of(config), load_backend(config.vector.vector), config.compute
    rows = _MATMUL_ROWS[compute.device.partition(":")[0]]
    is_mlp = algorithm.layout(config, spec).has_numpy_form
    return VerdictFacts(
        config=config,
        backend=backend,
        cores=usable_cores(),
        n_epochs=algorithm.num_epochs(config),
        num_parameters=num_parameters,
        env_cpu_is_known=(
            backend.cpu_is_known
            and (backend.runs_here or compute.acting == "numpy")
            and not _is_elsewhere(config)
        ),
        flops_per_sample=algorithm.flops_per_parameter(config) * num_parameters if is_mlp else None,
        matmul_flops_per_s=2.0 * rows**3 / time_product(compute.device, rows, _MATMUL_TIMES),
    )


def _is_elsewhere(config: Settled) -> bool:
    """Whether the environments compute in processes of games, which are not those that are timed."""
    return config.env.env_id.startswith(BRIDGE)


def _make_probes(device: str) -> dict[str, Probe]:
    """What the sampler asks of the learner's device."""
    if device == "cpu":
        return {}
    import torch

    if device == "mps":
        return {"gpu_memory_bytes": torch.mps.driver_allocated_memory}
    uuid = torch.cuda.get_device_properties(device).uuid
    # A part of a card (MIG) has a name of its own. What NVML tells of memory is the whole card's.
    return open_gpu(load_nvml(), f"GPU-{uuid}", f"MIG-{uuid}") | {
        "gpu_memory_bytes": partial(torch.cuda.memory_reserved, device)
    }
