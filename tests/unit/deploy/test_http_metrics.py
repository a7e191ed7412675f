"""What the ingress counts of its requests, and the list of targets for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from http_fakes import Served
from prometheus_client.parser import text_string_to_metric_families

from actors.errors import UnavailableError

Serve = Callable[..., Served]
Ids = Callable[[str], list[int]]


async def counts(served: Served, path: str = "/metrics") -> dict[tuple[str, str], float]:
    text = (await served.http.get(path)).text
    return {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "treeserve_http_requests_total"
    }


async def inside(served: Served) -> str:
    lines = (await served.http.get("/metrics")).text.splitlines()
    return next(line for line in lines if line.startswith("treeserve_http_requests_inside"))


async def test_every_status_is_there_from_the_start_at_zero(serve: Serve) -> None:
    assert set((await counts(serve())).values()) == {0.0}


async def test_answers_are_counted_by_route_and_status(serve: Serve) -> None:
    served = serve()
    await served.complete(prompt="Hello")
    await served.http.post("/v1/chat/completions", json={"messages": "none"})
    await served.http.get("/v1/models")
    found = {key: count for key, count in (await counts(served)).items() if count}
    assert found == {("/v1/completions", "2xx"): 1, ("/v1/chat/completions", "4xx"): 1}
    assert await counts(served, "/metrics/ingress") == await counts(served)


async def test_a_stream_that_breaks_is_not_counted_as_good(serve: Serve, ids: Ids) -> None:
    served = serve(ids("abcde"), errors={2: UnavailableError("the LLM is lost")})
    body = {"prompt": "Hello", "stream": True, "ignore_eos": True, "max_tokens": 8}
    answer = await served.http.post("/v1/completions", json=body)
    assert answer.status_code == 200
    found = await counts(served)
    assert found["/v1/completions", "broken"] == 1
    assert found["/v1/completions", "2xx"] == 0


async def test_requests_inside_are_back_at_zero_after_a_mass_abort(serve: Serve) -> None:
    served = serve()
    served.backend.hold_after = 1
    body = {"prompt": "Hello", "stream": True, "ignore_eos": True, "max_tokens": 8}
    asked = [asyncio.create_task(served.http.post("/v1/completions", json=body)) for _ in range(20)]
    await served.backend.held.wait()
    while not (await inside(served)).endswith(" 20.0"):
        await asyncio.sleep(0)
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert (await inside(served)).endswith(" 0.0")


@pytest.mark.parametrize("host", ["10.0.0.1:8000", "treeserve"])
async def test_targets_are_listed_as_prometheus_wants_them(serve: Serve, host: str) -> None:
    answer = await serve().http.get("/metrics/targets", headers={"host": host})
    assert answer.headers["content-type"] == "application/json"
    ingress, rank = answer.json()
    assert ingress["targets"] == [host]
    assert ingress["labels"]["__metrics_path__"] == "/metrics/ingress"
    assert rank == {"targets": ["10.0.0.7:9100"], "labels": {"part": "llm", "index": "0"}}
