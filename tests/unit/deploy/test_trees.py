"""`return_trees`: what chunks then carry, and where it is refused."""

from __future__ import annotations

import pytest
from http_fakes import assert_error, choices_of, flat, joined_text

MESSAGES = [{"role": "user", "content": "Hello"}]


async def test_chunks_carry_the_trees_of_their_steps(serve, ids):
    served = serve(ids("abcdef"), blocks=(2, 3))
    chunks = await served.stream_complete(prompt="Hello", max_tokens=5, return_trees=True)
    trees = [choice["trees"] for choice in choices_of(chunks)]
    assert [[tree["committed"] for tree in shown] for shown in trees] == [
        [["a", "b"]],
        [["c", "d", "e"]],
    ]
    [tree] = trees[1]
    assert tree == {
        "step": 1,
        "tokens": ["!", "c", "d", '"'],
        "parents": [-1, 0, 1, 0],
        "drafters": [[], ["ssm", "prompt_lookup"], ["ssm", "prompt_lookup"], ["ssm"]],
        "estimates": [1.0, 0.75, 0.75, 0.123],
        "accepted": [1, 2],
        "committed": ["c", "d", "e"],
        "phase_s": {"draft": 0.125, "step": 0.5},
    }


async def test_a_chat_has_them_too_and_each_choice_its_own(serve, ids):
    served = serve(ids("abc"), blocks=(2,))
    chunks = await served.stream_chat(messages=MESSAGES, n=2, max_tokens=3, return_trees=True)
    for index in range(2):
        trees = flat([choice.get("trees", []) for choice in choices_of(chunks, index)])
        assert flat([tree["committed"] for tree in trees]) == ["a", "b", "c"]


async def test_trees_wait_with_their_text(serve, ids):
    """Tokens that may be the beginning of a stop string come late, and all trees come with them."""
    served = serve(ids("xDEyz"))
    chunks = await served.stream_complete(
        prompt="Hello", max_tokens=4, stop=["DEF"], return_trees=True
    )
    shown = [[tree["committed"] for tree in choice["trees"]] for choice in choices_of(chunks)]
    assert max(map(len, shown)) > 1
    assert "".join(flat(flat(shown))) == joined_text(chunks) == "xDEyz"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_without_it_there_are_none(serve, ids, path):
    served = serve(ids("abc"))
    body = {"prompt": "Hello"} if path == "/v1/completions" else {"messages": MESSAGES}
    for more in ({}, {"return_trees": False}):
        response = await served.post(path, {**body, **more, "stream": True, "max_tokens": 3})
        assert b'"trees"' not in response.content
        whole = await served.post(path, {**body, **more, "max_tokens": 3})
        assert b'"trees"' not in whole.content
    assert not any(request.return_trees for request in served.backend.requests)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "wrong", [{"return_trees": True}, {"return_trees": "yes", "stream": True}], ids=["whole", "str"]
)
async def test_it_is_refused_by_name(serve, ids, path, wrong):
    served = serve(ids("abc"))
    body = {"prompt": "Hello"} if path == "/v1/completions" else {"messages": MESSAGES}
    error = assert_error(await served.post(path, {**body, **wrong}), 400, "return_trees")
    assert error["type"] == "invalid_request_error"
    assert served.backend.requests == []


async def test_the_text_is_the_same_with_it(serve, ids):
    served = serve(ids("Hello world"), blocks=(2,))
    plain = await served.stream_complete(prompt="Hello", max_tokens=9)
    shown = await served.stream_complete(prompt="Hello", max_tokens=9, return_trees=True)
    assert joined_text(shown) == joined_text(plain)
