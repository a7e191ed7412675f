"""How a text of JSON is laid out, and so which blanks come next: no grammar tells.

Three ways are known: compact (`{"a":1,"b":2}`), spaced (`{"a": 1, "b": 2}`), and indented, each
part on a line of its own. The text so far shows which it is, by its first colon and its first line.
Little within strings can be taken for layout: line ends are escaped there, and a key comes first.
"""

from __future__ import annotations

import re
from enum import Enum

BLANKS = b" \t\n\r"

_OPENERS, _CLOSERS, _BETWEEN = (frozenset(marks) for marks in (b"{[", b"}]", b",:"))
_COMMA, _COLON = b",:"
_FIRST_COLON = re.compile(rb'":(.?)', re.DOTALL)
_USUAL_INDENT = 2


class Style(Enum):
    COMPACT = "compact"
    SPACED = "spaced"
    INDENTED = "indented"


def styles_of(text: bytes) -> tuple[Style, ...]:
    """The styles that a text may have, by what there is of it."""
    if b"\n" in text:
        return (Style.INDENTED,)
    colon = _FIRST_COLON.search(text)
    if colon and colon[1]:
        return (Style.SPACED if colon[1] in BLANKS else Style.COMPACT,)
    if text.strip(BLANKS + bytes(_OPENERS)):
        return (Style.COMPACT, Style.SPACED)
    return tuple(Style)


def blanks_before(part: int, text: bytes, style: Style) -> bytes:
    """The blanks between a text and its next part.

    Args:
        part: the first byte of the part.
        text: without blanks at its end.
    """
    behind = text[-1] if text else None
    if behind is None or part in _BETWEEN or (behind in _OPENERS and part in _CLOSERS):
        return b""
    if behind == _COLON:
        return b"" if style is Style.COMPACT else b" "
    if style is not Style.INDENTED:
        return b" " if style is Style.SPACED and behind == _COMMA else b""
    indent = _indent(text, text.rfind(b"\n"))
    unit = _indent(text, text.find(b"\n")) or _USUAL_INDENT
    if part in _CLOSERS:
        return b"\n" + b" " * (indent - unit)
    if behind in _OPENERS:
        return b"\n" + b" " * (indent + unit)
    return b"\n" + b" " * indent if behind == _COMMA else b""


def _indent(text: bytes, line_end: int) -> int:
    """Spaces at the beginning of the line behind a place; 0 without such a line."""
    line = text[line_end + 1 :] if line_end >= 0 else b""
    return len(line) - len(line.lstrip(b" "))
