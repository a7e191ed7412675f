"""From token bytes to text, piece by piece, never showing part of a character.

The pieces joined are exactly the text of all the bytes decoded at once: invalid bytes become
U+FFFD as `bytes.decode("utf-8", errors="replace")` makes them, and a character that is cut off at
the very end becomes one U+FFFD.

A prompt of token ids may end inside a character. The output then goes on with that character: it
is the text of prompt and output together, less the text of the prompt. A U+FFFD that the prompt's
own end would show belongs to the prompt.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from actors.request_manager.generation import GenerationEvent
from actors.vocabulary import Vocabulary

REPLACEMENT = "\ufffd"
_MAX_INCOMPLETE_BYTES = 3
_new_decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDecoder:
    """UTF-8 with U+FFFD for invalid bytes, after some bytes whose text is not wanted."""

    def __init__(self, before: bytes = b"", *, show_replaced: bool = False) -> None:
        """Args:
        before: earlier bytes; an incomplete character at their end is completed by what follows.
        show_replaced: show the U+FFFD that such a character becomes when it is not completed.
        """
        self._decoder = _new_decoder("replace")
        self._decoder.decode(before[-_MAX_INCOMPLETE_BYTES:])
        pending = self._decoder.getstate()[0]
        # One U+FFFD, or two: the start of a surrogate is held back too.
        self._dropped = "" if show_replaced else pending.decode(errors="replace")

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """Text that is certain after `data`; all of it if `final`."""
        text = self._decoder.decode(data, final)
        if text:
            text = text.removeprefix(self._dropped)
            self._dropped = ""
        return text


class Detokenizer:
    """The visible text of one output, from its events."""

    def __init__(
        self, vocabulary: Vocabulary, prompt_ids: Iterable[int], *, show_replaced: bool = False
    ) -> None:
        self._vocabulary = vocabulary
        self._decoder = IncrementalDecoder(
            tail_bytes(vocabulary, tuple(prompt_ids)), show_replaced=show_replaced
        )
        self._held = bytearray()
        self._num_decoded = 0

    def feed(self, event: GenerationEvent) -> str:
        """The text that this event adds."""
        self._held += self._vocabulary.text_bytes(event.token_ids)
        num_new = event.visible_bytes - self._num_decoded
        fresh = bytes(self._held[:num_new])
        del self._held[:num_new]
        self._num_decoded = event.visible_bytes
        return self._decoder.decode(fresh, final=event.finish_reason is not None)


def tail_bytes(vocabulary: Vocabulary, token_ids: tuple[int, ...]) -> bytes:
    """The last bytes of a run of tokens: enough to hold any incomplete character at its end."""
    tail = b""
    for token in reversed(token_ids):
        tail = vocabulary.text_bytes((token,)) + tail
        if len(tail) >= _MAX_INCOMPLETE_BYTES:
            break
    return tail


def prompt_text(vocabulary: Vocabulary, token_ids: Iterable[int]) -> str:
    """The text of a prompt of token ids without an incomplete character at its end."""
    return _new_decoder("replace").decode(vocabulary.text_bytes(token_ids))


def token_text(vocabulary: Vocabulary, token_id: int) -> str:
    """A token as text: special ones by name, part of a character as `bytes:\\xf0\\x9f`."""
    if token_id >= len(vocabulary):
        return f"token_id:{token_id}"
    data = vocabulary.token_bytes[token_id]
    if not data:
        return vocabulary.token_names[token_id]
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
