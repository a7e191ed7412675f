"""The whole way: HTTP, Ray Serve, the manager, gRPC, the LLM, and back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from conftest import Server, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.model]

PROMPT = "Once upon a time, in a village by the sea,"


def metric(server: Server, name: str) -> float:
    """The sum of the samples whose line begins with this."""
    with server.client() as client:
        lines = client.get("/metrics").raise_for_status().text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def completion(server: Server, **fields: Any) -> dict[str, Any]:
    body = {"model": server.model, "prompt": PROMPT, "temperature": 0, "max_tokens": 24} | fields
    with server.client() as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def frames(response: httpx.Response) -> Any:
    """The JSON of each frame of a stream, as they come."""
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def streamed_text(
    server: Server, on_chunk: Callable[[int], None] | None = None, **fields: Any
) -> str:
    body = {"model": server.model, "prompt": PROMPT, "temperature": 0, "stream": True} | fields
    text = ""
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        for number, frame in enumerate(frames(answer)):
            assert "error" not in frame, frame
            text += "".join(choice["text"] for choice in frame["choices"])
            if on_chunk:
                on_chunk(number)
    return text


def test_a_chat(server: Server) -> None:
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 24,
    }
    with server.client() as client:
        answer = client.post("/v1/chat/completions", json=body).json()
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_stream_brings_the_same_text(server: Server) -> None:
    whole = completion(server)["choices"][0]["text"]
    assert streamed_text(server, max_tokens=24) == whole


def test_speculation_changes_how_soon_and_not_what(server: Server) -> None:
    prompt = "Repeat after me: one two three four five six. one two three four"
    fields = {"prompt": prompt, "max_tokens": 48, "temperature": 0.7, "seed": 11}
    with_drafts = completion(server, **fields)
    without = completion(server, **fields, speculation={"enabled": False})
    assert with_drafts["choices"][0]["text"] == without["choices"][0]["text"]
    assert without["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


def test_a_request_may_choose_how_its_drafts_are_verified(server: Server) -> None:
    prompt = "Repeat after me: one two three four five six. one two three four"
    fields = {"prompt": prompt, "max_tokens": 48, "temperature": 0.7, "seed": 11}
    plain = completion(server, **fields, speculation={"enabled": False})
    for rule in ("naive", "mss", "spectr", "typical"):
        answer = completion(server, **fields, speculation={"verification": rule})
        assert answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
        greedy = completion(server, prompt=prompt, speculation={"verification": rule})
        assert greedy["choices"] == completion(server, prompt=prompt)["choices"]
        if rule == "naive":
            assert answer["choices"][0]["text"] == plain["choices"][0]["text"]
    with server.client() as client:
        body = {"model": server.model, "prompt": "a", "speculation": {"verification": "hope"}}
        refusal = client.post("/v1/completions", json=body)
    assert refusal.status_code == 400
    assert refusal.json()["error"]["param"] == "speculation.verification"


def test_what_is_asked_of_the_logits_holds_with_speculation_and_without(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    fields = {"prompt": 'A person as JSON, like {"name": "Ann", "age": 3}: ', "max_tokens": 60}
    for more in (
        {"response_format": form},
        {"response_format": form, "temperature": 0.8, "seed": 4, "n": 2},
        {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "logit_bias": {"28": -100}},
    ):
        with_drafts = completion(server, **fields, **more)
        without = completion(server, **fields, **more, speculation={"enabled": False})
        texts = [choice["text"] for choice in with_drafts["choices"]]
        assert texts == [choice["text"] for choice in without["choices"]]
        for choice in with_drafts["choices"]:
            if "response_format" in more and choice["finish_reason"] == "stop":
                assert isinstance(json.loads(choice["text"])["age"], int)


def test_echo_scores_the_prompt(server: Server) -> None:
    fields = {"prompt": "Paris is the capital of France", "echo": True, "logprobs": 1}
    scored = completion(server, **fields, max_tokens=0)["choices"][0]["logprobs"]
    assert scored["token_logprobs"][0] is None
    assert all(logprob < 0 for logprob in scored["token_logprobs"][1:])
    longer = completion(server, **fields, max_tokens=1)["choices"][0]["logprobs"]
    assert longer["tokens"][:-1] == scored["tokens"]
    assert longer["token_logprobs"][1:-1] == pytest.approx(scored["token_logprobs"][1:], abs=0.2)


def test_the_models_page_says_that_the_weights_are_not_the_released_ones(server: Server) -> None:
    with server.client() as client:
        (entry,) = client.get("/v1/models").json()["data"]
    assert entry["id"] == server.model
    assert "4-bit" in entry["note"]


def test_a_wrong_request_is_refused_by_name(server: Server) -> None:
    body = {"model": server.model, "prompt": PROMPT, "temperature": -1}
    with server.client() as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "temperature"


def test_rude_neighbours_do_not_change_a_stream(server: Server) -> None:
    """Requests that are refused, that end at once, and that go away."""
    fields = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.8, "seed": 5}
    alone = streamed_text(server, **fields)
    rude = [
        {"temperature": float("nan")},
        {"temperature": 1e-9, "top_k": 10**12},
        {"temperature": 1e-4, "top_p": 1e-4, "max_tokens": 2},
        {"logit_bias": {"999999999": 5}},
        {"prompt": [10**9]},
        {"prompt": ""},
        {"n": 10**6},
        {"n": 128, "max_tokens": 1},
        {"max_tokens": 0},
        {"stop": ["\u2028", "a"], "max_tokens": 5},
    ]

    def disturb(chunk: int) -> None:
        if chunk < len(rude):
            body = {"model": server.model, "prompt": PROMPT} | rude[chunk]
            with server.client() as client:
                answer = client.post(
                    "/v1/completions",
                    content=json.dumps(body),
                    headers={"content-type": "application/json"},
                )
            assert answer.status_code < 500, (body, answer.text)
        elif chunk < 15:
            leave = {"prompt": PROMPT, "max_tokens": 500, "ignore_eos": True, "stream": True}
            with (
                server.client() as client,
                client.stream("POST", "/v1/completions", json=leave) as answer,
            ):
                next(frames(answer))

    assert streamed_text(server, disturb, **fields) == alone
    wait_until(lambda: metric(server, "treeserve_requests_running") == 0)
    assert metric(server, "treeserve_kv_blocks_used") == 0


def test_metrics_count_what_was_generated(server: Server) -> None:
    before = metric(server, "treeserve_generation_tokens_total")
    used = completion(server, ignore_eos=True)["usage"]["completion_tokens"]
    assert used == 24
    assert metric(server, "treeserve_generation_tokens_total") == before + used


def test_a_client_that_goes_away_frees_its_request(server: Server) -> None:
    aborted = 'treeserve_requests_total{finish_reason="abort"'
    before = metric(server, aborted)
    body = {
        "model": server.model,
        "prompt": PROMPT,
        "max_tokens": 4000,
        "ignore_eos": True,
        "stream": True,
    }
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        chunks = frames(answer)
        assert "error" not in next(chunks)
        assert metric(server, "treeserve_requests_running") == 1
    wait_until(lambda: metric(server, "treeserve_requests_running") == 0)
    wait_until(lambda: metric(server, "treeserve_kv_blocks_used") == 0)
    assert metric(server, aborted) == before + 1


def killed_in_mid_stream(server: Server, pids: Callable[[], list[int]]) -> None:
    """Kill a process under a stream: the text is that of an undisturbed one."""
    fields = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.8, "seed": 5}
    undisturbed = streamed_text(server, **fields)
    (victim,) = pids()

    def kill(chunk: int) -> None:
        if chunk == 5:
            os.kill(victim, signal.SIGKILL)

    assert streamed_text(server, kill, **fields) == undisturbed
    (successor,) = pids()
    assert successor != victim
    wait_until(lambda: metric(server, "treeserve_requests_running") == 0)


def test_a_killed_llm_does_not_change_a_stream(server: Server) -> None:
    killed_in_mid_stream(server, server.rank_pids)


def test_a_killed_draft_model_changes_nothing_and_comes_back(server: Server) -> None:
    fields = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.8, "seed": 5}
    drafted = 'treeserve_draft_tokens_total{drafter="ssm"'
    before = metric(server, drafted)
    undisturbed = streamed_text(server, **fields)
    assert metric(server, drafted) > before
    (victim,) = server.ssm_pids()

    def kill(chunk: int) -> None:
        if chunk == 5:
            os.kill(victim, signal.SIGKILL)

    assert streamed_text(server, kill, **fields) == undisturbed
    after = metric(server, drafted)

    def drafts_again() -> bool:
        assert streamed_text(server, **fields) == undisturbed
        return metric(server, drafted) > after

    wait_until(drafts_again)
    (successor,) = server.ssm_pids()
    assert successor != victim


def test_a_killed_manager_does_not_change_a_stream(server: Server) -> None:
    killed_in_mid_stream(server, server.manager_pids)


def test_a_killed_ingress_comes_back_to_its_port(server: Server) -> None:
    (victim,) = server.ingress_pids()
    body = {"prompt": PROMPT, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with (
        server.client() as client,
        pytest.raises(httpx.TransportError),
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        for number, _ in enumerate(frames(answer)):
            if number == 2:
                os.kill(victim, signal.SIGKILL)

    def answers() -> bool:
        try:
            with server.client() as client:
                return client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(answers)
    assert server.ingress_pids() != [victim]
    wait_until(lambda: metric(server, "treeserve_requests_running") == 0)
    assert metric(server, "treeserve_kv_blocks_used") == 0
    assert completion(server)["usage"]["completion_tokens"] == 24
