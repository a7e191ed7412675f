"""Which keywords a JSON schema may have, so that a misspelt one is told of and not passed over.

Those of the drafts from 4 to 2020-12, in their places: names of properties and the values of
`const`, `enum`, `default` and `examples` are no keywords. Whether one can be enforced is not
settled here. Names that begin with `x-` are annotations by custom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from difflib import get_close_matches


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ONE_SCHEMA = _words(
    """
    additionalItems additionalProperties contains contentSchema else if items not propertyNames
    then unevaluatedItems unevaluatedProperties
    """
)
_SCHEMAS_BY_NAME = _words(
    "$defs definitions dependencies dependentSchemas patternProperties properties"
)
_LIST_OF_SCHEMAS = _words("allOf anyOf items oneOf prefixItems")
_OTHERS = _words(
    """
    $anchor $comment $dynamicAnchor $dynamicRef $id $recursiveAnchor $recursiveRef $ref $schema
    $vocabulary const contentEncoding contentMediaType default dependentRequired deprecated
    description discriminator enum examples exclusiveMaximum exclusiveMinimum format id maxContains
    maxItems maxLength maxProperties maximum minContains minItems minLength minProperties minimum
    multipleOf pattern readOnly required title type uniqueItems writeOnly
    """
)
KEYWORDS = _ONE_SCHEMA | _SCHEMAS_BY_NAME | _LIST_OF_SCHEMAS | _OTHERS

MAX_REMAINDERS = 10_000
"""Of all `multipleOf` of a schema: automata have a state for each, and take memory by it."""
_SHOWN = 60
"""Characters of a keyword that there is not."""

_Place = tuple[str, object]
"""Where in the schema, and what stands there."""


def unknown_keyword(schema: Mapping[str, object]) -> str | None:
    """The first keyword that there is not: its path, and what may be meant; None if all are known.

    Walks without recursion: a schema may be nested as deeply as its sender likes.
    """
    for path, value in _walk(schema):
        for key in value:
            if key not in KEYWORDS and not key.startswith("x-"):
                key = key[:_SHOWN]
                close = get_close_matches(key, KEYWORDS, 1)
                return f"{path}{key}" + (f" (is {close[0]} meant?)" if close else "")
    return None


def wrong_multiple(schema: Mapping[str, object]) -> str | None:
    """What is wrong with a schema's `multipleOf`; None if nothing is.

    They have to be positive, and to have no more remainders than automata should have states.
    """
    total = 0
    for path, value in _walk(schema):
        multiple = value.get("multipleOf")
        if isinstance(multiple, bool) or not isinstance(multiple, (int, float)):
            continue  # no number, though Python takes a truth value for one: refused elsewhere
        if multiple <= 0:
            return f"{path}multipleOf must be positive"
        total += _num_remainders(multiple)
        if total > MAX_REMAINDERS:
            return "a multipleOf is too large, or all are together"
    return None


def _num_remainders(multiple: float) -> int:
    """Of the decimal digits before and behind the point, taken as one number."""
    _, digits, exponent = Decimal(str(multiple)).as_tuple()
    if not isinstance(exponent, int):
        return 0  # no number: refused elsewhere
    number = int("".join(map(str, digits)))
    return number if exponent <= 0 else number * int(10 ** min(exponent, 9))


def _walk(schema: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Every schema in a schema, with its path."""
    waiting: list[_Place] = [("", schema)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping):  # else a boolean, or a mistake of another kind
            yield path, value
            waiting.extend(_schemas_in(path, value))


def _schemas_in(path: str, schema: Mapping[str, object]) -> Iterator[_Place]:
    for key, value in schema.items():
        if key in _ONE_SCHEMA:
            yield f"{path}{key}.", value
        if key in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
            yield from ((f"{path}{key}.{name}.", inner) for name, inner in value.items())
        if key in _LIST_OF_SCHEMAS and isinstance(value, list):
            yield from ((f"{path}{key}[{place}].", inner) for place, inner in enumerate(value))
