"""The metrics of several processes that count the same, as one text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

LABEL = "manager"


def merged(texts: Mapping[str, str]) -> str:
    """Texts in Prometheus' format 0.0.4 as one; of several, each sample tells whose it is.

    Args:
        texts: by the id of the manager, which becomes the label `manager`.
    """
    if len(texts) == 1:
        return next(iter(texts.values()))
    families: dict[str, Metric] = {}
    for whose, text in texts.items():
        for family in text_string_to_metric_families(text):
            first = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            first.samples += [
                sample._replace(labels=sample.labels | {LABEL: whose}) for sample in family.samples
            ]
    return generate_latest(cast(CollectorRegistry, _Collected(families))).decode()


class _Collected:
    """What `generate_latest` asks of a registry."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()
