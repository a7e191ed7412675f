"""The limits that `/openapi.json` tells are those that the server keeps, to the last one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from http_fakes import CONTEXT, ScriptedBackend, Served, toy_tokenizer, toy_vocabulary

from deploy.openai_schema import ChatRequest, CompletionRequest
from deploy.request_body import validate

MODELS = {"CompletionRequest": CompletionRequest, "ChatRequest": ChatRequest}
PATHS = {"CompletionRequest": "/v1/completions", "ChatRequest": "/v1/chat/completions"}
PROMPTS = {
    "CompletionRequest": {"prompt": [5]},
    "ChatRequest": {"messages": [{"role": "user", "content": "Hello"}]},
}
MESSAGE = PROMPTS["ChatRequest"]["messages"][0]
TOOL = {"type": "function", "function": {"name": "f"}}
COMPANIONS = {
    ("ChatRequest", "top_logprobs"): {"logprobs": True},
    ("CompletionRequest", "min_tokens"): {"max_tokens": CONTEXT - 1},
}
"""What a field needs beside it."""
WHOLE = {
    "ChatRequest": {"max_tokens", "max_completion_tokens", "min_tokens", "messages", "tools"},
    "CompletionRequest": set(),
}
"""Fields of whose limits the chat template leaves less."""
STRUCTURE = {"type", "title", "description", "default", "$ref", "anyOf", "oneOf", "items"}
STRUCTURE |= {"additionalProperties", "properties", "required"}


def make_served(**options) -> Served:
    tokenizer = toy_tokenizer()
    backend = ScriptedBackend(toy_vocabulary(tokenizer), lambda _: ())
    return Served(backend, tokenizer, **options)


def schemas_of(served: Served) -> dict:
    return served.app.openapi()["components"]["schemas"]


SCHEMAS = schemas_of(make_served())
VOCAB_SIZE = make_served().backend.description.vocab_size


def leaves(schema, wrap=lambda value: value):
    """Schemas of single values in a schema, each with what makes a value of it a whole one."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        if name in ("StructuredOutputs", "Speculation"):
            for field, inner in SCHEMAS[name]["properties"].items():
                yield from leaves(inner, lambda value, field=field: wrap({field: value}))
        return
    for form in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from leaves(form, wrap)
    if "type" in schema:
        yield schema, wrap
    if "items" in schema:
        yield from leaves(schema["items"], lambda value: wrap([value]))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from leaves(schema["additionalProperties"], lambda value: wrap({"5": value}))


def sample(items):
    """An item that a list may have."""
    if "type" not in items:
        return TOOL if "$ref" in items else MESSAGE
    if items["type"] == "array":
        return [sample(items["items"])] * items.get("minItems", 1)
    return items.get("enum", ["a"])[0] if items["type"] == "string" else 5


def edges(schema):
    """(keyword, the last value allowed, the first one that is not) for each limit."""
    step = 1 if schema["type"] == "integer" else 2**-20
    for keyword, limit in schema.items():
        if keyword == "minimum":
            yield keyword, limit, limit - step
        elif keyword == "maximum":
            yield keyword, limit, limit + step
        elif keyword == "exclusiveMinimum":
            yield keyword, limit + step, limit
        elif keyword == "exclusiveMaximum":
            yield keyword, limit - step, limit
        elif keyword in ("minLength", "maxLength"):
            yield keyword, "a" * limit, "a" * (limit + (1 if keyword == "maxLength" else -1))
        elif keyword in ("minItems", "maxItems"):
            one, beyond = sample(schema["items"]), limit + (1 if keyword == "maxItems" else -1)
            yield keyword, [one] * limit, [one] * beyond
        elif keyword == "maxProperties":
            last, beyond = ({str(n): 1 for n in range(limit + more)} for more in (0, 1))
            yield keyword, last, beyond
        elif keyword == "propertyNames":
            for beyond in (str(VOCAB_SIZE), "007", "-1", ""):
                assert not re.search(limit["pattern"], beyond)
                yield keyword, {str(VOCAB_SIZE - 1): 1, "0": 1}, {beyond: 1}
        elif keyword == "const":
            yield keyword, limit, (not limit if isinstance(limit, bool) else limit + "x")
        elif keyword == "enum":
            yield keyword, limit[-1], limit[-1] + "x"
        elif keyword == "not":
            yield keyword, limit["const"] - 1, limit["const"]
        else:
            assert keyword in STRUCTURE, f"a limit that nobody has tried: {keyword}"


def cases():
    for model in PATHS:
        for field, schema in SCHEMAS[model]["properties"].items():
            for leaf, wrap in leaves(schema):
                for keyword, last, beyond in edges(leaf):
                    name = f"{model}-{field}-{keyword}"
                    yield pytest.param(model, field, keyword, wrap(last), wrap(beyond), id=name)


@pytest.mark.parametrize(("model", "field", "keyword", "last", "beyond"), list(cases()))
async def test_each_limit_is_the_servers_own(model, field, keyword, last, beyond):
    served = make_served()
    around = {**PROMPTS[model], **COMPANIONS.get((model, field), {})}
    refused = await served.post(PATHS[model], {**around, field: beyond})
    error = refused.json()["error"]
    assert refused.status_code in (400, 404), (beyond, refused.text)
    assert re.split(r"[.[]", error["param"])[0] == field, error
    assert field in error["message"] or error["param"] in error["message"], error
    body = {**around, field: last}
    validate(MODELS[model], body)
    if field not in WHOLE[model] and keyword != "maxProperties":  # more than this vocabulary has
        taken = await served.post(PATHS[model], body)
        assert taken.status_code == 200, (last, taken.text)


def told(schemas: dict, model: str, path: str) -> dict:
    """What a document says of a field; `[]` are a list's items, `{}` an object's values."""
    found = schemas[model]["properties"][path.rstrip("[]{}")]
    forms = [found, *found.get("anyOf", ())]
    forms += [part for form in forms for part in form.get("oneOf", ())]
    keyword = {"[]": "items", "{}": "additionalProperties"}.get(path[-2:])
    if keyword:
        forms = [form[keyword] for form in forms if keyword in form]
    return {key: value for form in forms for key, value in form.items()}


BOUNDS = {
    "temperature": {"minimum": 0, "maximum": 100},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"minimum": -1, "maximum": 2**31 - 1},
    "min_p": {"minimum": 0, "maximum": 1},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "repetition_penalty": {"exclusiveMinimum": 0, "maximum": 100},
    "logit_bias": {"maxProperties": 1024},
    "logit_bias{}": {"minimum": -100, "maximum": 100},
    "seed": {"minimum": -(2**63), "exclusiveMaximum": 2**64},
    "stop": {"minLength": 1, "maxLength": 1024, "maxItems": 16},
    "stop[]": {"minLength": 1, "maxLength": 1024},
    "stop_token_ids": {"maxItems": 512},
    "stop_token_ids[]": {"minimum": 0, "maximum": VOCAB_SIZE - 1},
    "min_tokens": {"minimum": 0, "maximum": CONTEXT - 1},
    "n": {"minimum": 1, "maximum": 128},
    "best_of": {"minimum": 1, "maximum": 128},
    "max_tokens": {"maximum": CONTEXT - 1},
    "guided_regex": {"minLength": 1, "maxLength": 4096},
    "guided_choice": {"minItems": 1, "maxItems": 1024},
    "guided_choice[]": {"minLength": 1},
    "priority": {"minimum": -(2**31) + 1, "maximum": 2**31 - 1},
    "truncate_prompt_tokens": {"minimum": -1, "not": {"const": 0}},
}


@pytest.mark.parametrize("model", PATHS)
@pytest.mark.parametrize(("path", "limits"), BOUNDS.items())
def test_known_limits_are_told(model, path, limits):
    said = told(SCHEMAS, model, path)
    assert {keyword: said.get(keyword) for keyword in limits} == limits


def test_it_tells_how_the_server_is_configured():
    class Backend(ScriptedBackend):
        @property
        def description(self):
            return replace(super().description, max_tree_nodes=7, drafters=("ssm",), max_places=5)

    tokenizer = toy_tokenizer()
    backend = Backend(toy_vocabulary(tokenizer), lambda _: ())
    schemas = schemas_of(Served(backend, tokenizer))
    assert told(schemas, "Speculation", "max_nodes")["maximum"] == 7
    assert told(schemas, "Speculation", "max_nodes")["minimum"] == 0
    assert told(schemas, "Speculation", "drafters[]")["enum"] == ["ssm"]
    assert told(schemas, "ChatRequest", "n")["maximum"] == 5


@pytest.mark.parametrize("size", [1, 2, 10, 11, 100, 101, 290, 1001, 4096])
def test_the_ids_of_logit_bias_are_told(size):
    class Backend(ScriptedBackend):
        @property
        def description(self):
            return replace(super().description, vocab_size=size)

    tokenizer = toy_tokenizer()
    schemas = schemas_of(Served(Backend(toy_vocabulary(tokenizer), lambda _: ()), tokenizer))
    pattern = told(schemas, "ChatRequest", "logit_bias")["propertyNames"]["pattern"]
    assert [n for n in range(12 * size) if re.search(pattern, str(n))] == list(range(size))
    assert not any(re.search(pattern, text) for text in ("", "00", "01", "1a", "-1", "1.0"))


@pytest.mark.parametrize("nodes", [-1, -(10**30), 1024, 10**30])
async def test_tree_nodes_out_of_range_are_told_with_the_range(nodes):
    wish = {"speculation": {"max_nodes": nodes}}
    answer = await make_served().post("/v1/completions", {"prompt": "Hello", **wish})
    error = answer.json()["error"]
    assert error["param"] == "speculation.max_nodes"
    assert error["message"] == "speculation.max_nodes must be between 0 and 1023"
