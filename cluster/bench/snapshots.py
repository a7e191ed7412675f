"""The server's own counters, read from `/metrics` before and after what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

PREFIX = "treeserve_"
SUFFIXES = ("_total", "_sum", "_count")

Sample = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Counts:
    """Values of counters, or what was added to them over a stretch of time.

    Attributes:
        values: by name and labels; one that is missing is 0.
    """

    values: Mapping[Sample, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Counts:
        """Our counters, and the sums and counts of our histograms, in Prometheus' text format."""
        return cls(
            {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name.startswith(PREFIX) and sample.name.endswith(SUFFIXES)
            }
        )

    def __sub__(self, before: Counts) -> Counts:
        return self._combined(before, -1.0)

    def __add__(self, other: Counts) -> Counts:
        return self._combined(other, 1.0)

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples of a name that carry these labels."""
        wanted = labels.items()
        return sum(
            value for (other, has), value in self.values.items() if other == name and wanted <= has
        )

    def by_depth(self, name: str, **labels: str) -> list[float]:
        """`total` for each depth from 0 to the last one counted."""
        depths = [
            int(dict(has)["depth"])
            for (other, has), n in self.values.items()
            if other == name and n
        ]
        last = max(depths, default=-1)
        return [self.total(name, depth=str(depth), **labels) for depth in range(last + 1)]

    def labels(self, name: str, label: str) -> list[str]:
        """The values of a label that were counted at all, sorted."""
        items = self.values.items()
        return sorted({dict(has)[label] for (other, has), n in items if other == name and n})

    def _combined(self, other: Counts, sign: float) -> Counts:
        keys = self.values.keys() | other.values.keys()
        return Counts(
            {key: self.values.get(key, 0.0) + sign * other.values.get(key, 0.0) for key in keys}
        )


async def take_snapshot(client: httpx.AsyncClient) -> Counts:
    """All counters now. Raises httpx.HTTPError if the server does not tell them."""
    response = await client.get("/metrics")
    response.raise_for_status()
    return Counts.parse(response.text)
