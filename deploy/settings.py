"""Limits of the HTTP face that no client may exceed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ApiSettings:
    """Set once at the start.

    Attributes:
        max_body_bytes: a longer request body is refused with 413 before it is parsed.
        max_choices: most outputs of one request: prompts times `n`.
        ready_window_s: `/ready` holds while a token was generated within this time.
        probe_interval_s: after so long without a token, one is asked for.
        probe_timeout_s: a probe that takes longer has failed.
        page: serve the live page at `/`.
    """

    max_body_bytes: int = 4 << 20
    max_choices: int = 128
    ready_window_s: float = 30.0
    probe_interval_s: float = 10.0
    probe_timeout_s: float = 15.0
    page: bool = True
