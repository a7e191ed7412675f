"""What the stub server is to do: a list of answers, of which request i gets number i mod length."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from loadtest.errors import UsageError

CONTENTS = ("stream", "json", "html")
COUNTS = ("token_ids", "usage", "final", "none")
WORD = " word"
"""The text of one token."""


@dataclass(frozen=True)
class Behaviour:
    """One answer, or one failure.

    Attributes:
        ttft_s: from the request to the first chunk with tokens.
        gap_s: between chunks.
        chunk_tokens: tokens of each chunk, over and over; 0 for an event without any.
        num_tokens: of the whole answer; None for the request's `max_tokens`.
        stall_after, stall_s: a longer gap after so many chunks.
        status: other than 200: refused with it.
        content: `stream`, `json` (status 200, but one JSON body), or `html`.
        reset_after: the connection is torn down after so many chunks; 0 before the headers.
        truncate_after: the stream ends in good order after so many chunks, without a reason.
        error_after: an error event after so many chunks.
        garbage_after: an event that is no JSON after so many chunks.
        usage_error: added to the true number of tokens in the usage.
        counts: how tokens are told: `token_ids`, `usage` (in every chunk), `final`, or `none`.
    """

    ttft_s: float = 0.02
    gap_s: float = 0.01
    chunk_tokens: tuple[int, ...] = (1,)
    num_tokens: int | None = None
    stall_after: int | None = None
    stall_s: float = 0.0
    status: int = 200
    content: str = "stream"
    reset_after: int | None = None
    truncate_after: int | None = None
    error_after: int | None = None
    garbage_after: int | None = None
    usage_error: int = 0
    counts: str = "token_ids"

    def chunks(self, max_tokens: int) -> Iterator[tuple[float, int]]:
        """Pause before each chunk, and its tokens."""
        left = max_tokens if self.num_tokens is None else self.num_tokens
        number = 0
        while left > 0:
            tokens = min(left, self.chunk_tokens[number % len(self.chunk_tokens)])
            pause_s = self.gap_s if number else self.ttft_s
            if number == self.stall_after:
                pause_s += self.stall_s
            yield pause_s, tokens
            left -= tokens
            number += 1


@dataclass(frozen=True)
class Script:
    """The whole server.

    Attributes:
        max_running: answers worked on at once; more wait in a queue. None for no limit.
        freeze_at_s, freeze_s: no answer makes progress for so long, once, after so many seconds
            from the first request.
        max_model_len: the context that it claims.
    """

    behaviours: tuple[Behaviour, ...] = (Behaviour(),)
    max_running: int | None = None
    freeze_at_s: float | None = None
    freeze_s: float = 0.0
    max_model_len: int = 4096


def read_script(path: Path) -> Script:
    """A script out of a JSON file with the fields of `Script`.

    Raises:
        UsageError: if the file is no script.
    """
    try:
        return parse_script(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not a script: {error}") from error


def parse_script(fields_of_script: dict[str, Any]) -> Script:
    """A script out of plain values.

    Raises:
        ValueError: for an unknown field.
    """
    answers = fields_of_script.get("behaviours", [{}])
    _refuse_unknown(fields_of_script, Script)
    if not isinstance(answers, list) or not answers:
        raise ValueError("behaviours is a list of at least one")
    script = Script(**{**fields_of_script, "behaviours": tuple(map(_behaviour, answers))})
    _check_numbers(script, ("max_running", "freeze_at_s", "freeze_s", "max_model_len"))
    if script.max_running == 0:
        raise ValueError("max_running is at least 1, or null")
    return script


def _behaviour(answer: dict[str, Any]) -> Behaviour:
    _refuse_unknown(answer, Behaviour)
    tokens = tuple(answer.get("chunk_tokens", (1,)))
    if not all(isinstance(number, int) and number >= 0 for number in tokens) or not any(tokens):
        raise ValueError(f"chunk_tokens are whole numbers, not all 0: {list(tokens)}")
    behaviour = Behaviour(**{**answer, "chunk_tokens": tokens})
    _check_numbers(behaviour, ("ttft_s", "gap_s", "num_tokens", "stall_after", "stall_s"))
    _check_numbers(behaviour, ("reset_after", "truncate_after", "error_after", "garbage_after"))
    if not isinstance(behaviour.status, int) or not 200 <= behaviour.status <= 599:
        raise ValueError("status is from 200 to 599")
    if not isinstance(behaviour.usage_error, int):
        raise ValueError("usage_error is a whole number")
    for name, known in (("content", CONTENTS), ("counts", COUNTS)):
        if getattr(behaviour, name) not in known:
            raise ValueError(f"{name} is one of {', '.join(known)}")
    return behaviour


def _check_numbers(found: Script | Behaviour, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(found, name)
        is_number = isinstance(value, int | float) and 0 <= value < float("inf")
        if not is_number and not (value is None and _may_be_none(found, name)):
            raise ValueError(f"{name} is a number from 0 on, not {value!r}")


def _may_be_none(found: Script | Behaviour, name: str) -> bool:
    return next(field.default is None for field in fields(found) if field.name == name)


def _refuse_unknown(found: dict[str, Any], kind: type[Script] | type[Behaviour]) -> None:
    known = {field.name for field in fields(kind)}
    if unknown := set(found) - known:
        raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
