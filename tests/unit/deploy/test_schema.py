"""Requests made up from our own OpenAPI document: none brings a server error or an odd answer."""

from __future__ import annotations

import schemathesis
from http_fakes import MODEL, ScriptedBackend, Served, toy_tokenizer, toy_vocabulary
from hypothesis import HealthCheck, settings

EXAMPLES = 100


def _served() -> Served:
    tokenizer = toy_tokenizer()
    vocabulary = toy_vocabulary(tokenizer)
    script = tokenizer.encode("abc", add_special_tokens=False)
    return Served(ScriptedBackend(vocabulary, lambda _: script), tokenizer)


schema = schemathesis.openapi.from_asgi("/openapi.json", _served().app)


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_nothing_that_the_schema_allows_breaks_the_server(case):
    if isinstance(case.body, dict) and case.body.get("model"):
        case.body["model"] = MODEL  # else every request would end there
    response = case.call()
    if case.path != "/ready":
        assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
