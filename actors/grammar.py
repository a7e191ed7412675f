"""Grammars that an output must follow, by the library `llguidance`; the one place that knows it.

A grammar travels as its source text, in llguidance's own form, and is compiled wherever it is
followed: where tokens are drawn, over the tokens of the LLM's vocabulary; where it is drafted from,
over single bytes. What it allows is the same in both, a matter of the bytes that text is made of.
Keywords of JSON schema that llguidance cannot enforce, or that there are not, are errors, never
passed over.

White space between the parts of a JSON text is free but bounded, so that a model cannot fill its
output with blanks.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from actors.errors import InputError
from actors.messages import MAX_GRAMMAR_BYTES
from actors.schema_keywords import unknown_keyword, wrong_multiple
from actors.vocabulary import Vocabulary

if TYPE_CHECKING:  # torch is not needed here
    from llguidance._lib import JsonCompileOptions

    from actors.logit_steps import Mask

MAX_SCHEMA_DEPTH = 64
MAX_REGEX_BYTES = 4096
MAX_CHOICES = 1024
MAX_START_WORK = 30_000
"""Parts of the lexer before its first token. A counted repetition within another one, which is
written out when text comes to it, then holds up a step for about 20 ms at most."""
MAX_LOOK_S = 0.005
"""For what single byte may come next; usual grammars take 0.01 to 0.4 ms, long ones up to 4; the
LLM's whole vocabulary takes some times as long."""
MAX_TOKEN_WORK = 50_000
"""Parser items, and new parts of the lexer, for one token: about 3 ms each."""

TOO_MUCH_WORK = "it needs too much work, as of counted repetitions within others"

_WORDS = {
    "too many expressions": TOO_MUCH_WORK,
    "too many states": TOO_MUCH_WORK,
    "Unable to determine if regex is empty": TOO_MUCH_WORK,
    "NoExtensionBias": "no text fits it",
    "Enable 'coerce_one_of'": "two forms of a oneOf may fit at once; use anyOf",
}
_NOT_MORE = "\n<non-verbose/>"

_BLANKS = r"[\x20\x0A\x0D\x09]{0,40}"
_SCHEMA_OPTIONS: JsonCompileOptions = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_flexible": True,
    "whitespace_pattern": _BLANKS,
}


def _limits() -> LLParserLimits:
    return LLParserLimits(
        initial_lexer_fuel=MAX_START_WORK,
        step_lexer_fuel=MAX_TOKEN_WORK,
        step_max_items=MAX_TOKEN_WORK,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def grammar_of_schema(schema: dict[str, Any], param: str) -> str:
    """The grammar of JSON texts that fit a JSON schema.

    Raises:
        InputError: on `param`, if the schema is too large, wrong, or has a keyword that there is
            not or that cannot be enforced.
    """
    if "x-guidance" in schema:
        raise InputError(f"{param} has an unknown keyword x-guidance", param, "invalid_schema")
    if _depth(schema) > MAX_SCHEMA_DEPTH:
        raise InputError(f"{param} is nested too deeply", param, "invalid_schema")
    if len(json.dumps(schema)) > MAX_GRAMMAR_BYTES // 2:
        raise InputError(f"{param} is too large", param, "invalid_schema")
    if (unknown := unknown_keyword(schema)) is not None:
        raise InputError(f"{param} has an unknown keyword {unknown}", param, "invalid_schema")
    if (wrong := wrong_multiple(schema)) is not None:
        raise InputError(f"{param}: {wrong}", param, "invalid_schema")
    try:
        source = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_SCHEMA_OPTIONS)
    except ValueError as error:  # as of numbers that are out of its range
        raise InputError(f"{param}: {error}", param, "invalid_schema") from error
    return _checked(source, param)


def grammar_of_json(param: str) -> str:
    """The grammar of all JSON objects."""
    return grammar_of_schema({"type": "object"}, param)


def grammar_of_regex(regex: str, param: str) -> str:
    """The grammar of texts that a regular expression matches whole. Raises InputError."""
    if not 1 <= len(regex.encode()) <= MAX_REGEX_BYTES:
        raise InputError(f"{param} must have 1 to {MAX_REGEX_BYTES} bytes", param)
    return _checked(LLMatcher.grammar_from_regex(regex), param)


def grammar_of_choice(choices: Sequence[str], param: str) -> str:
    """The grammar of a few texts. Raises InputError."""
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InputError(f"{param} must have 1 to {MAX_CHOICES} entries", param)
    if not all(choices):
        raise InputError(f"{param} holds an empty text", param)
    alternatives = " | ".join(json.dumps(choice) for choice in choices)
    return _checked(LLMatcher.grammar_from_lark(f"start: {alternatives}"), param)


def _checked(source: str, param: str) -> str:
    if len(source.encode()) > MAX_GRAMMAR_BYTES:
        raise InputError(f"{param} is too large", param, "invalid_grammar")
    is_wrong, messages = LLMatcher.validate_grammar_with_warnings(source, limits=_limits())
    if is_wrong or messages:
        raise InputError(f"{param}: {_in_words(messages[0])}", param, "invalid_grammar")
    try:
        start = byte_grammars().compile(source)
        if _look_s(start) > MAX_LOOK_S:
            raise GrammarError(TOO_MUCH_WORK)
    except GrammarError as error:
        raise InputError(f"{param}: {error}", param, "invalid_grammar") from error
    return source


def _look_s(matcher: Matcher) -> float:
    """Seconds of the processor's time for a look at what may come first: the least of a few."""
    seconds = []
    for other in [matcher.copy() for _ in range(3)]:
        since = time.thread_time()
        other.allowed()
        seconds.append(time.thread_time() - since)
    return min(seconds)


def _depth(value: object) -> int:
    """How deep a JSON value is nested, without recursion."""
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = [item for item in level if isinstance(item, dict | list)]
        level = [
            part for item in inner for part in (item.values() if isinstance(item, dict) else item)
        ]
    return depth


class GrammarError(Exception):
    """A grammar that cannot be followed: it is wrong, needs too much work, or the model has no end
    for it."""


class Matcher:
    """How far one output has come in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def copy(self) -> Matcher:
        """Another one at the same place."""
        return Matcher(self._matcher.deep_copy(), self._vocab_size)

    def accept(self, token_ids: Sequence[int]) -> int:
        """Go on as long as the grammar allows; returns over how many tokens.

        Raises:
            GrammarError: this matcher cannot be used any more.
        """
        count = self._matcher.try_consume_tokens(list(token_ids))
        self._check()
        return count

    def back(self, num_tokens: int) -> None:
        """Take back the last tokens. Raises GrammarError as `accept`."""
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._check()

    def allowed(self) -> Mask:
        """What may come next; at the end of the grammar that is EOS. Raises GrammarError."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def _check(self) -> None:
        _raise_error(self._matcher)


def _raise_error(matcher: LLMatcher) -> None:
    if not matcher.is_error():
        return
    raise GrammarError(_in_words(matcher.get_error()))


def _in_words(message: str) -> str:
    """What the library says, for people."""
    for mark, words in _WORDS.items():
        if mark in message:
            return words
    return message.removesuffix(_NOT_MORE)


class Grammars:
    """Compiles grammars for one vocabulary.

    Args:
        vocabulary: the LLM's.
        vocab_size: rows of its head; those beyond the vocabulary are never allowed.

    Raises:
        GrammarError: the vocabulary has no token to end a text with.
    """

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        if not vocabulary.eos_ids:
            raise GrammarError("the model has no token that ends a text")
        self._vocab_size = vocab_size
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary, vocab_size)),
            n_vocab=vocab_size,
            eos_token=sorted(vocabulary.eos_ids),
        )

    def compile(self, source: str) -> Matcher:
        """A matcher at the start of a grammar, which knows already what may come first.

        Raises:
            GrammarError: the grammar is wrong or needs too much work.
        """
        try:
            matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_limits())
        except (ValueError, RuntimeError) as error:  # as the library maps its own
            raise GrammarError(str(error)) from error
        _raise_error(matcher)
        start = Matcher(matcher, self._vocab_size)
        start.copy().allowed()  # most of the work, which copies share
        start.allowed()  # fails if that was too much
        return start


END_OF_BYTES = 256
"""The token that ends a text of single bytes."""


@functools.cache
def byte_grammars() -> Grammars:
    """For texts whose tokens are their bytes: what a grammar allows next, however it is split."""
    texts = (*(bytes([byte]) for byte in range(END_OF_BYTES)), b"")
    names = tuple(map(repr, texts))
    return Grammars(Vocabulary(texts, names, frozenset({END_OF_BYTES})), len(texts))


class _Tokens:
    """A vocabulary as llguidance reads it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        padding = (b"",) * (vocab_size - len(vocabulary))
        self.tokens = [*vocabulary.token_bytes, *padding]
        self.special_token_ids = [token for token, text in enumerate(self.tokens) if not text]
        self.eos_token_id = min(vocabulary.eos_ids)
        self._ids = {text: token for token, text in enumerate(vocabulary.token_bytes) if text}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: bytes) -> list[int]:
        """Longest tokens first: llguidance asks it of text that a grammar forces."""
        found: list[int] = []
        while text:
            lengths = range(min(len(text), self._longest), 0, -1)
            length = next((length for length in lengths if text[:length] in self._ids), 0)
            if not length:
                break
            found.append(self._ids[text[:length]])
            text = text[length:]
        return found
