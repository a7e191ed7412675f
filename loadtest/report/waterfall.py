"""The slowest requests, each as a bar over time: held back, waiting for the first token, answering.

Every delivery is a tick on its bar, so that a stall is a gap that one sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from loadtest.report.units import seconds
from loadtest.summary import Measured, Summary
from loadtest.timings import Timing, deliveries

MAX_ROWS = 12
WIDTH, ROW, LEFT, RIGHT = 940, 20, 150, 90


def slowest(summary: Summary) -> str:
    """The requests with the longest time from schedule to end."""
    whole = [(one, one.timing) for one in summary.measured if one.timing is not None]
    whole.sort(key=lambda pair: -pair[1].e2e_from_schedule_s)
    rows = whole[:MAX_ROWS]
    if not rows:
        return "<p>No request was answered.</p>"
    longest_s = rows[0][1].e2e_from_schedule_s
    per_s = (WIDTH - LEFT - RIGHT) / longest_s if longest_s else 0.0
    body = "".join(_row(place, *pair, per_s) for place, pair in enumerate(rows))
    height = ROW * len(rows) + 6
    return (
        f'<div class="scroll"><svg class="wide" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="slowest requests">{body}</svg></div>'
    )


def key() -> str:
    """What the parts of a bar mean."""
    parts = (
        ("held", "due, not yet sent"),
        ("wait", "sent, no token yet"),
        ("answer", "answering; a tick for each delivery"),
    )
    return (
        '<p class="legend">'
        + "".join(
            f'<span><svg width="26" height="10"><rect width="26" height="10" class="{name}"/></svg>'
            f" {text}</span>"
            for name, text in parts
        )
        + "</p>"
    )


def _row(place: int, one: Measured, timing: Timing, per_s: float) -> str:
    record, y = one.record, ROW * place + 4
    held_s = timing.ttft_from_schedule_s - timing.ttft_s
    stretches = (
        ("held", 0.0, held_s),
        ("wait", held_s, timing.ttft_from_schedule_s),
        ("answer", timing.ttft_from_schedule_s, timing.e2e_from_schedule_s),
    )
    parts = [
        f'<rect x="{LEFT + per_s * start:.1f}" y="{y}" height="{ROW - 7}" class="{name}" '
        f'width="{max(0.0, per_s * (end - start)):.1f}">'
        f"<title>{seconds(end - start)}</title></rect>"
        for name, start, end in stretches
    ]
    ticks: Sequence[float] = [
        LEFT + per_s * (at_s - record.scheduled_s) for at_s, _ in deliveries(record, one.counts)
    ]
    path = "".join(f"M{x:.1f} {y}v{ROW - 7}" for x in ticks)
    parts.append(f'<path d="{path}" class="tickmark"/>')
    name = escape(f"request {record.index}, {timing.num_tokens} tokens")
    parts.append(f'<text x="{LEFT - 6}" y="{y + 11}" class="tick end">{name}</text>')
    right = LEFT + per_s * timing.e2e_from_schedule_s + 5
    total = escape(seconds(timing.e2e_from_schedule_s))
    parts.append(f'<text x="{right:.1f}" y="{y + 11}" class="tick start">{total}</text>')
    return "".join(parts)
