"""The shapes of answers and streams: choices, seeds, log-probabilities, echo, metrics."""

from __future__ import annotations

import pytest
from http_fakes import MODEL, choices_of, finish_of, flat, joined_text, scripted_logprob

from actors.sampling import derived_seed

MESSAGES = [{"role": "user", "content": "Hello"}]


async def test_a_completion(serve, ids):
    served = serve(ids("abc"), blocks=(2,))
    answer = await served.complete(model=MODEL, prompt="Hello", max_tokens=3)
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("system_fingerprint") == served.backend.description.fingerprint
    assert answer == {
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 3,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "metrics": {
            "speculative_decoding": {
                "num_llm_steps": 2,
                "num_spec_steps": 2,
                "num_draft_tokens": 4,
                "num_accepted_draft_tokens": 1,
                "mean_acceptance_length": 1.5,
                "draft_acceptance_rate": 0.25,
                "acceptance_histogram": [1, 1],
                "draft_s": 0.25,
                "step_s": 1.0,
                "forward_s": 0.5,
            }
        },
    }


async def test_a_chat_answer_and_its_stream(serve, ids):
    served = serve(ids("abc"))
    answer = await served.chat(messages=MESSAGES)
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "abc", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    chunks = await served.stream_chat(messages=MESSAGES)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    deltas = [choice["delta"] for choice in choices_of(chunks)]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {"content": "c"},
        {},
    ]
    assert finish_of(chunks) == "stop"
    assert chunks[-1]["metrics"] == answer["metrics"]
    assert not any("metrics" in chunk or "usage" in chunk for chunk in chunks[:-1])


async def test_without_drafted_steps_the_figures_are_defined(serve):
    metrics = (await serve().complete(prompt="Hello", max_tokens=0))["metrics"]
    assert metrics["speculative_decoding"]["mean_acceptance_length"] == 1.0
    assert metrics["speculative_decoding"]["draft_acceptance_rate"] == 0.0
    assert metrics["speculative_decoding"]["acceptance_histogram"] == []


@pytest.mark.parametrize("blocks", [(1,), (3,)])
async def test_several_prompts_and_choices(serve, ids, tokenizer, blocks):
    def script(request):
        return ids(f"{tokenizer.decode(request.prompt_ids)}{request.sampling.seed % 97}")

    body = {"prompt": ["DEF", "HI"], "n": 3, "seed": 5, "max_tokens": 20}
    seeds = [derived_seed(5, number) for number in range(3)]
    texts = [f"{prompt}{seed % 97}" for prompt in ("DEF", "HI") for seed in seeds]
    served = serve(script, blocks=blocks)
    answer = await served.complete(**body)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert answer["usage"]["prompt_tokens"] == 2
    assert [request.sampling.seed for request in served.backend.requests] == seeds * 2
    assert len({request.request_id for request in served.backend.requests}) == 6
    chunks = await served.stream_complete(**body, stream_options={"include_usage": True})
    for index, text in enumerate(texts):
        assert joined_text(chunks, index) == text
        assert finish_of(chunks, index) == "stop"
    assert chunks[-1]["usage"] == answer["usage"]
    assert chunks[-1]["metrics"] == answer["metrics"]
    assert sum("metrics" in chunk for chunk in chunks) == 1


@pytest.mark.parametrize("prompt", ["DEF", [3, 4, 5], ["DEF"], [[3, 4, 5]]])
async def test_every_form_of_prompt(serve, ids, prompt):
    served = serve()
    await served.complete(prompt=prompt)
    expected = (3, 4, 5) if prompt in ([3, 4, 5], [[3, 4, 5]]) else tuple(ids("DEF"))
    assert [request.prompt_ids for request in served.backend.requests] == [expected]


async def test_every_parameter_reaches_the_backend(serve):
    served = serve()
    await served.complete(
        prompt="Hello",
        max_tokens=9,
        temperature=0.5,
        top_p=0.25,
        top_k=-1,
        min_p=0.125,
        seed=-1,
        min_tokens=2,
        stop=["x", "yz"],
        stop_token_ids=[4, 5],
        ignore_eos=True,
        logprobs=3,
        presence_penalty=0.5,
        frequency_penalty=-1,
        repetition_penalty=1.25,
        logit_bias={"5": 2, "70": -100.0},
        include_stop_str_in_output=True,
        speculation={
            "enabled": False,
            "max_nodes": 8,
            "drafters": ["ssm"],
            "verification": "naive",
        },
    )
    (request,) = served.backend.requests
    sampling, stop = request.sampling, request.stop
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 0)
    assert (sampling.min_p, sampling.seed, sampling.min_tokens) == (0.125, (1 << 64) - 1, 2)
    penalties = (
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.repetition_penalty,
    )
    assert penalties == (0.5, -1.0, 1.25)
    assert sampling.logit_bias == ((5, 2.0), (70, -100.0))
    assert (stop.max_tokens, stop.ignore_eos, stop.show_stop) == (9, True, True)
    assert (stop.stop_strings, stop.stop_token_ids) == (("x", "yz"), (4, 5))
    assert (request.num_logprobs, request.prompt_logprobs) == (3, None)
    wish = request.speculation
    assert (wish.enabled, wish.max_nodes, wish.drafters) == (False, 8, ("ssm",))
    assert wish.verification == "naive"


async def test_speculation_is_left_to_the_server_by_default(serve):
    served = serve()
    await served.complete(prompt="Hello", speculation={})
    await served.complete(prompt="Hello")
    first, second = served.backend.requests
    assert first.speculation == second.speculation
    assert first.speculation.enabled
    assert first.speculation.drafters is None


async def test_token_ids_are_returned_if_asked_for(serve, ids):
    served = serve(ids("abc"), blocks=(2,))
    expected = {"prompt_token_ids": ids("Hello"), "token_ids": ids("abc")}
    body = {"prompt": "Hello", "max_tokens": 3, "return_token_ids": True}
    choice = (await served.complete(**body))["choices"][0]
    assert {name: choice[name] for name in expected} == expected
    for stream in (
        await served.stream_complete(**body),
        await served.stream_chat(messages=MESSAGES, max_tokens=3, return_token_ids=True),
    ):
        parts = choices_of(stream)
        assert flat(part.get("token_ids", []) for part in parts) == ids("abc")
        assert "prompt_token_ids" in parts[0]
        assert not any("prompt_token_ids" in part for part in parts[1:])


async def test_logprobs_of_a_completion(serve, ids, vocabulary):
    tokens = ids("DEF") + ids(" world")
    served = serve(tokens)
    answer = await served.complete(prompt="Hello", max_tokens=2, logprobs=2)
    logprobs = answer["choices"][0]["logprobs"]
    entries = [scripted_logprob(place, token, 2) for place, token in enumerate(tokens)]
    assert logprobs["tokens"] == ["DEF", " world"]
    assert logprobs["token_logprobs"] == [entry.logprob for entry in entries]
    assert logprobs["text_offset"] == [0, 3]
    assert logprobs["bytes"] == [list(b"DEF"), list(b" world")]
    for shown, entry in zip(logprobs["top_logprobs"], entries, strict=True):
        names = [vocabulary.token_bytes[id_].decode() for id_ in entry.top.token_ids]
        assert shown == dict(zip(names, entry.top.logprobs, strict=True))


async def test_logprobs_of_a_chat_answer_are_the_same_streamed(serve, ids):
    served = serve(ids("abc"), blocks=(2, 1))
    body = {"messages": MESSAGES, "max_tokens": 4, "logprobs": True, "top_logprobs": 3}
    content = (await served.chat(**body))["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["a", "b", "c", "<|end|>"]
    assert content[-1]["bytes"] is None
    for place, entry in enumerate(content):
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"] == -0.125 * (place + 1)
    parts = choices_of(await served.stream_chat(**body))
    streamed = [part["logprobs"]["content"] for part in parts if part["logprobs"]]
    assert flat(streamed) == content


async def test_logprobs_without_top(serve, ids):
    served = serve(ids("ab"))
    chat = await served.chat(messages=MESSAGES, max_tokens=1, logprobs=True)
    assert chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    plain = await served.complete(prompt="Hello", max_tokens=1, logprobs=0)
    assert plain["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.125}]


async def test_echo_of_a_prompt_alone_with_its_logprobs(serve, ids, tokenizer):
    served = serve()
    prompt = "Your answer: Yes"
    answer = await served.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=0)
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    assert (choice["text"], choice["finish_reason"]) == (prompt, "length")
    assert answer["usage"]["completion_tokens"] == 0
    assert "".join(logprobs["tokens"]) == prompt
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    count = len(ids(prompt))
    assert logprobs["token_logprobs"][1:] == [-0.125 * (place + 1) for place in range(1, count)]
    assert logprobs["text_offset"] == list(range(count))


@pytest.mark.parametrize("as_ids", [False, True])
async def test_echo_goes_before_the_output(serve, ids, as_ids):
    served = serve(ids("abc"))
    body = {
        "prompt": ids("DEF") if as_ids else "DEF",
        "echo": True,
        "logprobs": 1,
        "max_tokens": 3,
    }
    choice = (await served.complete(**body))["choices"][0]
    assert choice["text"] == "DEFabc"
    assert choice["logprobs"]["tokens"] == ["DEF", "a", "b", "c"]
    assert choice["logprobs"]["text_offset"] == [0, 3, 4, 5]
    chunks = await served.stream_complete(**body)
    assert joined_text(chunks) == "DEFabc"
    parts = choices_of(chunks)
    assert flat(part["logprobs"]["tokens"] for part in parts) == choice["logprobs"]["tokens"]


async def test_padded_ids_have_no_text_and_a_name(serve, vocabulary):
    served = serve([len(vocabulary) + 1])
    answer = await served.complete(prompt="Hello", max_tokens=1, logprobs=0)
    choice = answer["choices"][0]
    assert choice["text"] == ""
    assert choice["logprobs"]["tokens"] == [f"token_id:{len(vocabulary) + 1}"]


async def test_seeds(serve):
    served = serve()
    for seed in (42, 42, 43, None):
        await served.complete(prompt="Hello", temperature=2.0, seed=seed)
    assert [request.sampling.seed for request in served.backend.requests] == [42, 42, 43, 7]
