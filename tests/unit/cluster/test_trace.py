"""The timeline of steps: what stands in the file that a viewer opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.errors import ConfigError
from actors.messages import StepReply
from actors.request_manager.ports import StepRecord
from cluster import trace
from cluster.trace import StepTrace


def record(step_id: int, group: int, **phase_s: float) -> StepRecord:
    return StepRecord(1, 1, 0, 1, {}, {}, (), 0, 0, 0, phase_s, 0, 0, step_id=step_id, group=group)


def spans(path: Path) -> list[tuple[object, ...]]:
    """(process, thread, name, begin, end, step) of what is in the file, in microseconds."""
    events = json.loads(path.read_text().rstrip().rstrip(",") + "]")
    return [
        (e["pid"], e["tid"], e["name"], e["ts"], e["ts"] + e["dur"], e["args"]["step"])
        for e in events
        if e["ph"] == "X"
    ]


def test_phases_follow_one_another_and_end_now(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    timeline = StepTrace(path, 1, 2, clock=lambda: 10.0)
    timeline.step_done(record(7, 1, draft=0.5, step=2.0, verify=0.0, emit=0.25))
    timeline.close()
    assert spans(path) == [
        (0, 1, "draft", 7.25e6, 7.75e6, 7),
        (0, 1, "step", 7.75e6, 9.75e6, 7),
        (0, 1, "emit", 9.75e6, 10e6, 7),
    ]


def test_a_rank_waits_computes_and_samples(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    timeline = StepTrace(path, 2, 1)
    timeline.rank_replied(
        1, StepReply(0, 3, forward_s=1.5, sample_s=0.5, started_at=20.0, waited_s=1.0)
    )
    timeline.rank_replied(0, StepReply(0, 4, forward_s=1.0, started_at=21.0))
    timeline.close()
    assert spans(path) == [
        (1, 1, "wait", 20e6, 21e6, 3),
        (1, 1, "forward", 21e6, 21.5e6, 3),
        (1, 1, "sample", 21.5e6, 22e6, 3),
        (1, 0, "forward", 21e6, 22e6, 4),
    ]


def test_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    StepTrace(path, 2, 1).close()
    names = [line for line in path.read_text().splitlines() if '"M"' in line]
    assert [json.loads(line.rstrip(","))["args"]["name"] for line in names] == [
        "request manager",
        "LLM ranks",
        "rank 0",
        "rank 1",
        "group 0",
    ]


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(trace, "MAX_EVENTS", 10)
    path = tmp_path / "trace.json"
    timeline = StepTrace(path, 1, 1)
    for step in range(100):
        timeline.step_done(record(step, 0, step=1.0))
    timeline.close()
    assert len(path.read_text().splitlines()) == 11


def test_a_file_that_cannot_be_written_is_told_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"llm\.trace_file: .*No such file"):
        StepTrace(tmp_path / "nowhere" / "trace.json", 1, 1)


def test_a_disk_that_is_full_is_told_by_its_key_at_the_start_and_harms_nothing_later(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"llm\.trace_file: /dev/full"):
        StepTrace(Path("/dev/full"), 1, 1)
    timeline = StepTrace(tmp_path / "trace.json", 1, 1)
    timeline._file.close()
    with Path("/dev/full").open("w", encoding="utf-8", buffering=1) as full:
        timeline._file = full
        for step in range(3):
            timeline.step_done(record(step, 0, step=1.0))
        timeline.close()
