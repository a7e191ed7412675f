"""Messages and tools of `/v1/chat/completions`, and what a chat template is given of them.

Text only. Tools and calls are put into words by the model's chat template; what the model answers
comes back as text.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, JsonValue, Tag

from actors.errors import InputError
from deploy.request_body import parse_json
from deploy.strict import Strict, also, told_by

MAX_TOOLS = 128
MAX_TOOL_CALLS = 128

Empty = Annotated[list[Any], Field(max_length=0)] | None


class TextPart(Strict):
    """A piece of a message; only text is supported."""

    type: Literal["text"]
    text: str


def one_or_many(value: object) -> str:
    """Which of two forms a value is meant to have, so that errors speak of that one."""
    return "many" if isinstance(value, list) else "one"


Content = Annotated[
    Annotated[str, Tag("one")]
    | Annotated[list[TextPart], Field(fail_fast=True, min_length=1), Tag("many")],
    Discriminator(one_or_many),
]


class PlainMessage(Strict):
    """A turn that is not the model's own; the chat template may take fewer roles than these."""

    role: Annotated[Literal["system", "developer", "user"], also("assistant", "tool")]
    content: Content
    name: str | None = None


class FunctionCall(Strict):
    """What the model called."""

    name: str
    arguments: str
    """A JSON object."""


class ToolCall(Strict):
    """One call in a turn of the model."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class AssistantMessage(Strict):
    """A turn of the model; without `content` only where it called tools."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS)] | None = None
    # An earlier answer, sent back as it came, carries these; they are taken when they say nothing.
    annotations: Empty = None
    audio: None = None
    function_call: None = None
    refusal: None = None


class ToolMessage(Strict):
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str | None = None
    name: str | None = None


ChatMessage = Annotated[
    Annotated[PlainMessage, Tag("plain")]
    | Annotated[AssistantMessage, Tag("assistant")]
    | Annotated[ToolMessage, Tag("tool")],
    told_by("role", ("assistant", "tool"), otherwise="plain"),
]


class FunctionDefinition(Strict):
    """What a tool is called with."""

    name: str
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: Literal[False] | None = None


class Tool(Strict):
    """A function that the model may call."""

    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


def template_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """The conversation as chat templates expect it: texts whole, arguments of calls as objects.

    Raises:
        InputError: naming the message at fault.
    """
    return [_for_template(message, place) for place, message in enumerate(messages)]


def _for_template(message: ChatMessage, place: int) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": _text(message.content)}
    if message.name is not None:
        turn["name"] = message.name
    if isinstance(message, AssistantMessage):
        if message.tool_calls:
            turn["tool_calls"] = [
                _call_for_template(call, f"messages[{place}].tool_calls[{number}]")
                for number, call in enumerate(message.tool_calls)
            ]
        elif message.content is None:
            param = f"messages[{place}].content"
            raise InputError(f"{param} is required", param, "missing_required_parameter")
    elif isinstance(message, ToolMessage) and message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _text(content: str | list[TextPart] | None) -> str:
    """The content as one string; parts are joined by line breaks."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)


def _call_for_template(call: ToolCall, path: str) -> dict[str, Any]:
    param = f"{path}.function.arguments"
    arguments = parse_json(call.function.arguments, param, param)
    if not isinstance(arguments, dict):
        raise InputError(f"{param} is not a JSON object", param, "invalid_value")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}
