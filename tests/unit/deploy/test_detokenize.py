"""Pieces joined are the whole text, for every grouping and also after broken prompts."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from actors.request_manager.generation import FinishReason, GenerationEvent
from actors.vocabulary import Vocabulary
from deploy.detokenize import REPLACEMENT, Detokenizer, prompt_text

BYTES = Vocabulary(
    tuple(bytes([byte]) for byte in range(256)), tuple(map(str, range(256))), frozenset()
)
THAI = "\u0e44".encode()

# Fragments that make incomplete, invalid, overlong and whole characters likely.
fragments = st.sampled_from(
    [
        b"a",
        THAI,
        THAI[:2],
        THAI[2:],
        "🔥".encode(),
        b"\xf0\x9f",
        b"\x94",
        b"\xa5",
        b"\xff",
        b"\xc3",
        b"\xe1\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90",
        "é".encode(),
        b"\xef\xbf",
        b"\xbd",
    ]
)
byte_strings = st.lists(fragments | st.binary(max_size=3), max_size=8).map(b"".join)


def expected(prompt: bytes, output: bytes) -> str:
    """The text of both together, less the text of the prompt."""
    whole, before = (prompt + output).decode(errors="replace"), prompt.decode(errors="replace")
    if whole.startswith(before):
        return whole[len(before) :]
    assert before.endswith(REPLACEMENT)
    return whole.removeprefix(before[:-1])


def pieces_of(prompt: bytes, output: bytes, cuts: list[int], lag: int, shown: int) -> list[str]:
    """Feed `output` in groups; text lags behind by `lag` bytes, the last event shows `shown`."""
    detokenizer = Detokenizer(BYTES, tuple(prompt))
    places = [*sorted({cut for cut in cuts if cut < len(output)}), len(output)]
    pieces, start, visible = [], 0, 0
    for end in places:
        last = end == len(output)
        visible = shown if last else max(visible, min(end - lag, shown))
        reason = FinishReason.STOP if last else None
        event = GenerationEvent(tuple(output[start:end]), max(visible, 0), finish_reason=reason)
        pieces.append(detokenizer.feed(event))
        start = end
    return pieces


@given(byte_strings, byte_strings, st.lists(st.integers(1, 20)), st.integers(0, 3), st.data())
@example(b"Hello " + THAI[:2], THAI[2:], [], 0, None)
@example(b"\xef\xbf", b"\xbd", [], 0, None)
@example(b"\xf0\x9f\x94", b"\xa5", [], 0, None)
@example(b"\xed\xa0", b"a", [], 0, None)
@example(b"\xed\xa0", b"\x80", [], 0, None)
@example(b"Hello " + THAI[:2], b"", [], 0, None)
def test_joined_pieces_are_the_whole_text(prompt, output, cuts, lag, data):
    shown = len(output) if data is None else data.draw(st.integers(0, len(output)))
    pieces = pieces_of(prompt, output, cuts, lag, shown)
    assert "".join(pieces) == expected(prompt, output[:shown])


@given(st.text(max_size=12), st.lists(st.integers(1, 40)))
def test_no_part_of_a_character_is_shown(text, cuts):
    output = text.encode()
    pieces = pieces_of(b"", output, cuts, 0, len(output))
    assert "".join(pieces) == text
    assert all(piece.count(REPLACEMENT) <= text.count(REPLACEMENT) for piece in pieces)


@given(byte_strings, byte_strings)
def test_echo_and_output_join_to_the_text_of_both(prompt, output):
    detokenizer = Detokenizer(BYTES, tuple(prompt), show_replaced=True)
    event = GenerationEvent(tuple(output), len(output), finish_reason=FinishReason.LENGTH)
    echoed = prompt_text(BYTES, tuple(prompt))
    assert echoed + detokenizer.feed(event) == (prompt + output).decode(errors="replace")
