"""Log lines: one an event, with what it is about."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

import pytest

from cluster import logs
from cluster.config import config_of
from cluster.logs import LogsConfig, log_event, request_id, set_up_logging

logger = logging.getLogger("cluster.something")
Lines = Callable[[], list[str]]


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Lines]:
    """What has been written; our loggers are as they were afterwards."""
    ours = [logging.getLogger(name) for name in logs.OURS]
    before = [(one.handlers, one.level, one.propagate) for one in ours]
    yield lambda: capsys.readouterr().err.splitlines()
    for one, (handlers, level, propagate) in zip(ours, before, strict=True):
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


def test_an_event_is_one_object_on_one_line(lines: Lines) -> None:
    set_up_logging(LogsConfig(format="json", level="info"), "llm 0")
    log_event(logger, "output ended", num_llm_steps=3, reason=None)
    (line,) = lines()
    event = json.loads(line)
    assert event.pop("time").endswith("+00:00")
    assert event == {
        "level": "info",
        "part": "llm 0",
        "logger": "cluster.something",
        "event": "output ended",
        "num_llm_steps": 3,
        "reason": None,
    }


def test_lines_of_a_request_carry_its_id(lines: Lines) -> None:
    set_up_logging(LogsConfig(format="json"), "ingress")
    token = request_id.set("cmpl-1")
    logger.warning("a stream\nended early")
    request_id.reset(token)
    logger.warning("nobody's")
    first, second = map(json.loads, lines())
    assert (first["request_id"], first["event"]) == ("cmpl-1", "a stream\nended early")
    assert "request_id" not in second


def test_a_traceback_is_part_of_its_line(lines: Lines) -> None:
    set_up_logging(LogsConfig(format="json"), "manager")
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("a step failed")
    (line,) = lines()
    assert "ValueError: broken" in json.loads(line)["error"]


def test_text_for_people_and_nothing_below_the_level(lines: Lines) -> None:
    set_up_logging(LogsConfig(), "ssm")
    log_event(logger, "not worth a line")
    logger.warning("late")
    (line,) = lines()
    assert line.endswith("warning ssm: late")


def test_the_section_of_the_configuration() -> None:
    assert config_of({"logs": {"format": "json"}}).logs == LogsConfig(format="json")
