"""One LLM rank: runs steps, in order, over a model and a paged KV cache.

A message is checked as a whole before anything changes, so one that breaks the protocol leaves the
rank as it was. A step that was already run is answered from memory. Not safe for use from several
threads at once; knows no transport.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import torch

from actors.decoder.kv_cache import KVCache, num_blocks_for
from actors.decoder.native.draws import gumbel_maker
from actors.errors import ProtocolError, StaleEpoch
from actors.llm.batch import build_batch
from actors.llm.block_tables import BlockTables
from actors.llm.config import LLMConfig
from actors.llm.constraints import Constraints, NodeMasks
from actors.llm.invariance import is_batch_invariant
from actors.llm.loading import DTYPES, LoadedModel, load_model
from actors.llm.message_checks import check_draws, check_message
from actors.llm.pruning import Verdict, can_be_pruned
from actors.llm.sampler import Context, Sampler
from actors.llm.texts import Texts
from actors.messages import LLMDescription, Row, StepMessage, StepReply
from actors.noise import NoiseSource
from actors.vocabulary import Vocabulary

_REMEMBERED_REPLIES = 16

_PATIENCE_S = 0.02
"""A step in which nobody could draw waits so long for a grammar."""


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
    return make_rank(load_whole(options), options)


def load_whole(options: RankOptions) -> LoadedModel:
    """Load a model as the only rank there is. Raises ModelError."""
    dtype, device = DTYPES[options.dtype], torch.device(options.device)
    if options.llm.quantization == "none":
        return load_model(options.path, dtype, device)
    # Imported here: DeepSpeed comes with it, which takes seconds.
    from actors.llm.parallel.stage_loading import load_stage
    from actors.llm.parallel.world import World
    from actors.llm.quantization import Int8

    return load_stage(options.path, dtype, device, World.of_one(device), int8=Int8())


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
        self._noise = NoiseSource(self._model.vocab_size, maker=gumbel_maker)
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
            held_bytes=loaded.report.num_bytes,
            quantization=loaded.quantization,
        )
        loaded.take_streamed_bytes()  # those of the trials belong to no step

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
        check_draws(message.rows, tables.requests)
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
        requests = self._tables.requests
        verdict = self._verdict(message.rows)
        rows = verdict.rows(message.rows)
        masks = self._begin_masks(rows, verdict.undrawn)
        started_at, started = time.time(), time.perf_counter()
        device = self._loaded.device
        batch = build_batch(rows, requests, self._cache.scratch_slot, device, verdict.kept)
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
            for row in rows
        ]
        drawn = self._sampler.sample(rows, contexts, logits) if len(logits) else []
        results = verdict.results(message.rows, drawn)
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
            streamed_bytes=self._loaded.take_streamed_bytes(),
        )

    def _verdict(self, rows: Sequence[Row]) -> Verdict:
        """What grammars say of a step's rows."""
        requests = self._tables.requests
        drawing = [row for row in rows if row.num_outputs and requests[row.request_id].new.grammar]
        if self._constraints is None or not drawing or not self._loaded.peers.are_none:
            return Verdict()  # all ranks of a split LLM run the same rows
        is_alone = len(drawing) == len(rows)
        undrawn = self._constraints.wait(
            [row.request_id for row in drawing], _PATIENCE_S if is_alone else 0.0
        )
        trees = [row for row in drawing if can_be_pruned(row, requests[row.request_id].new)]
        constrained = self._constrained(trees, undrawn)
        return Verdict(undrawn, self._constraints.allowed(constrained) if constrained else {})

    def _begin_masks(
        self, rows: Sequence[Row], undrawn: Collection[int]
    ) -> Future[dict[int, NodeMasks]] | None:
        """Masks for the rows whose grammar has a say, to be ready when the logits are."""
        constrained = self._constrained(rows, undrawn)
        if self._constraints is None or not constrained:
            return None
        return self._constraints.begin(constrained)

    def _constrained(
        self, rows: Sequence[Row], undrawn: Collection[int]
    ) -> list[tuple[Row, list[int]]]:
        """Those that draw by a grammar, each with the output that stands before it."""
        return [
            (row, text.output_before(row.start))
            for row in rows
            if row.num_outputs
            and row.request_id not in undrawn
            and self._tables.requests[row.request_id].new.grammar
            and (text := self._texts.get(row.request_id)) is not None
        ]

    def _remember(self, reply: StepReply) -> None:
        self._replies[reply.step_id] = reply
        if len(self._replies) > _REMEMBERED_REPLIES:
            self._replies.popitem(last=False)
