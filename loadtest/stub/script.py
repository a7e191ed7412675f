"""What the stub server is to do: a list of answers, of which request i gets number i mod length."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from loadtest.errors import UsageError

WORD = " word"
"""The text of one token."""


@dataclass(frozen=True)
class Behaviour:
    """One answer, or one failure.

    Attributes:
        ttft_s: from the request to the first chunk with tokens.
        gap_s: between chunks.
        chunk_tokens: tokens of each chunk, over and over.
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
    behaviours = []
    for answer in answers:
        _refuse_unknown(answer, Behaviour)
        chunk_tokens = tuple(answer.get("chunk_tokens", (1,)))
        behaviours.append(Behaviour(**{**answer, "chunk_tokens": chunk_tokens}))
    return Script(**{**fields_of_script, "behaviours": tuple(behaviours)})


def _refuse_unknown(found: dict[str, Any], kind: type[Script] | type[Behaviour]) -> None:
    known = {field.name for field in fields(kind)}
    if unknown := set(found) - known:
        raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
