"""Can this server generate a token right now?

Every token of a real request proves it. While none come, a one-token request of our own is run,
through all the parts that a real one takes; it is marked internal and kept out of public metrics.
Ready means: a token within the window, and no failed probe since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from uuid import uuid4

from actors.errors import OverloadedError, TreeServeError
from actors.request_manager.generation import GenerationRequest, StopConditions
from actors.sampling import SamplingParams
from deploy.backend import Backend, require_good_end
from deploy.settings import ApiSettings

RETRY_S = 1.0

logger = logging.getLogger(__name__)


class Readiness:
    """Remembers when a token was last generated."""

    def __init__(self, backend: Backend, settings: ApiSettings, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._settings = settings
        self._clock = clock
        self._last_token_s: float | None = None

    def token_seen(self) -> None:
        """A request, real or a probe, has just got a token."""
        self._last_token_s = self._clock()

    def is_ready(self) -> bool:
        return self._age_s() <= self._settings.ready_window_s

    async def probe_if_idle(self) -> None:
        """Ask for one token, unless one came within the probe interval."""
        if self._age_s() < self._settings.probe_interval_s:
            return
        try:
            async with asyncio.timeout(self._settings.probe_timeout_s):
                await self._generate_one_token()
        except (OverloadedError, TimeoutError):
            return  # busy or stuck: the age of the last token will tell
        except TreeServeError as error:
            logger.warning("not ready: %s: %s", type(error).__name__, error)
            self._last_token_s = None
        else:
            self.token_seen()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Probe in the background while the context lasts."""
        prober = asyncio.create_task(self._probe_forever())
        try:
            yield
        finally:
            prober.cancel()
            with suppress(asyncio.CancelledError):
                await prober

    async def _probe_forever(self) -> None:
        while True:
            try:
                await self.probe_if_idle()
            except Exception:
                logger.exception("a readiness probe failed in an unexpected way")
                self._last_token_s = None
            proven = self._last_token_s is not None
            await asyncio.sleep(self._settings.probe_interval_s if proven else RETRY_S)

    async def _generate_one_token(self) -> None:
        request = GenerationRequest(
            request_id=f"probe-{uuid4().hex}",
            prompt_ids=(0,),
            sampling=SamplingParams(temperature=0.0),
            stop=StopConditions(max_tokens=1, ignore_eos=True),
            internal=True,
        )
        async with aclosing(self._backend.generate([request])) as events:
            async for _, event in events:
                require_good_end(event)

    def _age_s(self) -> float:
        if self._last_token_s is None:
            return float("inf")
        return self._clock() - self._last_token_s
