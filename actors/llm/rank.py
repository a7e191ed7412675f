"""One LLM rank: runs steps, in order, over a model and a paged KV cache.

A message is checked as a whole before anything changes, so one that breaks the protocol leaves the
rank as it was. A step that was already run is answered from memory. Not safe for use from several
threads at once; knows no transport.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import torch

from actors.decoder.kv_cache import KVCache, num_blocks_for
from actors.errors import ProtocolError, StaleEpoch
from actors.llm.batch import build_batch
from actors.llm.block_tables import BlockTables
from actors.llm.config import LLMConfig
from actors.llm.constraints import Constraints, NodeMasks
from actors.llm.invariance import is_batch_invariant
from actors.llm.loading import DTYPES, LoadedModel, load_model
from actors.llm.sampler import Context, Sampler
from actors.llm.texts import Texts
from actors.messages import LLMDescription, StepMessage, StepReply
from actors.noise import NoiseSource
from actors.vocabulary import Vocabulary

_REMEMBERED_REPLIES = 16


@dataclass(frozen=True)
class RankOptions:
    """What a rank is told when it starts.

    Attributes:
        path: the model's folder.
        model_id: what to call the model.
        dtype: of weights and KV: float64, float32, bfloat16 or float16.
        device: as torch writes it.
        kv_block_tokens: tokens of one KV block.
        kv_memory_bytes: of the KV cache; None sizes it by the memory that is free.
        llm: the configuration's section.
        vocabulary: reads the model's vocabulary, which grammars need; None for no grammars.
    """

    path: Path
    model_id: str
    dtype: str = "bfloat16"
    device: str = "cpu"
    kv_block_tokens: int = 16
    kv_memory_bytes: int | None = None
    llm: LLMConfig = field(default_factory=LLMConfig)
    vocabulary: Callable[[], Vocabulary] | None = None


def load_rank(options: RankOptions) -> Rank:
    """Load a model and give it a KV cache.

    Raises:
        ModelError: the model cannot be served.
        ConfigError: the memory does not hold one KV block.
    """
    if options.llm.num_threads is not None:
        torch.set_num_threads(options.llm.num_threads)
    loaded = load_model(options.path, DTYPES[options.dtype], torch.device(options.device))
    return make_rank(loaded, options)


def make_rank(loaded: LoadedModel, options: RankOptions, num_sharing: int = 1) -> Rank:
    """Give a loaded model its KV cache.

    Args:
        num_sharing: ranks that share this one's memory.

    Raises:
        ConfigError: the memory does not hold one KV block.
    """
    num_blocks = num_blocks_for(
        loaded.model.kv_shape,
        options.kv_block_tokens,
        loaded.dtype,
        loaded.device,
        options.kv_memory_bytes,
        loaded.max_context_tokens,
        num_sharing,
    )
    vocabulary = None if options.vocabulary is None else options.vocabulary()
    return Rank(
        loaded,
        options.model_id,
        loaded.peers.least(num_blocks),
        options.kv_block_tokens,
        vocabulary,
    )


class Rank:
    """An LLM, or one rank's part of it, in one process.

    Args:
        loaded: the model.
        model_id: what to call it.
        num_blocks, block_tokens: size of the KV cache.
        vocabulary: the model's; without it no request with a grammar gets on.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        model_id: str,
        num_blocks: int,
        block_tokens: int,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self._loaded = loaded
        self._model = loaded.model
        self._cache = KVCache(
            loaded.model.kv_shape, num_blocks, block_tokens, loaded.dtype, loaded.device
        )
        self._noise = NoiseSource(self._model.vocab_size)
        self._sampler = Sampler(self._noise)
        self._texts = Texts(self._model.vocab_size)
        self._constraints: Constraints | None = None
        if vocabulary is not None:
            self._constraints = Constraints(vocabulary, self._model.vocab_size)
        self._epoch = -1
        self._next_step = 0
        self._tables = BlockTables.empty(num_blocks, block_tokens)
        self._replies: OrderedDict[int, StepReply] = OrderedDict()
        self._description = LLMDescription(
            model_id=model_id,
            vocab_size=self._model.vocab_size,
            max_context_tokens=loaded.max_context_tokens,
            num_kv_blocks=num_blocks,
            kv_block_tokens=block_tokens,
            num_parameters=loaded.num_parameters,
            weights_hash=loaded.weights_hash,
            dtype=str(loaded.dtype).removeprefix("torch."),
            device=str(loaded.device),
            backend=self._model.backend,
            batch_invariant=is_batch_invariant(loaded),
            num_held_parameters=loaded.report.num_parameters,
            load_s=loaded.report.seconds,
            peak_memory_bytes=loaded.report.peak_memory_bytes,
        )

    def describe(self) -> LLMDescription:
        return self._description

    def step(self, message: StepMessage) -> StepReply:
        """Run one step.

        Raises:
            StaleEpoch: the message belongs to an epoch that is over.
            ProtocolError: it does not fit what the rank holds; nothing has changed.
        """
        if message.epoch < self._epoch:
            raise StaleEpoch(f"epoch {message.epoch} is over, now at {self._epoch}")
        fresh = message.epoch > self._epoch
        if not fresh and message.step_id in self._replies:
            return self._replies[message.step_id]
        expected = 0 if fresh else self._next_step
        if message.step_id != expected:
            raise ProtocolError(f"step {message.step_id} came where {expected} was due")
        tables = BlockTables.empty(*self._cache_size) if fresh else self._tables
        check_message(message, self._description)
        before = tables.requests
        tables, moves, granted = tables.after(message)
        if fresh:
            self._epoch = message.epoch
            self._replies.clear()
            self._forget()
        self._texts.follow(message, before)
        if self._constraints is not None:
            self._constraints.follow(message.new, message.releases)
        self._tables = tables
        self._next_step = message.step_id + 1
        self._cache.move(moves)
        self._cache.clear(granted)
        reply = self._run(message)
        self._remember(reply)
        return reply

    def _forget(self) -> None:
        """Texts and grammars are those of one epoch."""
        self._texts.clear()
        if self._constraints is not None:
            self._constraints.clear()

    @property
    def _cache_size(self) -> tuple[int, int]:
        return self._cache.num_blocks, self._cache.block_tokens

    def _run(self, message: StepMessage) -> StepReply:
        if not message.rows:
            return StepReply(message.epoch, message.step_id)
        started_at, started = time.time(), time.perf_counter()
        requests = self._tables.requests
        masks = self._begin_masks(message)
        batch = build_batch(message.rows, requests, self._cache.scratch_slot, self._loaded.device)
        logits = self._model.forward(batch, self._cache)
        if self._loaded.device.type == "cuda":
            torch.cuda.synchronize(self._loaded.device)
        forwarded = time.perf_counter()
        masks_by_request = masks.result() if masks is not None else {}
        contexts = [
            Context(
                requests[row.request_id].new,
                self._texts.get(row.request_id),
                masks_by_request.get(row.request_id, {}),
            )
            for row in message.rows
        ]
        results = self._sampler.sample(message.rows, contexts, logits) if len(logits) else []
        sampled = time.perf_counter()
        noise_hits, noise_misses = self._noise.take_counts()
        return StepReply(
            message.epoch,
            message.step_id,
            tuple(results),
            forward_s=forwarded - started,
            sample_s=sampled - forwarded,
            noise_hits=noise_hits,
            noise_misses=noise_misses,
            started_at=started_at,
            waited_s=self._loaded.peers.take_waited_s(),
        )

    def _begin_masks(self, message: StepMessage) -> Future[dict[int, NodeMasks]] | None:
        """Masks for the rows whose grammar has a say, to be ready when the logits are."""
        if self._constraints is None:
            return None
        rows = [
            (row, text.output_before(row.start))
            for row in message.rows
            if row.num_outputs
            and self._tables.requests[row.request_id].new.grammar
            and (text := self._texts.get(row.request_id)) is not None
        ]
        return self._constraints.begin(rows) if rows else None

    def _remember(self, reply: StepReply) -> None:
        self._replies[reply.step_id] = reply
        if len(self._replies) > _REMEMBERED_REPLIES:
            self._replies.popitem(last=False)


def check_message(message: StepMessage, description: LLMDescription) -> None:
    """Refuse tokens, positions and parameters that the model does not have.

    Raises:
        ProtocolError: naming the request at fault.
    """
    for new in message.new:
        biased = tuple(token for token, _ in new.sampling.logit_bias)
        _check_ids(new.request_id, new.banned_early + biased + new.token_ids, description)
        if new.needs_text and len(new.token_ids) < new.prompt_len:
            raise ProtocolError(f"request {new.request_id} is announced without its text")
    for row in message.rows:
        _check_ids(row.request_id, row.tree.token_ids + row.scored_ids, description)
        if not len(row.tree):
            raise ProtocolError(f"request {row.request_id} has an empty row")
        if row.start + max(row.tree.depths) >= description.max_context_tokens:
            raise ProtocolError(f"request {row.request_id} runs beyond the model's context")
        if not row.tree.is_chain and len(row.tree) > description.max_nodes_per_row:
            raise ProtocolError(f"request {row.request_id} has a tree of {len(row.tree)} nodes")
        if not 0 <= row.first_output <= len(row.tree):
            raise ProtocolError(f"request {row.request_id} has no node {row.first_output}")
        if row.scored_ids and len(row.scored_ids) > row.num_outputs:
            raise ProtocolError(f"request {row.request_id} scores more tokens than it has outputs")


def _check_ids(request_id: int, ids: Sequence[int], description: LLMDescription) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < description.vocab_size:
        raise ProtocolError(f"request {request_id} names a token that the model does not have")
