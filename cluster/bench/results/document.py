"""The document of results: one section for each part, replaced when that part is measured again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

HEAD = """# Results

Written by `python -m cluster.bench.results CONFIG --data FOLDER`, which can also measure single
parts anew (`--parts`): what stands above each section says on what and when it was measured.
Figures of different sections may come from different runs; compare only within a section.
Sentences about who wins are made from the figures. Intervals (in brackets) come from resampling
the prompts, 95 %.
"""
SECTION = re.compile(r"^(?=## )", re.MULTILINE)

Cell = str | float


def with_section(document: str, order: Sequence[str], title: str, body: str) -> str:
    """The document with one section new, and all others as they are.

    Args:
        document: empty for a new one.
        order: titles of the sections that there may be; any others come last, in their old order.
        title: of the section, one of them.
        body: what stands below the title.
    """
    head, *sections = SECTION.split(document)
    by_title = {section.partition("\n")[0][3:]: section.strip() for section in sections}
    by_title[title] = f"## {title}\n\n{body.strip()}"
    known = [by_title[one] for one in order if one in by_title]
    others = [section for one, section in by_title.items() if one not in order]
    return "\n\n".join([(head or HEAD).strip(), *known, *others]) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """In Markdown; numbers with two digits behind the point, to the right."""
    lines = [list(map(_text, row)) for row in rows]
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(header), rule, *lines])


def _text(cell: Cell) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


def bullets(statements: Iterable[str]) -> str:
    return "\n".join(f"- {one}" for one in statements)
