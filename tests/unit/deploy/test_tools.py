"""Tools, calls and open-ended turns in the chat template, against `transformers`' own rendering."""

from __future__ import annotations

import pytest
from http_fakes import assert_error

TEMPLATE = (
    "{% if tools %}<|start|>tools\n{% for tool in tools %}{{ tool.function.name }}:"
    "{{ tool.function.parameters | tojson }}\n{% endfor %}<|end|>\n{% endif %}"
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}"
    "{{ call.function.arguments.city }}{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CONVERSATION = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "HI"}'},
            }
        ],
    },
    {"role": "tool", "content": "warm", "tool_call_id": "c1"},
]
AS_TEMPLATES_TAKE_IT = [
    *CONVERSATION[:2],
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": {"city": "HI"}},
            }
        ],
    },
    CONVERSATION[3],
]


@pytest.fixture
def tooled(serve, tokenizer):
    """A server whose model's template knows tools."""
    kept, tokenizer.chat_template = tokenizer.chat_template, TEMPLATE
    yield serve()
    tokenizer.chat_template = kept


def sent(served) -> list[int]:
    return list(served.backend.requests[-1].prompt_ids)


async def test_tools_calls_and_answers_are_rendered_as_by_transformers(tooled, tokenizer):
    await tooled.chat(messages=CONVERSATION, tools=[TOOL], tool_choice="auto")
    expected = tokenizer.apply_chat_template(
        AS_TEMPLATES_TAKE_IT, tools=[TOOL], add_generation_prompt=True
    )["input_ids"]
    assert sent(tooled) == expected
    assert "HI" in tokenizer.decode(expected)


async def test_tool_choice_none_leaves_the_tools_out(tooled, tokenizer):
    await tooled.chat(messages=CONVERSATION[:2], tools=[TOOL], tool_choice="none")
    expected = tokenizer.apply_chat_template(CONVERSATION[:2], add_generation_prompt=True)
    assert sent(tooled) == expected["input_ids"]


async def test_what_a_template_would_pass_over_is_refused(serve):
    served = serve()
    body = {"messages": CONVERSATION[1:2], "tools": [TOOL]}
    response = await served.post("/v1/chat/completions", body)
    assert_error(response, 400, "tools")
    response = await served.post("/v1/chat/completions", {"messages": CONVERSATION[1:]})
    assert_error(response, 400, "messages")
    assert served.backend.requests == []


async def test_the_last_message_is_gone_on_with(serve, tokenizer):
    served = serve()
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hel"}]
    await served.chat(messages=messages, continue_final_message=True)
    expected = tokenizer.apply_chat_template(messages, continue_final_message=True)["input_ids"]
    assert sent(served) == expected
    assert tokenizer.decode(expected).endswith("Hel")


async def test_no_turn_is_opened_if_none_is_wanted(serve, tokenizer):
    served = serve()
    messages = [{"role": "user", "content": "Hello"}]
    await served.chat(messages=messages, add_generation_prompt=False)
    assert sent(served) == tokenizer.apply_chat_template(messages)["input_ids"]
