"""What each node of a step may draw by its request's grammar.

Masks depend on tokens alone, not on logits, so they are made on a thread of their own while the
model's forward pass runs. A grammar's state is moved along the tree: forward over the tokens of a
path, and back where the paths part. A node that its grammar forbids can never be accepted and gets
no mask; nor do the nodes below it.

Grammars are compiled on another thread: a large one holds up its own request and no step. One whose
masks go on taking long, as of counted repetitions within others, ends its request.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from actors.grammar import GrammarError, Grammars, Matcher
from actors.grammar_compiler import GrammarCompiler
from actors.logit_steps import Mask
from actors.messages import NewRequest, Row
from actors.tree import CONTEXT
from actors.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

Clock = Callable[[], float]

MAX_MASK_S = 0.005
"""Of the processor's time for a mask, on average; usual grammars take 0.01 to 0.6 ms."""
MANY_MASKS = 8
"""The average is over as many at least."""

NodeMasks = Mapping[int, Mask]
"""By node of a row; none where nothing that counts can be drawn."""


class Constraints:
    """The grammars of a rank's requests.

    Args:
        vocabulary: the LLM's.
        vocab_size: rows of its head.
        clock: seconds of the processor's time on the thread that asks.
    """

    def __init__(
        self, vocabulary: Vocabulary, vocab_size: int, clock: Clock = time.thread_time
    ) -> None:
        self._clock = clock
        self._compiler = GrammarCompiler(functools.partial(Grammars, vocabulary, vocab_size))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="masks")
        # Each walk is moved by the worker alone.
        self._walks: dict[int, _Walk] = {}

    def clear(self) -> None:
        """A new epoch begins."""
        for request_id in list(self._walks):
            self._drop(request_id)

    def follow(self, new: Sequence[NewRequest], gone: Sequence[int]) -> None:
        """Requests go, and others come, whose grammars are compiled before they are needed."""
        for request_id in gone:
            self._drop(request_id)
        for request in new:
            if request.grammar:
                self._walks[request.request_id] = _Walk(
                    request, self._compiler.acquire(request.grammar), self._clock
                )

    def _drop(self, request_id: int) -> None:
        walk = self._walks.pop(request_id, None)
        if walk is not None:
            self._compiler.release(walk.source)

    def wait(self, request_ids: Sequence[int], patience_s: float) -> set[int]:
        """Which of these requests' grammars are still being compiled.

        Args:
            patience_s: how long to wait for the first that is ready, if none is.
        """
        starts = {request_id: self._walks[request_id].start for request_id in request_ids}
        wait(starts.values(), patience_s, FIRST_COMPLETED)
        return {request_id for request_id, start in starts.items() if not start.done()}

    def begin(self, rows: Sequence[tuple[Row, Sequence[int]]]) -> Future[dict[int, NodeMasks]]:
        """Start on the masks of a step; the result is by request id.

        Args:
            rows: those of requests with a grammar, each with the output that stands before it.
        """
        return self._worker.submit(_masks, self._with_walks(rows))

    def allowed(self, rows: Sequence[tuple[Row, Sequence[int]]]) -> dict[int, tuple[int, ...]]:
        """By request id, the nodes of its row that its grammar allows, and the root.

        Args:
            rows: as for `begin`; the tokens before each row and its root are output.
        """
        return self._worker.submit(_allowed, self._with_walks(rows)).result()

    def _with_walks(self, rows: Sequence[tuple[Row, Sequence[int]]]) -> list[_WalkedRow]:
        return [(self._walks[row.request_id], row, output) for row, output in rows]


def _masks(rows: Sequence[_WalkedRow]) -> dict[int, NodeMasks]:
    return {row.request_id: walk.masks(row, output) for walk, row, output in rows}


def _allowed(rows: Sequence[_WalkedRow]) -> dict[int, tuple[int, ...]]:
    return {row.request_id: walk.allowed(row, output) for walk, row, output in rows}


class _Walk:
    """One request's grammar, moved along its output and its trees.

    Args:
        new: the request.
        start: a matcher at the start of its grammar, or GrammarError.
        clock: seconds of the processor's time.
    """

    def __init__(self, new: NewRequest, start: Future[Matcher], clock: Clock) -> None:
        self.source = new.grammar
        self.start = start
        self._new = new
        self._clock = clock
        self._num_masks = 0
        self._masks_s = 0.0
        self._matcher: Matcher | None = None
        self._output: list[int] = []  # behind which the matcher stands, between rows

    def masks(self, row: Row, output: Sequence[int]) -> NodeMasks:
        """The masks of a row's output nodes, `output` being what stands before the row."""
        masks: dict[int, Mask] = {}

        def look(node: int, matcher: Matcher) -> None:
            if node >= row.first_output and self._place(row, node) + 1 >= self._new.prompt_len:
                since = self._clock()
                masks[node] = matcher.allowed()
                self._num_masks += 1
                self._masks_s += self._clock() - since

        self._visit(row, output, look)
        return masks

    @property
    def _is_dear(self) -> bool:
        return self._masks_s > MAX_MASK_S * max(self._num_masks, MANY_MASKS)

    def allowed(self, row: Row, output: Sequence[int]) -> tuple[int, ...]:
        """The nodes that the grammar allows, ascending; the root is always among them."""
        good = self._visit(row, output, lambda node, matcher: None)
        return tuple(sorted(good | {0}))

    def _visit(
        self, row: Row, output: Sequence[int], look: Callable[[int, Matcher], None]
    ) -> set[int]:
        """Look at all nodes that the grammar allows, with a matcher behind each; returns them."""
        good, path = {CONTEXT}, list[int]()
        for node, parent in enumerate(row.tree.parents):
            if self._is_dear:
                logger.warning("a grammar is given up: its masks take too long")
                break
            if parent not in good:
                continue
            try:
                matcher = self._at(output, path)
                if not self._step(matcher, row, node, path):
                    continue
                good.add(node)
                look(node, matcher)
            except GrammarError as error:
                logger.warning("a grammar needs too much work: %s", error)
                self._matcher = None
        self._rewind(len(path))
        return good - {CONTEXT}

    def _rewind(self, num_tokens: int) -> None:
        """Back to where the row began; a matcher that cannot is made anew for the next one."""
        try:
            if self._matcher is not None:
                self._matcher.back(num_tokens)
        except GrammarError as error:
            logger.warning("a grammar cannot be taken back: %s", error)
            self._matcher = None

    def _place(self, row: Row, node: int) -> int:
        """Where a node's token stands in prompt and output."""
        return row.start + row.tree.depths[node]

    def _at(self, output: Sequence[int], path: list[int]) -> Matcher:
        """The matcher behind `output` and the tokens of `path`; made anew if it was lost."""
        if self._matcher is None:
            path.clear()
            return self._restart(output)
        known = len(self._output)
        if not path and self._output != output:
            if self._output != output[:known]:
                return self._restart(output)
            self._take(self._matcher, output[known:])
            self._output = list(output)
        return self._matcher

    def _restart(self, output: Sequence[int]) -> Matcher:
        self._matcher = self.start.result().copy()
        self._take(self._matcher, output)
        self._output = list(output)
        return self._matcher

    def _take(self, matcher: Matcher, output: Sequence[int]) -> None:
        if matcher.accept(output) < len(output):
            raise GrammarError("the output so far does not follow its grammar")

    def _step(self, matcher: Matcher, row: Row, node: int, path: list[int]) -> bool:
        """Move from `path` to `node`, whose parent is good; False if the grammar forbids it."""
        if self._place(row, node) < self._new.prompt_len:
            return True
        tree, back = row.tree, 0
        while path and path[-1] != tree.parents[node]:
            path.pop()
            back += 1
        matcher.back(back)
        ahead = [node] if path else tree.path(node)
        ahead = [other for other in ahead if self._place(row, other) >= self._new.prompt_len]
        taken = matcher.accept([tree.token_ids[other] for other in ahead])
        path.extend(ahead[:taken])
        return taken == len(ahead)


_WalkedRow = tuple[_Walk, Row, Sequence[int]]
"""A row with its request's walk, and the output that stands before it."""
