"""Who goes on after a step was lost, and how the ranks are brought back.

The manager holds every token, so whoever goes on is prefilled again from them. A request that is in
one lost step after the other may be what kills the ranks, and is given up.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from enum import Enum, auto

from actors.errors import PeerError, UnavailableError
from actors.messages import LLMDescription
from actors.request_manager.ports import LLM
from actors.request_manager.request import Request, State

MAX_FAILURES = 3
"""Steps lost with a request in them, without a token for it between, after which it is ended."""

RESTORE_BACKOFF_S = (0.5, 1.0, 2.0, 5.0)

logger = logging.getLogger(__name__)


class Fate(Enum):
    """What becomes of a request when a step is lost."""

    GOES_ON = auto()
    ABORTS = auto()
    FAILS = auto()


def judge(request: Request, error: Exception) -> Fate:
    """Count the loss of a step, and sort out whether the request goes on in the next epoch.

    Args:
        error: what ended the step. Ranks are lost with what they were sent; a fault of ours may lie
            in whatever was planned.
    """
    was_in_it = request.in_step if isinstance(error, PeerError) else request.in_flight
    request.num_failures += was_in_it
    request.in_step = False
    if request.state is State.CLOSING:
        return Fate.ABORTS
    return Fate.FAILS if request.num_failures >= MAX_FAILURES else Fate.GOES_ON


async def restore(
    llm: LLM,
    adopt: Callable[[LLMDescription], None],
    on_failure: Callable[[UnavailableError], None],
) -> None:
    """Try until the ranks are back.

    Args:
        adopt: is told what they serve now.
        on_failure: told each time that they could not be, so that nobody is kept waiting.
    """
    for backoff_s in itertools.chain(RESTORE_BACKOFF_S, itertools.repeat(RESTORE_BACKOFF_S[-1])):
        try:
            await llm.restore()
            adopt(await llm.describe())
        except Exception as error:  # supervised: whatever it is, the next try may work
            logger.exception("the LLM could not be restored")
            on_failure(UnavailableError(f"the LLM is lost: {error}"))
            await asyncio.sleep(backoff_s)
        else:
            return
