"""How long the repeated fields of a protobuf message may be, as `speculation.proto` declares it.

Every repeated field carries the option `(bound)`: at most `items` entries, or at most `per_node`
entries for each node (token) of the message that holds it. The options are read once per message
type; a check then costs one length per repeated field, never a walk over the entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from actors.errors import ProtocolError
from protos import speculation_pb2 as pb

NODE_FIELDS = ("token_ids", "drawn_ids")
"""The field whose length is a message's number of nodes; a message has one of these at most."""


@dataclass(frozen=True)
class _Limits:
    """The bounds of one message type. Of `items` and `per_node` one is 0."""

    nodes_field: str | None
    fields: tuple[tuple[str, int, int], ...]
    """(name, items, per_node) of each repeated field."""
    inner: tuple[tuple[str, bool, _Limits], ...]
    """(name, repeated, limits) of the fields whose messages have bounds of their own."""

    @property
    def bind(self) -> bool:
        return bool(self.fields or self.inner)


def check_bounds(message: Message) -> None:
    """Check `message` and every message in it.

    Raises:
        ProtocolError: naming the first field that is too long.
    """
    _check(message, _limits(message.DESCRIPTOR))


def _check(message: Message, limits: _Limits) -> None:
    nodes = len(getattr(message, limits.nodes_field)) if limits.nodes_field else 0
    for name, items, per_node in limits.fields:
        count = len(getattr(message, name))
        if count > items + per_node * nodes:
            raise ProtocolError(
                f"{message.DESCRIPTOR.name}.{name} has {count} entries, "
                f"at most {items + per_node * nodes} are allowed"
            )
    for name, is_repeated, inner_limits in limits.inner:
        value = getattr(message, name)
        for inner in value if is_repeated else (value,):
            _check(inner, inner_limits)


@cache
def _limits(descriptor: Descriptor) -> _Limits:
    repeated = [field for field in descriptor.fields if field.is_repeated]
    nodes_field = next((field.name for field in repeated if field.name in NODE_FIELDS), None)
    inner = [
        (field.name, field.is_repeated, _limits(field.message_type))
        for field in descriptor.fields
        if field.message_type is not None
    ]
    return _Limits(
        nodes_field,
        tuple((field.name, *declared_bound(field)) for field in repeated),
        tuple(entry for entry in inner if entry[2].bind),
    )


def declared_bound(field: FieldDescriptor) -> tuple[int, int]:
    """(items, per_node) as declared on `field`; (0, 0) where nothing is."""
    bound = field.GetOptions().Extensions[pb.bound]
    return bound.items, bound.per_node
