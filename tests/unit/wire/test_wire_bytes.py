"""What crosses the wire depends on neither the vocabulary nor the hidden size of the model."""

from __future__ import annotations

import numpy as np

from actors import wire
from actors.messages import (
    KVCommit,
    NewRequest,
    Row,
    RowResult,
    StepMessage,
    StepReply,
    TopLogprobs,
)
from actors.sampling import SamplingParams
from actors.tree import TokenTree
from protos import speculation_pb2 as pb

PROMPT = (11, 250, 37, 90)
SMALL, LARGE = (300, 16), (50_000, 1024)
NUM_LOGPROBS = 3


class BigramModel:
    """Greedy; every hidden state and every row of logits is really computed at full size.

    Of the vocabulary only the first 300 tokens can win, so that models of any size agree.
    """

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        self._embedding = np.zeros((vocab_size, hidden_size), np.float32)
        self._embedding[:300, :16] = np.random.default_rng(5).standard_normal((300, 16))
        self._wanted: dict[int, int | None] = {}

    def step(self, message: StepMessage) -> StepReply:
        self._wanted.update((new.request_id, new.num_logprobs) for new in message.new)
        results = tuple(self._result(row) for row in message.rows if row.num_outputs)
        return StepReply(message.epoch, message.step_id, results, forward_s=0.25, sample_s=0.125)

    def _result(self, row: Row) -> RowResult:
        hidden = self._embedding[list(row.tree.token_ids[row.first_output :])]
        logits = hidden @ self._embedding.T
        drawn = tuple(int(token) for token in logits.argmax(axis=1))
        wanted = self._wanted[row.request_id]
        if wanted is None:
            return RowResult(row.request_id, drawn)
        best = np.argsort(-logits, axis=1)[:, :wanted]
        scores = np.take_along_axis(logits, best, axis=1) - np.logaddexp.reduce(
            logits, axis=1, keepdims=True
        )
        return RowResult(
            row.request_id,
            drawn,
            tuple(map(float, scores[:, 0])),
            tuple(
                TopLogprobs(tuple(map(int, ids)), tuple(map(float, values)))
                for ids, values in zip(best, scores, strict=True)
            ),
        )


def conversation(model: BigramModel, num_logprobs: int | None) -> list[tuple[bytes, bytes]]:
    """A prefill, a step with a tree of drafts, a step that commits its longest match."""
    traffic: list[tuple[bytes, bytes]] = []

    def run(message: StepMessage) -> StepReply:
        sent = wire.encode_step(message).SerializeToString()
        reply = model.step(wire.decode_step(pb.StepMessage.FromString(sent)))
        answered = wire.encode_reply(reply).SerializeToString()
        traffic.append((sent, answered))
        return wire.decode_reply(pb.StepReply.FromString(answered))

    new = NewRequest(1, len(PROMPT), SamplingParams(0.0), (2,), num_logprobs)
    prompt_row = Row(1, 0, TokenTree.chain(PROMPT), (0,), first_output=len(PROMPT) - 1)
    root = run(StepMessage(1, 0, new=(new,), rows=(prompt_row,))).results[0].drawn_ids[0]
    tree = TokenTree.from_paths([(root, 40, 41), (root, 42), (root, 40, 43)])
    drawn = run(StepMessage(1, 1, rows=(Row(1, len(PROMPT), tree),))).results[0].drawn_ids
    kept = tuple(node for node in (0, tree.child(0, drawn[0])) if node is not None)
    bonus = TokenTree.chain([drawn[kept[-1]]])
    next_row = Row(1, len(PROMPT) + len(kept), bonus, (1,))
    run(StepMessage(1, 2, commits=(KVCommit(1, kept),), rows=(next_row,)))
    return traffic


def test_bytes_are_equal_for_models_of_different_sizes() -> None:
    small = conversation(BigramModel(*SMALL), None)
    large = conversation(BigramModel(*LARGE), None)
    assert small == large


def test_with_log_probabilities_the_sizes_are_equal() -> None:
    """The values differ (more tokens share the probability), their number and width do not."""
    small = conversation(BigramModel(*SMALL), NUM_LOGPROBS)
    large = conversation(BigramModel(*LARGE), NUM_LOGPROBS)
    assert [sent for sent, _ in small] == [sent for sent, _ in large]
    assert [len(answer) for _, answer in small] == [len(answer) for _, answer in large]
    assert small != large
