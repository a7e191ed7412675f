"""Bias and penalties: as transformers processes logits, and at every node from its own path."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tiny_models import random_tree
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from actors.llm.block_tables import BlockTables
from actors.llm.sampler import Context, Node, Sampler
from actors.llm.texts import Texts
from actors.logit_steps import Occurrences, adjusted, kept_ids
from actors.messages import KVCommit, NewRequest, Row, StepMessage
from actors.noise import NoiseSource
from actors.sampling import SamplingParams
from actors.tree import TokenTree

VOCAB_SIZE = 40
BIAS = ((3, 5.0), (7, -100.0), (39, 0.5))


def some_logits(num_nodes=1, seed=0):
    return torch.randn(num_nodes, VOCAB_SIZE, generator=torch.manual_seed(seed)) * 3


def occurrences(text, prompt_len):
    counts = [np.bincount(part, minlength=VOCAB_SIZE) for part in (text, text[prompt_len:])]
    return Occurrences(*(count.astype(np.int32) for count in counts))


def expected_logits(logits, sampling, text, prompt_len):
    """Bias and repetition by transformers; frequency and presence by their definition in
    OpenAI's documentation, over the output."""
    processors = LogitsProcessorList()
    if sampling.logit_bias:
        bias = {(token,): value for token, value in sampling.logit_bias}
        processors.append(SequenceBiasLogitsProcessor(bias))
    if sampling.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    scores = processors(torch.tensor([text]), logits[None].clone())[0]
    for token in range(VOCAB_SIZE):
        count = text[prompt_len:].count(token)
        scores[token] -= count * sampling.frequency_penalty
        scores[token] -= (count > 0) * sampling.presence_penalty
    return scores


@pytest.mark.parametrize("bias", [(), BIAS])
@pytest.mark.parametrize("repetition", [1.0, 1.3, 0.7])
@pytest.mark.parametrize(("frequency", "presence"), [(0, 0), (0.4, 0), (0, 1.5), (-0.3, -2.0)])
def test_processed_logits_are_those_of_transformers(bias, repetition, frequency, presence):
    chance = random.Random(4)
    for seed in range(5):
        text = [chance.randrange(VOCAB_SIZE) for _ in range(30)]
        sampling = SamplingParams(
            repetition_penalty=repetition,
            frequency_penalty=frequency,
            presence_penalty=presence,
            logit_bias=bias,
        )
        logits = some_logits(seed=seed)[0]
        found = adjusted(logits.numpy(), sampling, occurrences(text, 12))
        expected = expected_logits(logits, sampling, text, 12)
        torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=1e-5)


def test_every_step_together_keeps_what_transformers_keeps():
    text = [5, 5, 9, 3, 3, 3, 7, 1]
    sampling = SamplingParams(0.7, 20, 0.9, 0.02, repetition_penalty=1.4, logit_bias=BIAS)
    processors = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor({(token,): value for token, value in BIAS}),
            RepetitionPenaltyLogitsProcessor(1.4),
            TemperatureLogitsWarper(0.7),
            TopKLogitsWarper(20),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.02),
        ]
    )
    for seed in range(20):
        logits = some_logits(seed=seed)
        expected = processors(torch.tensor([text]), logits.clone())[0].isfinite().nonzero()[:, 0]
        found = kept_ids(adjusted(logits[0].numpy(), sampling, occurrences(text, 4)), sampling)
        assert found.tolist() == expected.tolist()


def test_nothing_asked_for_leaves_the_logits_alone():
    logits = some_logits()[0].numpy()
    assert adjusted(logits, SamplingParams(), occurrences([1], 0)) is logits
    before = logits.copy()
    adjusted(logits, SamplingParams(logit_bias=BIAS, presence_penalty=1), occurrences([1], 0), [4])
    assert np.array_equal(logits, before)


class Follower:
    """Texts and block tables over a run of messages, and the text that they should stand for."""

    def __init__(self, new: NewRequest) -> None:
        self.tables = BlockTables.empty(64, 4)
        self.texts = Texts(VOCAB_SIZE)
        self.new = new
        self.send(StepMessage(0, 0, new=(new,)))

    def send(self, message: StepMessage) -> None:
        before = self.tables.requests
        self.tables = self.tables.after(message)[0]
        self.texts.follow(message, before)


def seen_at(node: Node) -> list[list[int]]:
    """Counts in text and in output at a node, by way of logits that show them."""
    with node.text.before(node.row.start, node.row.tree.path_tokens(node.place)) as found:
        return [found.in_text.tolist(), found.in_output.tolist()]


@pytest.mark.parametrize("seed", range(5))
def test_counts_at_every_node_are_those_of_its_own_text(seed):
    """Prefill in chunks over a text that is known ahead, then trees of which a path is kept."""
    chance = random.Random(seed)
    text = [chance.randrange(VOCAB_SIZE) for _ in range(14)]
    prompt_len = 9
    new = NewRequest(0, prompt_len, SamplingParams(frequency_penalty=0.5), token_ids=tuple(text))
    follower = Follower(new)
    blocks = tuple(range(64))
    commits = ()
    start, kept = 0, []
    for step in range(12):
        if start + 5 < len(text):
            tree = TokenTree.chain(text[start : start + 5])
        else:
            drafts = random_tree(chance, chance.randint(1, 9))
            root = text[start] if start < len(text) else chance.randrange(VOCAB_SIZE)
            tree = TokenTree(
                tuple(token % VOCAB_SIZE for token in drafts.token_ids), drafts.parents
            ).rooted(root)
        row = Row(0, start, tree, blocks if step == 0 else ())
        follower.send(StepMessage(0, step + 1, commits=commits, rows=(row,)))
        committed = text[:start]
        for place in range(len(tree)):
            node = Node(new, row, place, text=follower.texts.get(0))
            whole = [*committed, *tree.path_tokens(place)]
            expected = occurrences(whole, prompt_len)
            assert seen_at(node) == [expected.in_text.tolist(), expected.in_output.tolist()]
        if start + 5 < len(text):
            kept = list(range(5))
        else:
            kept = list(tree.path(chance.randrange(len(tree))))
            text[start:] = [tree.token_ids[node] for node in kept]
        commits = (KVCommit(0, tuple(kept)),)
        start += len(kept)


def test_a_draw_sees_the_tokens_of_its_own_path_only():
    """Token 1 leads by less than its presence penalty: it is drawn where it was not before."""
    logits = torch.zeros(4, VOCAB_SIZE)
    logits[:, 1], logits[:, 2] = 1.0, 0.5
    sampling = SamplingParams(temperature=0.0, presence_penalty=0.8)
    new = NewRequest(0, 2, sampling, token_ids=(1, 1, 30))
    follower = Follower(new)
    row = Row(0, 2, TokenTree.from_paths([(30, 1, 9), (30, 5)]))
    sampler = Sampler(NoiseSource(VOCAB_SIZE))
    [result] = sampler.sample([row], [Context(new, follower.texts.get(0))], logits)
    assert result.drawn_ids == (1, 2, 2, 1)
