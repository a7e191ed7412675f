"""The application's own description of itself."""

from __future__ import annotations

from deploy.openai_schema import ChatRequest, CompletionRequest


def refs(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            else:
                yield from refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from refs(inner)


async def test_it_describes_the_bodies_that_the_routes_take(serve):
    response = await serve().http.get("/openapi.json")
    document = response.json()
    schemas = document["components"]["schemas"]
    for path, model in (
        ("/v1/completions", CompletionRequest),
        ("/v1/chat/completions", ChatRequest),
    ):
        route = document["paths"][path]["post"]
        body = route["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": f"#/components/schemas/{model.__name__}"}
        assert set(schemas[model.__name__]["properties"]) == set(model.model_fields)
        assert "422" not in route["responses"]
        assert route["responses"]["default"]
    for ref in refs(document):
        assert ref.removeprefix("#/components/schemas/") in schemas


async def test_it_says_what_the_parameters_do(serve):
    schemas = (await serve().http.get("/openapi.json")).json()["components"]["schemas"]
    for model in ("CompletionRequest", "ChatRequest"):
        properties = schemas[model]["properties"]
        assert "raw_logprobs" in properties["logprobs"]["description"]
        for name in ("frequency_penalty", "logit_bias", "best_of", "guided_regex", "min_p"):
            assert properties[name]["description"]
    drafters = schemas["Speculation"]["properties"]["drafters"]["description"]
    assert all(name in drafters for name in ("grammar", "ngram", "prompt_lookup", "ssm", "suffix"))
    [forms, _] = schemas["ChatRequest"]["properties"]["response_format"]["anyOf"]
    names = [form["$ref"].rsplit("/", 1)[-1] for form in forms["oneOf"]]
    assert names == ["AnyText", "JsonObject", "JsonOfSchema"]
