"""Commit: every grouping of tokens into steps gives the output of one token at a time."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.request_manager.commit import Committed, OutputRules, OutputState, commit
from actors.request_manager.generation import FinishReason, StopConditions
from actors.vocabulary import Vocabulary

LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP
ROOMY = 1 << 20


def vocabulary(pieces, eos_ids=()):
    table = tuple(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
    return Vocabulary(table, tuple(map(repr, table)), frozenset(eos_ids))


def rules_for(pieces, eos_ids=(), prompt_len=1, context=ROOMY, min_tokens=0, **stop):
    stop.setdefault("max_tokens", ROOMY)
    known = vocabulary(pieces, eos_ids)
    return OutputRules(StopConditions(**stop), known, prompt_len, context, min_tokens)


def commit_all(rules, blocks):
    """The whole output after several steps, as one `Committed`."""
    state, kept = OutputState(), []
    for block in blocks:
        committed = commit(rules, state, block)
        assert committed.token_ids == tuple(block[: len(committed.token_ids)])
        assert committed.state.visible_bytes >= state.visible_bytes
        kept.extend(committed.token_ids)
        state = committed.state
    return Committed(tuple(kept), state)


def splits(tokens):
    """Every way to cut a run of tokens into blocks."""
    inner = range(1, len(tokens))
    for size in range(len(tokens)):
        for cuts in combinations(inner, size):
            edges = [0, *cuts, len(tokens)]
            yield [tokens[low:high] for low, high in pairwise(edges)]


def shown(rules, committed):
    """The text that may be shown."""
    return rules.vocabulary.text_bytes(committed.token_ids)[: committed.state.visible_bytes]


# ------------------------------------------------------------- a stop inside a block, at the limit

PIECES = [f"<{token}>" for token in range(8)]
MARK = 7
HOW_TO_STOP = {
    "stop string": {"stop_strings": (PIECES[MARK],)},
    "stop token": {"stop_token_ids": (MARK,)},
    "eos": {"eos_ids": (MARK,)},
}


@pytest.mark.parametrize("how", HOW_TO_STOP)
def test_every_stop_position_limit_and_split(how):
    for position, max_tokens in product(range(6), range(1, 7)):
        tokens = [0, 1, 2, 3, 4, 5]
        tokens[position] = MARK
        rules = rules_for(PIECES, max_tokens=max_tokens, **HOW_TO_STOP[how])
        stopped = position < max_tokens
        kept = tokens[: position + 1] if stopped else tokens[:max_tokens]
        text = "".join(PIECES[token] for token in kept if token != MARK).encode()
        for blocks in splits(tokens):
            committed = commit_all(rules, blocks)
            assert committed.token_ids == tuple(kept)
            assert committed.state.num_tokens == len(kept)
            assert committed.state.finish_reason is (STOP if stopped else LENGTH)
            assert shown(rules, committed) == text


def test_stop_and_limit_at_the_same_token_is_a_stop():
    rules = rules_for(["a", "b"], max_tokens=2, stop_strings=("b",))
    assert commit(rules, OutputState(), (0, 1)).state.finish_reason is STOP


# ---------------------------------------------------------------- any vocabulary, any grouping


def pieces_of(text, cuts):
    raw = text.encode()
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    return [raw[low:high] for low, high in pairwise(edges)]


TEXTS = st.text("ab🔥é\n", max_size=10)
STOP_TEXTS = st.lists(st.text("ab🔥é\n", min_size=1, max_size=4), max_size=3)


@st.composite
def scenarios(draw):
    """Rules, tokens whose pieces split characters anywhere, and a grouping of them."""
    cuts = draw(st.lists(st.integers(0, 40), max_size=10))
    pieces = [b"", *pieces_of(draw(TEXTS), cuts), *pieces_of(draw(TEXTS), cuts)]
    tokens = draw(st.lists(st.integers(0, len(pieces) + 1), max_size=12))  # two ids have no text
    rules = rules_for(
        pieces,
        eos_ids=draw(st.sets(st.integers(0, len(pieces) - 1), max_size=1)),
        context=draw(st.integers(2, 16)),
        min_tokens=draw(st.integers(0, 4)),
        max_tokens=draw(st.integers(0, 14)),
        stop_token_ids=tuple(draw(st.sets(st.integers(0, len(pieces)), max_size=1))),
        stop_strings=tuple(draw(STOP_TEXTS)),
        ignore_eos=draw(st.booleans()),
    )
    cuts = sorted(draw(st.sets(st.integers(0, len(tokens)))))
    edges = [0, *cuts, len(tokens)]
    return rules, tokens, [tokens[a:b] for a, b in pairwise(edges)]


def held_back(stops, text):
    lengths = range(len(text), 0, -1)
    ends = (n for n in lengths if any(s[:n] == text[-n:] and len(s) > n for s in stops))
    return next(ends, 0)


def by_the_book(rules, stops, tokens):
    """The output rules, written plainly over whole texts: tokens, text shown, reason."""
    text, kept = b"", []
    for token in tokens:
        if len(kept) == rules.max_tokens:
            break
        may_end = len(kept) >= rules.min_tokens
        kept.append(token)
        if may_end and token in rules.end_ids:
            return kept, text, STOP
        before, text = len(text), text + rules.vocabulary.text_bytes([token])
        for end in range(before + 1, len(text) + 1) if may_end else ():
            lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
            if lengths:
                return kept, text[: end - max(lengths)], STOP
    if len(kept) == max(rules.max_tokens, 0):
        return kept, text, LENGTH
    return kept, text[: len(text) - held_back(stops, text)], None


@given(scenarios(), st.data())
def test_any_grouping_is_one_token_at_a_time_is_the_book(scenario, data):
    rules, tokens, blocks = scenario
    grouped = commit_all(rules, blocks)
    assert grouped == commit_all(rules, [[], *([token] for token in tokens)])
    assert grouped == commit_all(rules, [tokens])


@given(st.data())
def test_the_output_is_that_of_the_rules(data):
    stops = data.draw(STOP_TEXTS)
    pieces = [b"", *pieces_of(data.draw(TEXTS), data.draw(st.lists(st.integers(0, 40))))]
    tokens = data.draw(st.lists(st.integers(0, len(pieces)), max_size=12))
    rules = rules_for(
        pieces,
        eos_ids=data.draw(st.sets(st.integers(0, len(pieces) - 1), max_size=1)),
        min_tokens=data.draw(st.integers(0, 4)),
        max_tokens=data.draw(st.integers(0, 14)),
        stop_strings=tuple(stops),
    )
    kept, text, reason = by_the_book(rules, [stop.encode() for stop in stops], tokens)
    committed = commit_all(rules, [tokens])
    assert committed.token_ids == tuple(kept)
    assert shown(rules, committed) == text
    assert committed.state.finish_reason is reason


# ------------------------------------------------------------------------- single rules


def test_nothing_follows_an_end():
    rules = rules_for(["a"], max_tokens=1)
    over = commit(rules, OutputState(), (0,)).state
    assert commit(rules, over, (0, 0)) == Committed((), over)


def test_no_tokens_wanted():
    rules = rules_for(["a"], max_tokens=0)
    committed = commit(rules, OutputState(), ())
    assert committed == Committed((), OutputState(finish_reason=LENGTH))
    assert commit(rules, OutputState(), (0,)) == committed


@pytest.mark.parametrize("prompt_len", [1, 5, 7, 8, 9])
def test_the_context_ends_an_output(prompt_len):
    rules = rules_for(["a"], prompt_len=prompt_len, context=8)
    committed = commit(rules, OutputState(), (0,) * 20)
    assert len(committed.token_ids) == max(8 - prompt_len, 0)
    assert committed.state.finish_reason is LENGTH


@pytest.mark.parametrize("how", HOW_TO_STOP)
def test_min_tokens_come_before_any_end(how):
    rules = rules_for(PIECES, min_tokens=2, **HOW_TO_STOP[how])
    committed = commit(rules, OutputState(), (MARK, MARK, MARK, 0))
    assert committed.token_ids == (MARK, MARK, MARK)
    assert committed.state.finish_reason is STOP
    assert shown(rules, committed) == PIECES[MARK].encode() * 2


def test_min_tokens_do_not_lift_the_limit():
    rules = rules_for(["a"], min_tokens=9, max_tokens=3)
    assert commit(rules, OutputState(), (0,) * 5).state.finish_reason is LENGTH


def test_a_stop_string_may_begin_within_min_tokens():
    rules = rules_for(["a", "b"], min_tokens=1, stop_strings=("ab",))
    committed = commit(rules, OutputState(), (0, 1, 0))
    assert committed.token_ids == (0, 1)
    assert shown(rules, committed) == b""


def test_eos_can_be_ignored_but_not_a_stop_token():
    rules = rules_for(["a", "b"], eos_ids=(0, 1), ignore_eos=True, stop_token_ids=(1,))
    committed = commit(rules, OutputState(), (0, 0, 1, 0))
    assert committed.token_ids == (0, 0, 1)
    assert committed.state.finish_reason is STOP


def test_ids_beyond_the_tokenizer_add_no_text():
    rules = rules_for(["a"], stop_strings=("aa",))
    committed = commit(rules, OutputState(), (0, 9, 0))
    assert committed.state.finish_reason is STOP


@given(scenarios(), st.integers(0, 12))
def test_a_resumed_output_goes_on_where_it_was(scenario, emitted):
    rules, tokens, _ = scenario
    resumed = commit(rules, OutputState(), tokens[:emitted]).state
    rest = commit(rules, resumed, tokens[emitted:])
    assert rest.state == commit(rules, OutputState(), tokens).state


# --------------------------------------------------- text that is held back, split characters

DEF, G, HI, J, K, X, Y = range(7)
LETTERS = ["DEF", "G", "HI", "J", "K", "X", "Y"]


@pytest.mark.parametrize(
    ("stops", "tokens", "visible"),
    [
        (("DEFGHIJ",), (DEF, G, HI, J, K), ["", "", "", ""]),
        (("DEFGHIJ",), (DEF, G, X, Y), ["", "", "DEFGX", "DEFGXY"]),
        (("GH", "DEFGHIJ"), (DEF, G, HI, J, K), ["", "", "DEF"]),
    ],
)
def test_no_prefix_of_a_stop_string_is_shown(stops, tokens, visible):
    rules = rules_for(LETTERS, stop_strings=stops)
    state, seen, kept = OutputState(), [], ()
    for token in tokens:
        if state.finish_reason is None:
            committed = commit(rules, state, (token,))
            state, kept = committed.state, kept + committed.token_ids
            seen.append(shown(rules, Committed(kept, state)).decode())
    assert seen == visible


@pytest.mark.parametrize("ending", [{"max_tokens": 2}, {"eos_ids": (HI,)}])
def test_held_back_text_is_shown_at_any_other_end(ending):
    rules = rules_for([*LETTERS[:HI], "", *LETTERS[J:]], stop_strings=("DEFGHIJ",), **ending)
    committed = commit(rules, OutputState(), (DEF, G, HI))
    assert committed.state.finish_reason is not None
    assert shown(rules, committed) == b"DEFG"


TEXT = "hi 🔥👩‍👩‍👧 é ไทย 闫"
ONE_BYTE_TOKENS = [bytes([byte]) for byte in range(256)]


@pytest.mark.parametrize("size", range(1, 6))
def test_characters_split_over_tokens_and_steps(size):
    raw = list(TEXT.encode())
    blocks = [raw[start : start + size] for start in range(0, len(raw), size)]
    plain = rules_for(ONE_BYTE_TOKENS)
    assert shown(plain, commit_all(plain, blocks)).decode() == TEXT
    stopping = rules_for(ONE_BYTE_TOKENS, stop_strings=("👩‍👩‍👧",))
    assert shown(stopping, commit_all(stopping, blocks)).decode() == "hi 🔥"
    cut = rules_for(ONE_BYTE_TOKENS, max_tokens=5)
    assert shown(cut, commit_all(cut, blocks)) == TEXT.encode()[:5]


@pytest.mark.parametrize("how", HOW_TO_STOP)
def test_a_stop_is_shown_if_that_was_asked_for(how):
    tokens = [0, 1, MARK, 2]
    rules = rules_for(PIECES, show_stop=True, **HOW_TO_STOP[how])
    for blocks in splits(tokens):
        committed = commit_all(rules, blocks)
        assert shown(rules, committed) == b"<0><1><7>"
        assert committed.state.finish_reason is STOP


def test_a_shown_stop_string_ends_where_it_ends():
    rules = rules_for(["ab", "cd", "ef"], show_stop=True, stop_strings=("bc",))
    assert shown(rules, commit_all(rules, [[0, 1, 2]])) == b"abc"
