"""Drafts from a request's grammar: the text that it forces, or leaves few ways to write.

A grammar is followed over bytes, since what it forces are bytes, not tokens. The text is then split
as the LLM's tokenizer splits it, which is how the LLM would rather say it. A wrong guess, as one of
blanks or of where a token ends, costs what any draft costs.

Grammars are compiled in the background; until then, and where one cannot be followed or takes too
long to, there are no drafts. Nothing is kept of a request but how far it has come.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from actors.grammar import GrammarError, Matcher, byte_grammars
from actors.grammar_compiler import GrammarCompiler
from actors.request_manager.drafters.foreseen import Foreseen, foresee
from actors.request_manager.ports import Clock, Draft, DraftTask, Encode
from actors.tree import TokenTree
from actors.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

MAX_CATCH_UP_TOKENS = 512
"""Of an output that was resumed, followed in one step: about 3 ms."""
MAX_STEP_S = 0.003
"""Of the processor's time, for one request in one step."""
MAX_SLOW_STEPS = 8
"""A grammar that takes longer as often is left alone."""
SPLIT_ODDS = 0.95
"""That the LLM ends a token of a known text where the tokenizer does."""


class GrammarDrafter:
    """A drafter that reads grammars. Keeps a place in its grammar for each request.

    Args:
        vocabulary: the LLM's.
        encode: splits text into its tokens.
        clock: seconds of the processor's time.
    """

    name = "grammar"

    def __init__(
        self, vocabulary: Vocabulary, encode: Encode, clock: Clock = time.thread_time
    ) -> None:
        self._vocabulary = vocabulary
        self._clock = clock
        self._encode = encode
        self._compiler = GrammarCompiler(byte_grammars)
        self._walks: dict[int, _Walk] = {}

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        """Drafts for the tasks whose grammars have something to say."""
        drafts = {}
        for task in tasks:
            texts = self._foreseen(task) if task.grammar else []
            paths = [path for text in texts if (path := self._path(text, task.max_depth))]
            if paths:
                drafts[task.request_id] = _draft(paths)
        return drafts

    def forget(self, request_id: int) -> None:
        walk = self._walks.pop(request_id, None)
        if walk and not any(other.start is walk.start for other in self._walks.values()):
            self._compiler.give_up(walk.start)

    def _foreseen(self, task: DraftTask) -> list[Foreseen]:
        walk = self._walks.get(task.request_id)
        if walk is None:
            start = self._compiler.start_of(task.grammar)
            walk = self._walks[task.request_id] = _Walk(start, self._vocabulary, self._clock)
        return walk.foreseen(task.token_ids, task.prompt_len)

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


class _Walk:
    """One request's way through its grammar.

    Args:
        start: a matcher at the grammar's start, when it is compiled; or GrammarError.
        vocabulary: the LLM's.
        clock: seconds of the processor's time.
    """

    def __init__(self, start: Future[Matcher], vocabulary: Vocabulary, clock: Clock) -> None:
        self.start = start
        self._clock = clock
        self._num_slow = 0
        self._vocabulary = vocabulary
        self._matcher: Matcher | None = None
        self._num_followed = 0  # output tokens
        self._output = bytearray()
        self._is_lost = False

    def foreseen(self, token_ids: Sequence[int], prompt_len: int) -> list[Foreseen]:
        """What may come behind an output that has only grown since this was called last."""
        if self._is_lost or not self.start.done():
            return []
        end_s = self._clock() + MAX_STEP_S
        found: list[Foreseen] = []
        try:
            if self._follow(token_ids, prompt_len + self._num_followed):
                found = foresee(self._at(), bytes(self._output), lambda: self._clock() > end_s)
            self._num_slow += self._clock() > end_s
            if self._num_slow > MAX_SLOW_STEPS:
                raise GrammarError("it takes too long to follow")
        except GrammarError as error:
            logger.info("no more drafts from a grammar: %s", error)
            self._is_lost = True
        return found

    def _at(self) -> Matcher:
        if self._matcher is None:
            self._matcher = self.start.result().copy()
        return self._matcher

    def _follow(self, token_ids: Sequence[int], begin: int) -> bool:
        """Go on over the output's new tokens; False while there are more of them."""
        new = token_ids[begin : begin + MAX_CATCH_UP_TOKENS]
        text = self._vocabulary.text_bytes(new)
        if self._at().accept(text) < len(text):
            raise GrammarError("the output does not follow it")
        self._num_followed += len(new)
        self._output += text
        return begin + len(new) == len(token_ids)


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
