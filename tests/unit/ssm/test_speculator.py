"""Drafts are a pure function of token ids, whatever the history and the company."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CUT, SHAPE, VOCAB, WINDOWED, speculator

from actors.drafts import DraftRequest, DraftSession, SessionDraft
from actors.errors import ProtocolError
from actors.sampling import SamplingParams
from actors.ssm.model import DraftShape
from actors.ssm.speculator import MAX_CATCH_UP_TOKENS, Speculator
from actors.tree import CONTEXT
from actors.verification import Rule

SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.8, top_p=0.9, seed=4),
)


def text(seed: int, length: int) -> tuple[int, ...]:
    chance = random.Random(seed)
    return tuple(chance.randrange(VOCAB) for _ in range(length))


def session(
    session_id: int, tokens: tuple[int, ...], keep: int = 0, **changes: object
) -> DraftSession:
    asked = DraftSession(session_id, keep, tokens[keep:], 4, SAMPLINGS[session_id % 3], 16, 4)
    return dataclasses.replace(asked, **changes)


def drafted(model: Speculator, *sessions: DraftSession) -> tuple[SessionDraft, ...]:
    return model.draft(DraftRequest(sessions)).drafts


def same(left: SessionDraft, right: SessionDraft) -> bool:
    return left.tree == right.tree and left.scores == pytest.approx(right.scores, rel=1e-3)


@pytest.mark.parametrize("shape", [SHAPE, WINDOWED], ids=["full", "windowed"])
@pytest.mark.parametrize("expansion", ["best_first", (3, 2, 1)])
def test_sessions_side_by_side_get_what_each_would_alone(
    shape: DraftShape, expansion: str | tuple[int, ...]
) -> None:
    model = speculator(shape, expansion)
    asked = [session(key, text(key, 6 + 5 * key), max_nodes=4 + 3 * key) for key in range(6)]
    together = drafted(model, *asked)
    for one, draft in zip(asked, together, strict=True):
        assert len(draft.tree) > 0
        (alone,) = drafted(speculator(shape, expansion), one)
        assert same(draft, alone)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(0, 2), st.integers(1, 6)),
        st.tuples(st.just("take back"), st.integers(0, 2), st.integers(1, 6)),
        st.tuples(st.just("release"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("crowd"), st.integers(10, 12), st.integers(200, 300)),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(EVENTS, st.integers(0, 99))
def test_any_history_gives_the_draft_of_a_fresh_session(
    events: list[tuple[str, int, int]], seed: int
) -> None:
    """Growth, tokens taken back, releases, restarts, and crowding out of a small memory."""
    chance = random.Random(seed)
    model = speculator(max_cache_tokens=1024)
    texts = {key: text(key, 8) for key in range(3)}
    known = dict.fromkeys(range(3), 0)
    for what, key, amount in events:
        if what == "grow":
            texts[key] += tuple(chance.randrange(VOCAB) for _ in range(amount))
        elif what == "take back":
            texts[key] = texts[key][: max(2, len(texts[key]) - amount)]
            known[key] = min(known[key], len(texts[key]))
        elif what == "release":
            model.release([key])
        elif what == "restart":
            model = speculator(max_cache_tokens=1024)
        else:
            drafted(model, session(key, text(key, amount)))
        if what in ("grow", "take back"):
            (draft,) = drafted(model, session(key, texts[key], known[key]))
            if draft.unknown_session:
                (draft,) = drafted(model, session(key, texts[key]))
            known[key] = len(texts[key])
            (fresh,) = drafted(speculator(), session(key, texts[key]))
            assert same(draft, fresh)


def test_trees_keep_to_their_limits_and_to_the_cut() -> None:
    (draft,) = drafted(speculator(), session(1, text(1, 12), max_nodes=9, max_depth=3))
    assert len(draft.tree) == 9
    assert max(draft.tree.depths) <= 2
    assert set(draft.tree.token_ids) <= set(CUT.tolist())
    assert all(0.0 < score <= 1.0 for score in draft.scores)
    (draft,) = drafted(speculator(), session(1, text(1, 12), max_nodes=999, max_depth=99))
    assert len(draft.tree) == 16
    assert max(draft.tree.depths) <= 4


def test_no_more_is_drafted_than_is_of_use() -> None:
    asked = session(0, text(1, 12), max_depth=2)  # greedy
    (whole,) = drafted(speculator(), asked)
    least = sorted(path_scores(whole))[len(whole.scores) // 2]
    (useful,) = drafted(speculator(), dataclasses.replace(asked, least_probability=least))
    assert 0 < len(useful.tree) < len(whole.tree)
    assert min(path_scores(useful)) >= least * (1 - 1e-6)


@pytest.mark.parametrize(
    ("expansion", "stays_whole"), [("best_first", False), ((2, 2, 2, 1), True)]
)
def test_trees_stop_growing_where_time_is_dear(expansion, stays_whole) -> None:
    """Once the cost of passes is known; a static tree has its shape whatever it costs."""
    model, asked = speculator(expansion=expansion), session(1, text(1, 12))
    (whole,) = drafted(model, asked)
    again = dataclasses.replace(asked, keep_tokens=12, token_ids=())
    (dear,) = model.draft(DraftRequest((again,), tokens_per_s=1e12)).drafts
    assert max(whole.tree.depths) > 1
    assert max(dear.tree.depths) == (max(whole.tree.depths) if stays_whole else 0)
    assert same(drafted(model, again)[0], whole)


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ProtocolError, match="tokens_per_s"):
        speculator().draft(DraftRequest((session(1, text(1, 12)),), tokens_per_s=rate))


def path_scores(draft: SessionDraft) -> list[float]:
    found: list[float] = []
    for parent, score in zip(draft.tree.parents, draft.scores, strict=True):
        found.append(score if parent < 0 else found[parent] * score)
    return found


def test_an_unknown_session_is_told_and_the_others_are_served() -> None:
    lost, known = drafted(speculator(), session(1, text(1, 12), keep=9), session(2, text(2, 12)))
    assert lost == SessionDraft(1, unknown_session=True)
    assert len(known.tree) > 0


def test_a_long_text_is_cached_over_several_requests() -> None:
    model, tokens = speculator(max_cache_tokens=8192), text(1, 2 * MAX_CATCH_UP_TOKENS + 100)
    asked, short = session(1, tokens), session(2, text(2, 10))
    again = session(1, tokens, keep=len(tokens))
    behind = [drafted(model, one, short) for one in (asked, again)]
    assert all(draft == SessionDraft(1) for draft, _ in behind)
    assert all(len(draft.tree) > 0 for _, draft in behind)
    (ready,) = drafted(model, again)
    assert len(ready.tree) == 16
    whole = speculator(max_cache_tokens=8192)
    for _ in range(3):
        (fresh,) = drafted(whole, asked)
    assert same(ready, fresh)


def test_a_session_that_memory_has_no_room_for_gets_no_tree() -> None:
    model = speculator(max_cache_tokens=64)
    served, left_out = drafted(model, session(1, text(1, 12)), session(2, text(2, 12)))
    assert len(served.tree) > 0
    assert left_out == SessionDraft(2)


@pytest.mark.parametrize(
    "wrong",
    [
        session(1, ()),
        session(1, (5, VOCAB)),
        session(1, (5, 6), max_nodes=0),
        session(1, (5, 6), max_depth=0),
        session(1, (5, 6), banned_early=(VOCAB,)),
        session(1, (5, 6), least_probability=math.nan),
        session(1, (5, 6), least_probability=1.5),
    ],
)
def test_a_wrong_request_is_refused_whole(wrong: DraftSession) -> None:
    model = speculator()
    with pytest.raises(ProtocolError, match="session 1"):
        drafted(model, session(2, text(2, 8)), wrong)
    assert drafted(model, session(2, text(2, 8), keep=8))[0].unknown_session


def test_a_session_may_be_asked_for_once() -> None:
    with pytest.raises(ProtocolError, match="twice"):
        drafted(speculator(), session(1, (5, 6)), session(1, (5, 6)))


def test_it_says_what_it_is() -> None:
    model = speculator()
    description = model.describe()
    assert description.weights_version == 3
    assert description.vocab_size == VOCAB
    assert description.llm_weights_hash == "w" * 8
    assert model.draft(DraftRequest((session(1, text(1, 9)),))).weights_version == 3


@pytest.mark.parametrize("expansion", ["best_first", (3, 2, 1)])
def test_weighed_drafts_come_with_all_that_was_drawn(expansion: str | tuple[int, ...]) -> None:
    model = speculator(expansion=expansion)
    (draft,) = drafted(model, session(1, text(1, 12), verification=Rule.MSS))
    told = {one.node: one.draws for one in draft.draws}
    inner = set(draft.tree.parents)
    assert inner <= told.keys() <= {CONTEXT, *range(len(draft.tree))}
    for token, parent in zip(draft.tree.token_ids, draft.tree.parents, strict=True):
        assert token in told[parent].token_ids
    widths = (8,) * 4 if expansion == "best_first" else expansion
    for node, draws in told.items():
        depth = 0 if node == CONTEXT else draft.tree.depths[node] + 1
        assert len(draws.token_ids) == widths[depth]
    (plain,) = drafted(model, session(1, text(1, 12)))
    assert plain.draws == ()


@pytest.mark.parametrize("rule", [Rule.MSS, Rule.SPECTR])
def test_models_at_other_places_draw_otherwise(rule: Rule) -> None:
    more = {"verification": rule, "sampling": SAMPLINGS[1]}
    asked = [session(number, text(number, 12), **more) for number in range(8)]
    drawn = [
        [[one.draws.token_ids for one in draft.draws] for draft in drafted(model, *asked)]
        for model in (speculator(), speculator(), speculator(index=1))
    ]
    assert drawn[0] == drawn[1]
    assert sum(one != other for one, other in zip(drawn[0], drawn[2], strict=True)) > 4
