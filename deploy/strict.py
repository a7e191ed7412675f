"""What the parts of a request body have in common: no unknown fields, and unions told by a tag."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

Value = TypeVar("Value")


class Strict(BaseModel):
    """No conversions, no unknown fields, no changes; what stands below a field describes it."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


def told_by(field: str, tags: Collection[str], otherwise: str) -> Discriminator:
    """Tells the members of a union apart: the field's value is the tag, if it is one of `tags`.

    Args:
        otherwise: the tag of all others; its member then says what is wrong with the value, with
            `also` on that field.
    """

    def tag_of(value: object) -> str:
        tag = value.get(field) if isinstance(value, dict) else getattr(value, field, None)
        return tag if isinstance(tag, str) and tag in tags else otherwise

    return Discriminator(tag_of)


def also(*tags: str) -> WrapValidator:
    """For the field that tells a union's members apart, in the member that takes all others.

    What is wrong with a value is said with the tags of the other members: they may be meant too.
    """

    def check(value: Value, inner: ValidatorFunctionWrapHandler) -> Value:
        try:
            checked: Value = inner(value)
        except ValidationError as error:
            expected = error.errors()[0].get("ctx", {}).get("expected", "")
            known = [part for part in str(expected).replace(" or ", ", ").split(", ") if part]
            others = ", ".join([*known, *map(repr, tags[:-1])])
            raise PydanticCustomError(
                "unknown_tag", f"Input should be {others} or {tags[-1]!r}"
            ) from None
        return checked

    return WrapValidator(check)
