"""Drafts from a request's grammar: the text that it forces, or leaves few ways to write.

A grammar is followed over bytes, since what it forces are bytes, not tokens. The text is then split
as the LLM's tokenizer splits it, which is how the LLM would rather say it. A wrong guess, as one of
blanks or of where a token ends, costs what any draft costs.

Grammars are compiled in the background; until then, and where one cannot be followed or takes too
long to, there are no drafts. All requests of a step share its time, and each step begins with
another one; what is left of an output then, as of one that was resumed, is followed in later steps.
Kept of a request are its place in its grammar, what of its output is still to be followed, and as
much of the rest as tells how it is laid out.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from actors.grammar import GrammarError, Matcher, byte_grammars
from actors.grammar_compiler import GrammarCompiler
from actors.request_manager.drafters.fair_time import FairTime
from actors.request_manager.drafters.foreseen import Foreseen, foresee
from actors.request_manager.ports import Clock, Draft, DraftTask, Encode
from actors.tree import TokenTree
from actors.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

MAX_STEP_S = 0.003
"""Of the processor's time, for all requests in one step."""
PIECE_BYTES = 32
"""Followed at once, between two looks at the clock; about 50 µs in a grammar of usual size."""
FEW_BYTES = 256
"""A request that takes a whole step's time, and has not followed as many, has a slow grammar."""
MAX_SLOW_STEPS = 8
"""A grammar that is slow more often is left alone."""
QUICK_STEPS = 64
"""As many make up for a slow one."""
LAYOUT_BYTES = 512
"""Of an output, kept of its beginning and of its end."""
SPLIT_ODDS = 0.95
"""That the LLM ends a token of a known text where the tokenizer does."""

_SLOW_KEPT = 64
"""Grammars whose slow steps are remembered."""


class GrammarDrafter:
    """A drafter that reads grammars. Keeps a place in its grammar for each request.

    Args:
        vocabulary: the LLM's.
        encode: splits text into its tokens.
        clock: seconds of the processor's time.
    """

    name = "grammar"
    is_away = False

    def __init__(
        self, vocabulary: Vocabulary, encode: Encode, clock: Clock = time.thread_time
    ) -> None:
        self._vocabulary = vocabulary
        self._encode = encode
        self._compiler = GrammarCompiler(byte_grammars)
        self._walks: dict[int, _Walk] = {}
        self._slowness = _Slowness()
        self._time = FairTime(MAX_STEP_S, clock)

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        """Drafts for the tasks whose grammars have something to say."""
        drafts = {}
        for task in self._time.turns([task for task in tasks if task.grammar]):
            texts = self._foreseen(task)
            paths = [path for text in texts if (path := self._path(text, task.max_depth))]
            if paths:
                drafts[task.request_id] = _draft(paths)
        return drafts

    def forget(self, request_id: int) -> None:
        walk = self._walks.pop(request_id, None)
        if walk is not None:
            self._compiler.release(walk.source)

    def _foreseen(self, task: DraftTask) -> list[Foreseen]:
        if self._slowness.is_too_much(task.grammar):
            self.forget(task.request_id)
            return []
        walk = self._walks.get(task.request_id)
        if walk is None:
            start = self._compiler.acquire(task.grammar)
            walk = self._walks[task.request_id] = _Walk(task.grammar, start, self._vocabulary)
        before = walk.num_followed
        found = walk.foreseen(task.token_ids, task.prompt_len, self._time.is_up)
        is_long = self._time.was_used_up()
        self._slowness.note(task.grammar, is_long and walk.num_followed - before < FEW_BYTES)
        return found

    def _path(self, foreseen: Foreseen, max_depth: int) -> list[tuple[int, float]]:
        """A text's tokens, each with the odds of the text as far as its end."""
        # A character that is not whole is for another step.
        tokens = self._encode(foreseen.text.decode(errors="ignore"))
        path, end = [], 0
        for token in tokens[:max_depth]:
            begin, end = end, end + len(text := self._vocabulary.text_bytes([token]))
            if not text or foreseen.text[begin:end] != text:
                break
            path.append((token, foreseen.odds[end - 1]))
        return path


class _Slowness:
    """Which grammars take too long, of those that were slow of late."""

    def __init__(self) -> None:
        self._num_slow: OrderedDict[str, float] = OrderedDict()

    def is_too_much(self, source: str) -> bool:
        return self._num_slow.get(source, 0.0) > MAX_SLOW_STEPS

    def note(self, source: str, is_slow: bool) -> None:
        """A step of a request with this grammar is done."""
        num_slow = self._num_slow.pop(source, 0.0) + (1.0 if is_slow else -1.0 / QUICK_STEPS)
        if num_slow > 0.0:
            self._num_slow[source] = num_slow
        if num_slow > MAX_SLOW_STEPS:
            logger.info("no more drafts from a grammar: it takes too long to follow")
        if len(self._num_slow) > _SLOW_KEPT:
            self._num_slow.popitem(last=False)


class _Walk:
    """One request's way through its grammar.

    Args:
        source: the grammar.
        start: a matcher at the grammar's start, when it is compiled; or GrammarError.
        vocabulary: the LLM's.

    Attributes:
        num_followed: bytes of output that the grammar was followed over.
    """

    def __init__(self, source: str, start: Future[Matcher], vocabulary: Vocabulary) -> None:
        self.source = source
        self.start = start
        self.num_followed = 0
        self._vocabulary = vocabulary
        self._matcher: Matcher | None = None
        self._num_tokens = 0  # of output, followed or ahead
        self._ahead = bytearray()
        self._followed = bytearray()  # its beginning and its end
        self._is_lost = False

    def foreseen(
        self, token_ids: Sequence[int], prompt_len: int, is_late: Callable[[], bool]
    ) -> list[Foreseen]:
        """What may come behind an output that has only grown since this was called last.

        Args:
            is_late: True when no more time is to be spent.
        """
        if self._is_lost or not self.start.done():
            return []
        try:
            matcher = self._at()
            self._follow(matcher, token_ids[prompt_len + self._num_tokens :], is_late)
            return [] if self._ahead else foresee(matcher, bytes(self._followed), is_late)
        except GrammarError as error:
            logger.info("no more drafts from a grammar: %s", error)
            self._is_lost = True
        return []

    def _at(self) -> Matcher:
        if self._matcher is None:
            self._matcher = self.start.result().copy()
        return self._matcher

    def _follow(self, matcher: Matcher, new: Sequence[int], is_late: Callable[[], bool]) -> None:
        """Go on over the output, which has new tokens, as far as there is time."""
        self._ahead += self._vocabulary.text_bytes(new)
        self._num_tokens += len(new)
        while self._ahead and not is_late():
            piece = bytes(self._ahead[:PIECE_BYTES])
            if matcher.accept(piece) < len(piece):
                raise GrammarError("the output does not follow it")
            del self._ahead[: len(piece)]
            self.num_followed += len(piece)
            self._followed += piece
            del self._followed[LAYOUT_BYTES:-LAYOUT_BYTES]


def _draft(paths: Sequence[Sequence[tuple[int, float]]]) -> Draft:
    """One tree of all paths; a node's score is its text's odds given its parent's."""
    chains = [TokenTree.chain(token for token, _ in path) for path in paths]
    tree, places = TokenTree.union(chains)
    scores = [math.nan] * len(tree)
    for path, nodes in zip(paths, places, strict=True):
        before = 1.0
        for node, (_, odds) in zip(nodes, path, strict=True):
            scores[node] = SPLIT_ODDS * odds / before
            before = odds
    return Draft(tree, tuple(scores))
