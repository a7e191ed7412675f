"""What the parts of a request body have in common: no unknown fields, limits, tagged unions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from actors.sampling import Range

Value = TypeVar("Value")


class Strict(BaseModel):
    """No conversions, no unknown fields, no changes; what stands below a field describes it."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


def within(allowed: Range) -> Any:  # noqa: ANN401  # as pydantic types its `Field`
    """For a number that must be in a range."""
    if allowed.is_open:
        return Field(gt=allowed.least, le=allowed.most)
    return Field(ge=allowed.least, le=allowed.most)


def described(**keywords: Any) -> Any:  # noqa: ANN401
    """Keywords of JSON schema for a limit that is kept elsewhere, where its error has a code of its
    own."""
    return Field(json_schema_extra=keywords)


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
