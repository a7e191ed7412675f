"""The texts of requests whose draws depend on which tokens came before, followed step by step.

A text is known whole when its request is announced; later commits add to it. So it is a function of
the step messages alone, as the KV cache is, and does not miss what was reused from the cache of
another request. Requests whose draws depend on nothing before have no text here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from actors.llm.block_tables import RequestKV
from actors.logit_steps import Occurrences
from actors.messages import NewRequest, StepMessage


class Text:
    """One request's tokens, and how often each stands in its first `num_counted` of them."""

    def __init__(self, new: NewRequest, vocab_size: int) -> None:
        self._prompt_len = new.prompt_len
        self._tokens = list(new.token_ids)
        self._num_counted = 0
        self._occurrences = Occurrences.none(vocab_size)

    def commit(self, start: int, token_ids: Sequence[int]) -> None:
        """From place `start` on the text is these tokens."""
        self._count_to(min(start, self._num_counted))
        self._tokens[start : start + len(token_ids)] = token_ids

    def output_before(self, start: int) -> list[int]:
        """The output tokens among the first `start`."""
        return self._tokens[self._prompt_len : start]

    def before(self, start: int, path: Sequence[int]) -> AbstractContextManager[Occurrences]:
        """The occurrences in the first `start` tokens and then `path`, within the context."""
        self._count_to(start)
        return self._occurrences.and_then(start, path, self._prompt_len)

    def _count_to(self, end: int) -> None:
        begin, self._num_counted = self._num_counted, end
        if end > begin:
            self._occurrences.add(begin, self._tokens[begin:end], self._prompt_len)
        else:
            self._occurrences.add(end, self._tokens[end:begin], self._prompt_len, -1)


class Texts:
    """The texts of an epoch, by request id.

    Args:
        vocab_size: of the LLM.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._texts: dict[int, Text] = {}

    def get(self, request_id: int) -> Text | None:
        """None for a request whose draws depend on nothing before."""
        return self._texts.get(request_id)

    def clear(self) -> None:
        """A new epoch begins."""
        self._texts.clear()

    def follow(self, message: StepMessage, before: Mapping[int, RequestKV]) -> None:
        """Take in a message that the block tables have accepted.

        Args:
            before: the requests as they were before it.
        """
        for commit in message.commits:
            text, row = self._texts.get(commit.request_id), before[commit.request_id].last_row
            if text is not None and row is not None:
                text.commit(row.start, [row.tree.token_ids[node] for node in commit.kept_nodes])
        for request_id in message.releases:
            self._texts.pop(request_id, None)
        for new in message.new:
            if new.needs_text:
                self._texts[new.request_id] = Text(new, self._vocab_size)
