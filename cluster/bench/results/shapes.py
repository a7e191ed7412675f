"""Static trees of 8 levels that are wide at one of them, and the drafters that grow them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from actors.request_manager.drafter_names import SSM
from actors.ssm.speculator import SpeculatorOptions
from cluster.bench.results.setting import Setting

Widths = tuple[int, ...]
"""Children of each node, by depth; the root has depth 0."""

NUM_LEVELS = 8
FORMS: Mapping[str, int] = {"⟨1, 1, k, 1, 1, 1, 1, 1⟩": 2, "⟨k, 1, 1, 1, 1, 1, 1, 1⟩": 0}
"""Which level is wide."""


def tree(wide_level: int, width: int) -> Widths:
    return tuple(width if level == wide_level else 1 for level in range(NUM_LEVELS))


def chain(num_nodes: int) -> Widths:
    return (1,) * num_nodes


def count_nodes(widths: Sequence[int]) -> int:
    """Of a static tree."""
    level, nodes = 1, 0
    for width in widths:
        level *= width
        nodes += level
    return nodes


def name_of(widths: Widths) -> str:
    """Of the drafter that grows such trees: one of the kind `ssm`."""
    if max(widths) == 1:
        return f"{SSM}-chain{len(widths)}"
    return f"{SSM}-{'.'.join(map(str, widths))}"


def growers(setting: Setting, shapes: Iterable[Widths]) -> dict[str, SpeculatorOptions]:
    """The first draft model once for each shape, by `name_of`."""
    return {
        name_of(widths): setting.draft_model(
            0, widths, max_nodes=count_nodes(widths), max_depth=len(widths)
        )
        for widths in shapes
    }
