"""What the gauges of waiting environments tell, with numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mission_gym.vector.gauges import BLOCKED_NS, NUM_FAILED, NUM_GAUGES, GaugeReader, count_step


def test_differences_since_the_last_look() -> None:
    gauges = np.zeros((2, NUM_GAUGES), np.int64)
    rows = [memoryview(row) for row in gauges]
    reader = GaugeReader(gauges)
    assert reader.read(1.0) is None
    for _ in range(19):
        count_step(rows[0], 20_000_000)
    count_step(rows[1], 2_000_000_000)
    gauges[1, NUM_FAILED], gauges[1, BLOCKED_NS] = 5, 500_000_000
    told = reader.read(2.0)
    assert told is not None
    assert told.latency_s == pytest.approx((19 * 0.02 + 2.0) / 20)
    assert told.in_flight == pytest.approx((19 * 0.02 + 2.0) / 2.0)
    assert told.error_rate == pytest.approx(5 / 25)
    assert (told.blocked, told.blocked_env) == (0.25, 1)
    assert 0.016 < told.latency_p95_s < 0.034  # the octave of 20 ms
    assert told.metrics()["time/loop_blocked_env"] == 1.0
    count_step(rows[0], 1000)
    told = reader.read(2.0)
    assert told is not None
    assert told.error_rate == 0
    assert "time/loop_blocked" not in told.metrics()
