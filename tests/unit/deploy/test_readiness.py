"""`/ready` tells whether tokens come; `/health` only that the process answers."""

from __future__ import annotations

import asyncio

import pytest
from http_fakes import assert_error

from actors.errors import OverloadedError, PeerTimeout, UnavailableError
from deploy.readiness import Readiness
from deploy.settings import ApiSettings


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


async def test_it_is_not_ready_before_the_first_token(serve, clock):
    served = serve(clock=clock)
    assert assert_error(await served.http.get("/ready"), 503)["code"] == "not_ready"
    assert (await served.http.get("/health")).status_code == 200


async def test_a_real_token_makes_it_ready_for_a_while(serve, clock, ids):
    served = serve(ids("abc"), clock=clock)
    await served.complete(prompt="Hello", max_tokens=1)
    assert (await served.http.get("/ready")).status_code == 200
    clock.now += 30.0
    assert (await served.http.get("/ready")).status_code == 200
    clock.now += 0.1
    assert_error(await served.http.get("/ready"), 503)


async def test_a_probe_is_internal_and_one_token_long(serve, clock):
    served = serve()
    readiness = Readiness(served.backend, ApiSettings(), clock)
    await readiness.probe_if_idle()
    assert readiness.is_ready()
    (request,) = served.backend.requests
    assert request.internal
    assert request.stop.max_tokens == 1
    await readiness.probe_if_idle()
    assert len(served.backend.requests) == 1
    clock.now += 10.0
    await readiness.probe_if_idle()
    assert len(served.backend.requests) == 2


@pytest.mark.parametrize(
    ("error", "ready"),
    [
        (PeerTimeout("gone"), False),
        (UnavailableError("draining"), False),
        (OverloadedError("full"), True),
        (TimeoutError(), True),
    ],
)
async def test_a_probe_that_fails(serve, clock, error, ready):
    served = serve()
    readiness = Readiness(served.backend, ApiSettings(), clock)
    await readiness.probe_if_idle()
    served.backend.errors[0] = error
    clock.now += 11.0
    await readiness.probe_if_idle()
    assert readiness.is_ready() is ready
    clock.now += 20.0
    assert not readiness.is_ready()
    served.backend.errors.clear()
    await readiness.probe_if_idle()
    assert readiness.is_ready()


async def test_a_probe_that_hangs_is_cancelled(serve, clock):
    served = serve(hold_after=0)
    readiness = Readiness(served.backend, ApiSettings(probe_timeout_s=0.0), clock)
    await readiness.probe_if_idle()
    assert not readiness.is_ready()
    assert len(served.backend.cancelled) == 1


@pytest.mark.parametrize("error", [None, ZeroDivisionError("a fault of ours")])
async def test_probing_starts_with_the_application_and_ends_with_it(serve, clock, error):
    served = serve(clock=clock, errors={} if error is None else {0: error})
    async with served.app.router.lifespan_context(served.app):
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(served.backend.requests) == 1
        status = (await served.http.get("/ready")).status_code
        assert status == (200 if error is None else 503)
