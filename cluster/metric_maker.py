"""Makes Prometheus metrics that all carry the label `model_name`."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class MetricMaker:
    """Metrics with more labels come as a function from those labels' values.

    Args:
        registry: where the metrics live.
        model_name: the value of the label `model_name` of all of them.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._model_name = model_name

    def counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name"], registry=self._registry).labels(self._model_name)

    def gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["model_name"], registry=self._registry).labels(self._model_name)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(name, text, ["model_name"], registry=self._registry, buckets=buckets)
        return family.labels(self._model_name)

    def counters(self, name: str, text: str, *labels: str) -> Callable[..., Counter]:
        family = Counter(name, text, ["model_name", *labels], registry=self._registry)
        return lambda *values: family.labels(self._model_name, *values)

    def gauges(self, name: str, text: str, *labels: str) -> Callable[..., Gauge]:
        family = Gauge(name, text, ["model_name", *labels], registry=self._registry)
        return lambda *values: family.labels(self._model_name, *values)

    def histograms(
        self, name: str, text: str, buckets: tuple[float, ...], label: str
    ) -> Callable[[str], Histogram]:
        labels = ["model_name", label]
        family = Histogram(name, text, labels, registry=self._registry, buckets=buckets)
        return lambda value: family.labels(self._model_name, value)
