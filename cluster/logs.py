"""Logs: one line an event, as text or as JSON, with the id of the request that it is about, and
that of its trace if there is one.

Prompts, outputs and keys are never logged, by whatever writes an event. Each process says what it
is; Ray keeps the lines of each in a file of its own (`worker-*.err` in the session's logs).
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from pydantic import BaseModel, ConfigDict

OURS = ("actors", "cluster", "deploy", "opentelemetry")
"""Loggers that are written: our packages', and that of the library which sends our spans."""

FIELDS = "fields"

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request that the running task is for; lines that are written there carry it."""

trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)
"""Of the trace that the running task is part of; None if none is kept."""


class LogsConfig(BaseModel):
    """The `logs` section of the configuration.

    Attributes:
        format: `text` for people, `json` for machines.
        level: lines below it are not written; `info` has one for each request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["text", "json"] = "text"
    level: Literal["info", "warning", "error"] = "warning"


def log_event(logger: logging.Logger, event: str, **fields: object) -> None:
    """Write what happened, at level info; `fields` are of JSON's types."""
    logger.info(event, extra={FIELDS: fields})


def set_up_logging(config: LogsConfig, part: str, stream: TextIO | None = None) -> None:
    """Write this process's lines to stderr.

    Args:
        part: what the process is.
        stream: where they go instead; Serve puts a logger of its own in the place of stderr.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(part) if config.format == "json" else TextLines(part))
    for name in OURS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(config.level.upper())
        logger.propagate = False


class JsonLines(logging.Formatter):
    """An object a line: time, level, part, logger, event, request_id and the event's own fields."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "part": self._part,
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """The same for people; a traceback follows on lines of its own."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        level = record.levelname.lower()
        line = f"{self.formatTime(record)} {level} {self._part}: {record.getMessage()}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _fields(record: logging.LogRecord) -> dict[str, object]:
    of_task = {"request_id": request_id.get(), "trace_id": trace_id.get()}
    fields: dict[str, object] = {name: id_ for name, id_ in of_task.items() if id_ is not None}
    return fields | getattr(record, FIELDS, {})
