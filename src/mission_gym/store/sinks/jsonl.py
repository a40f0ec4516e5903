"""metrics.jsonl: every event but episodes, as it is."""

from __future__ import annotations

from mission_gym.store.sinks import Event, Sink
from mission_gym.store.tables import MetricsLog


class MetricsSink(MetricsLog):
    """The stream on disk, which every report reads."""

    def write(self, event: Event) -> None:
        if event["event"] != "episode":
            self.append(event)


SINK = Sink(lambda place, position: MetricsSink(place.run.metrics_jsonl, position))
