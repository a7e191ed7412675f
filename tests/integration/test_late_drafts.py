"""A draft model that does not answer in time: its drafts are lost, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from drafting import answered, drafting, following, task, until
from scripted_draft import ScriptedDraft, serving

from actors.errors import PeerTimeout
from actors.request_manager import ssm_client
from actors.request_manager.ssm_client import SSMDrafter

pytestmark = pytest.mark.integration


@pytest.fixture
def model() -> ScriptedDraft:
    return ScriptedDraft()


@pytest.fixture
def address(model: ScriptedDraft) -> Iterator[str]:
    with serving(model) as address:
        yield address


@asynccontextmanager
async def drafting_with_successor(address: str) -> AsyncIterator[SSMDrafter]:
    """With little patience; a draft model that is lost is replaced by one of version 2."""
    with serving(ScriptedDraft(version=2)) as successor:

        async def respawn() -> str:
            return successor

        async with drafting(address, respawn, 0.05) as drafter:
            yield drafter


async def test_a_late_answer_is_a_timeout_and_its_session_stays_right(
    model: ScriptedDraft, address: str
) -> None:
    async with drafting(address, deadline_s=0.2) as drafter:
        await drafter.draft([task(1, 5)])
        model.hold.clear()
        with pytest.raises(PeerTimeout):
            await drafter.draft([task(1, 5, 6)])
        model.hold.set()
        drafts = await answered(drafter, task(1, 5, 6, 7))
    assert drafts[1].tree.token_ids == following(5, 6, 7)
    assert model.kept == [0, 1, 2]  # the late answer told what there is


async def test_a_late_answer_is_not_taken_for_the_next_one(
    model: ScriptedDraft, address: str
) -> None:
    async with drafting(address, deadline_s=0.3) as drafter:
        await drafter.draft([task(1, 5)])
        model.hold.clear()
        with pytest.raises(PeerTimeout):
            await drafter.draft([task(2, 7)])
        assert await drafter.draft([task(2, 7)]) == {}  # not even sent
        model.hold.set()
        drafts = await answered(drafter, task(1, 5, 6))
    assert drafts[1].tree.token_ids == following(5, 6)
    assert len(model.kept) == 3


async def test_one_that_is_always_late_is_replaced(
    model: ScriptedDraft, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssm_client, "MAX_LATE", 3)
    async with drafting_with_successor(address) as drafter:
        model.hold.clear()
        with pytest.raises(PeerTimeout):
            await drafter.draft([task(1, 5)])
        assert 1 in await answered(drafter, task(1, 5))
        assert drafter.weights_version == 2


async def test_one_that_misses_every_deadline_by_little_is_replaced(
    model: ScriptedDraft, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssm_client, "MAX_LATE", 3)
    async with drafting_with_successor(address) as drafter:
        for _ in range(3):
            model.hold.clear()
            with pytest.raises(PeerTimeout):
                await drafter.draft([task(1, 5)])
            model.hold.set()
            await until(lambda: drafter._peer is None or drafter._peer.given_up_at is None)
        assert 1 in await answered(drafter, task(1, 5))
        assert drafter.weights_version == 2
