"""What the parts of a request body have in common: no unknown fields, and unions told by a tag."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import BaseModel, ConfigDict, Discriminator


class Strict(BaseModel):
    """No conversions, no unknown fields, no changes; what stands below a field describes it."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


def told_by(field: str, tags: Collection[str], otherwise: str) -> Discriminator:
    """Tells the members of a union apart: the field's value is the tag, if it is one of `tags`.

    Args:
        otherwise: the tag of all others; its member then says what is wrong with the value.
    """

    def tag_of(value: object) -> str:
        tag = value.get(field) if isinstance(value, dict) else getattr(value, field, None)
        return tag if isinstance(tag, str) and tag in tags else otherwise

    return Discriminator(tag_of)
