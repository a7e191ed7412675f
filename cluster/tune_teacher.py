"""The LLM as a teacher: answers in large batches, with its most probable words at every place.

Runs the LLM's own forward pass over its own paged cache, in this process: no cluster, no requests,
and no trees. A batch of prompts is prefilled in slices and then decoded token by token; what has
ended leaves the batch. Answers that exist already are scored the same way, in one pass.

Assumes that a batch fits the cache (`split` sees to it). Greedy and plain sampling only.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from actors.decoder.kv_cache import KVCache
from actors.llm.batch import build_batch
from actors.llm.block_tables import RequestKV
from actors.llm.loading import load_model
from actors.messages import NewRequest, Row
from actors.sampling import SamplingParams
from actors.ssm.boost_tuning.records import Record
from actors.tree import TokenTree

NUM_BEST = 32
_PREFILL_TOKENS = 1024
_BLOCK_TOKENS = 16
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Task:
    """One prompt to answer.

    Attributes:
        source: which prompt set it is from.
        prompt: token ids.
        temperature: 0 is greedy.
        answer: token ids of an answer that exists already and is only scored.
    """

    source: str
    prompt: tuple[int, ...]
    temperature: float = 0.0
    answer: tuple[int, ...] = ()

    def room(self, answer_tokens: int) -> int:
        """Tokens that it takes up, with so many for a new answer."""
        return len(self.prompt) + (len(self.answer) or answer_tokens)


class Teacher:
    """An LLM that answers and scores, on the CPU in bfloat16.

    Args:
        folder: of the LLM.
        eos_ids: tokens that end an answer.
        cache_tokens: size of the KV cache: how much runs at once.

    Raises:
        ModelError: the LLM cannot be loaded.
    """

    def __init__(self, folder: Path, eos_ids: Iterable[int], cache_tokens: int) -> None:
        loaded = load_model(folder, torch.bfloat16, _CPU)
        self._model = loaded.model
        self._max_context = loaded.max_context_tokens
        self._eos_ids = frozenset(eos_ids)
        num_blocks = -(-cache_tokens // _BLOCK_TOKENS)
        self._cache = KVCache(loaded.model.kv_shape, num_blocks, _BLOCK_TOKENS, loaded.dtype, _CPU)

    def split(self, tasks: Sequence[Task], most: int, answer_tokens: int) -> list[list[Task]]:
        """Batches of tasks of similar length, at most `most` each, that fit the cache.

        Tasks that are too long for it or for the model are left out. The order of batches is mixed,
        so that the first ones are a fair sample.
        """
        limit = min(self._cache.num_slots, self._max_context)
        fitting = [task for task in tasks if task.room(answer_tokens) <= limit]
        batches: list[list[Task]] = []
        room = self._cache.num_slots
        for task in sorted(fitting, key=lambda task: (bool(task.answer), len(task.prompt))):
            room += task.room(answer_tokens)
            kinds_differ = bool(batches) and bool(batches[-1][0].answer) != bool(task.answer)
            if room > self._cache.num_slots or len(batches[-1]) == most or kinds_differ:
                batches.append([])
                room = task.room(answer_tokens)
            batches[-1].append(task)
        random.Random(len(batches)).shuffle(batches)
        return batches

    def answer(self, tasks: Sequence[Task], answer_tokens: int, seed: int) -> list[Record]:
        """Answer (or score) one batch of `split`.

        Args:
            answer_tokens: most tokens of an answer.
            seed: of what is drawn at temperatures above 0.
        """
        batch = _Batch(tasks, answer_tokens, self._eos_ids, seed)
        for rows in batch.prefill_rows():
            batch.take(rows, self._forward(rows, batch))
        while rows := batch.decode_rows():
            batch.take(rows, self._forward(rows, batch))
        return batch.records()

    def _forward(self, rows: Sequence[Row], batch: _Batch) -> Tensor:
        step = build_batch(rows, batch.requests, self._cache.scratch_slot, _CPU)
        return self._model.forward(step, self._cache)


class _Batch:
    """Tasks under way."""

    def __init__(
        self, tasks: Sequence[Task], answer_tokens: int, eos_ids: Set[int], seed: int
    ) -> None:
        rooms = [task.room(answer_tokens) for task in tasks]
        ends = np.cumsum(rooms)
        self._tasks = tasks
        self._answer_tokens = answer_tokens
        self._eos_ids = eos_ids
        self._generator = torch.Generator().manual_seed(seed)
        self._answers: list[list[int]] = [list(task.answer) for task in tasks]
        self._best: list[list[tuple[Tensor, Tensor]]] = [[] for _ in tasks]
        self._live = [index for index, task in enumerate(tasks) if not task.answer]
        self.requests = {
            index: RequestKV(
                NewRequest(index, len(task.prompt), SamplingParams()), np.arange(end - room, end)
            )
            for index, (task, room, end) in enumerate(zip(tasks, rooms, ends, strict=True))
        }

    def prefill_rows(self) -> Iterator[list[Row]]:
        """Prompts, and answers to score, in slices; answers follow their prompt but their last
        token, which predicts nothing."""
        rows: list[Row] = []
        for index, task in enumerate(self._tasks):
            tree = TokenTree.chain(task.prompt + task.answer[:-1])
            rows.append(Row(index, 0, tree, first_output=len(task.prompt) - 1))
            if sum(len(row.tree) for row in rows) >= _PREFILL_TOKENS:
                yield rows
                rows = []
        if rows:
            yield rows

    def decode_rows(self) -> list[Row]:
        """The last token of every answer that goes on."""
        return [
            Row(
                index,
                len(self._tasks[index].prompt) + len(self._answers[index]) - 1,
                TokenTree.chain(self._answers[index][-1:]),
            )
            for index in self._live
        ]

    def take(self, rows: Sequence[Row], logits: Tensor) -> None:
        """Keep the best words of [outputs, vocab] logits, and draw where an answer goes on."""
        best = logits.topk(min(NUM_BEST, logits.shape[-1]), -1)
        logprobs = best.values - logits.logsumexp(-1, keepdim=True)
        first = 0
        for row in rows:
            part = slice(first, first + row.num_outputs)
            first = part.stop
            self._best[row.request_id].append((best.indices[part], logprobs[part]))
            if not self._tasks[row.request_id].answer:
                self._draw(row.request_id, best.indices[part][0], logits[part][0])
        self._live = [index for index in self._live if not self._has_ended(index)]

    def _has_ended(self, index: int) -> bool:
        answer = self._answers[index]
        return bool(answer) and (answer[-1] in self._eos_ids or len(answer) == self._answer_tokens)

    def _draw(self, index: int, best: Tensor, logits: Tensor) -> None:
        temperature = self._tasks[index].temperature
        drawn = best[:1]
        if temperature > 0:
            probabilities = torch.softmax(logits / temperature, -1)
            drawn = torch.multinomial(probabilities, 1, generator=self._generator)
        self._answers[index].append(int(drawn))

    def records(self) -> list[Record]:
        return [
            Record(
                task.source,
                np.asarray(task.prompt + tuple(answer), dtype=np.int32),
                len(task.prompt),
                torch.cat([ids for ids, _ in best]).numpy().astype(np.int32),
                torch.cat([values for _, values in best]).numpy().astype(np.float16),
            )
            for task, answer, best in zip(self._tasks, self._answers, self._best, strict=True)
        ]
