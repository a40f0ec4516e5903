"""The latency of concurrent steps from their counters, with numbers by hand."""

from __future__ import annotations

import pytest

from mission_gym.vector.arrays import BLOCKED_NS, NUM_FAILED, make_counters
from mission_gym.vector.concurrent import LatencyReader, count_step


def test_latency_since_the_last_read() -> None:
    counters = make_counters(2)
    rows = [memoryview(row) for row in counters]
    reader = LatencyReader(counters)
    assert reader.read(1.0) is None
    for _ in range(19):
        count_step(rows[0], 20_000_000)
    count_step(rows[1], 2_000_000_000)
    counters[1, NUM_FAILED], counters[1, BLOCKED_NS] = 5, 500_000_000
    latency = reader.read(2.0)
    assert latency is not None
    assert latency.latency_s == pytest.approx((19 * 0.02 + 2.0) / 20)
    assert latency.in_flight == pytest.approx((19 * 0.02 + 2.0) / 2.0)
    assert latency.error_rate == pytest.approx(5 / 25)
    assert (latency.blocked, latency.blocked_env) == (0.25, 1)
    assert 0.016 < latency.latency_p95_s < 0.034  # the octave of 20 ms
    assert latency.metrics()["time/loop_blocked_env"] == 1.0
    count_step(rows[0], 1000)
    latency = reader.read(2.0)
    assert latency is not None
    assert latency.error_rate == 0
    assert "time/loop_blocked" not in latency.metrics()
