"""Before the run: is the server there, what does it serve, and how can its tokens be counted?

A few tiny requests, one for each way to have token counts told, best first. A server that refuses
a field with status 4xx, or takes it without effect, is asked the next way. One that tells more than
it was asked for is believed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import aiohttp

from loadtest.answers import error_message, one_line
from loadtest.client import Client, Limits, json_or_text
from loadtest.errors import TargetError
from loadtest.failures import FOREIGN, describe, outcome_of
from loadtest.plan import PlannedRequest
from loadtest.records import OUTCOME_MEANINGS, Outcome, RequestRecord
from loadtest.target import CHAT, COMPLETIONS, Target
from loadtest.tokens import CountSource, count_tokens

WAYS: tuple[tuple[CountSource, dict[str, Any]], ...] = (
    (
        CountSource.TOKEN_IDS,
        {"return_token_ids": True, "stream_options": {"include_usage": True}},
    ),
    (
        CountSource.USAGE,
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    (CountSource.SHARED, {"stream_options": {"include_usage": True}}),
    (CountSource.CHUNKS, {}),
)
PROBE = PlannedRequest(-1, 0, ({"role": "user", "content": "Say hello."},), {"max_tokens": 4})


async def probe(session: aiohttp.ClientSession, target: Target, limits: Limits) -> Target:
    """The target with its model, its context and its way of counting filled in.

    Raises:
        TargetError: if it cannot be reached, or answers no request.
    """
    described = await _describe(session, target, limits)
    record = _new_record()
    for hoped, fields in WAYS:
        tried = replace(described, counting=fields)
        record = _new_record()
        await Client(session, tried, limits).send(PROBE, (), record)
        if record.outcome is Outcome.OK and _is_as_good(count_tokens(record).source, hoped):
            return tried
        if record.outcome is not Outcome.OK and record.outcome is not Outcome.HTTP_4XX:
            break
    meaning = OUTCOME_MEANINGS[record.outcome]
    hint = ""
    if record.status in (404, 405):
        other = COMPLETIONS if target.endpoint == CHAT else CHAT
        hint = f"; is it --endpoint {other}?"
    raise TargetError(
        f"{target.url}: no answer to a first request: {meaning} ({record.detail}){hint}"
    )


def _is_as_good(found: CountSource, hoped: CountSource) -> bool:
    ranks = list(CountSource)
    return ranks.index(found) <= ranks.index(hoped)


async def _describe(session: aiohttp.ClientSession, target: Target, limits: Limits) -> Target:
    url = f"{target.base_url}/v1/models"
    try:
        async with (
            asyncio.timeout(limits.connect_s + limits.silence_s),
            session.get(url, headers=target.headers, allow_redirects=False) as response,
        ):
            body = json_or_text(await response.read())
    except FOREIGN as error:
        meaning = OUTCOME_MEANINGS[outcome_of(error)]
        raise TargetError(f"{url}: {meaning} ({describe(error)})") from error
    if response.status in (404, 405) and target.model:
        return target  # it serves no list; the first request will show whether it serves the model
    if 300 <= response.status < 400:
        where = one_line(response.headers.get("Location", "nowhere"))
        raise TargetError(f"{url}: redirected to {where}; give that address")
    if response.status != 200:
        hint = "; with --model NAME it is not needed" if response.status in (404, 405) else ""
        raise TargetError(f"{url}: status {response.status}: {error_message(body)}{hint}")
    if isinstance(body, str):
        raise TargetError(f"{url}: the answer is not JSON")
    return _filled(target, body, url)


def _filled(target: Target, body: Any, url: str) -> Target:  # noqa: ANN401 - whatever came
    models = body.get("data") if isinstance(body, dict) else None
    if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        raise TargetError(f"{url}: not a list of models")
    by_name = {str(model.get("id")): model for model in models}
    name = target.model or next(iter(by_name), "")
    if name not in by_name:
        there = one_line(", ".join(by_name)) or "none"
        raise TargetError(f"{url}: no model {name!r}; there are: {there}")
    context = by_name[name].get("max_model_len")
    return replace(target, model=name, max_context=context if isinstance(context, int) else None)


def _new_record() -> RequestRecord:
    now_s = asyncio.get_running_loop().time()
    return RequestRecord(0, 0, now_s, now_s)
