"""What is timed without a server, on tiny models: that the right work is done, not how fast."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from actors.errors import ConfigError
from actors.messages import StepMessage, StepReply
from actors.model_thread import ModelThread
from actors.ssm.config import SSMConfig
from actors.tree import TokenTree
from cluster.bench.draft_calls import DraftTimer
from cluster.bench.rank_timer import RankTimer, random_context
from cluster.bench.verification import Verification, paths_of
from tests.unit.llm.tiny_models import VOCAB_SIZE, tiny_house
from tests.unit.ssm import tiny


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Recorded:
    """A rank that remembers its steps."""

    def __init__(self) -> None:
        self._rank = tiny_house("llama").rank
        self.describe = self._rank.describe
        self.steps: list[tuple[StepMessage, StepReply]] = []

    def step(self, message: StepMessage) -> StepReply:
        reply = self._rank.step(message)
        self.steps.append((message, reply))
        return reply


def test_paths_of_a_shape() -> None:
    assert paths_of(9, (1, 2, 2)) == [[9, 0, a, b] for a in (0, 1) for b in (0, 1)]
    tree = TokenTree.from_paths(paths_of(9, (1, 1, 3, 1, 1, 1, 1, 1)))
    assert len(tree) == 21
    assert max(tree.depths) == 8


def test_trees_and_sequences_verify_the_same_drafts() -> None:
    recorded = Recorded()
    verification = Verification(RankTimer(recorded), VOCAB_SIZE, 2, 9, (1, 2, 1))  # type: ignore[arg-type]
    num_prefills = len(recorded.steps)
    figures = verification.rounds(2, 1)
    assert (figures["plain_tokens"], figures["tree_tokens"], figures["sequences_tokens"]) == (
        2,
        12,
        16,
    )
    by_size = {
        message.num_tokens: (message, reply) for message, reply in recorded.steps[num_prefills:]
    }
    message, reply = by_size[12]
    drawn = {
        (row.request_id, row.tree.path_tokens(node)): token
        for row, result in zip(message.rows, reply.results, strict=True)
        for node, token in enumerate(result.drawn_ids)
    }
    message, reply = by_size[16]
    assert [row.request_id for row in message.rows] == [0, 1, 2, 3]
    for row, result in zip(message.rows, reply.results, strict=True):
        as_tree = row.request_id // 2 * 2
        for node, token in enumerate(result.drawn_ids):
            assert drawn[as_tree, row.tree.path_tokens(node)] == token


def test_a_cache_that_is_too_small_is_told() -> None:
    timer = RankTimer(Recorded())  # type: ignore[arg-type]
    room = 10**9
    with pytest.raises(ConfigError, match="do not hold the contexts"):
        timer.prefill({0: random_context(VOCAB_SIZE, 9)}, room)


def test_every_session_is_brought_on_and_drafted_for() -> None:
    thread = ModelThread("draft model")
    ssm = SSMConfig(path="tiny", max_nodes=6, max_depth=3)
    asked = []
    model = tiny.speculator()

    class Watched:
        def draft(self, request):
            asked.append(request)
            return model.draft(request)

        release = staticmethod(model.release)

    try:
        timer = DraftTimer(Watched(), thread, ssm, temperature=1.0)  # type: ignore[arg-type]
        timer.begin({n: random_context(tiny.VOCAB, 12, n) for n in range(3)})
        begun = len(asked)
        assert timer.seconds() > 0.0
        assert timer.seconds() > 0.0
    finally:
        thread.close()
    assert all(session.keep_tokens == 0 for session in asked[0].sessions)
    for before, after in zip(asked[begun - 1 :], asked[begun:], strict=False):
        for old, new in zip(before.sessions, after.sessions, strict=True):
            assert new.keep_tokens == old.keep_tokens + len(old.token_ids)
            assert 1 <= len(new.token_ids) <= 2
