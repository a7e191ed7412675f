"""Masks of tree nodes: those of each node's own path, however the matcher came to be there."""

from __future__ import annotations

import itertools
import random
import threading

import numpy as np
import pytest
from tiny_models import random_tree

from actors.grammar import GrammarError, Grammars, grammar_of_regex, grammar_of_schema
from actors.llm.constraints import MANY_MASKS, MAX_MASK_S, Constraints
from actors.messages import NewRequest, Row
from actors.sampling import SamplingParams
from actors.tree import TokenTree
from actors.vocabulary import Vocabulary

PIECES = [*'abcdefgnmou{}[]":, 0123', '{"', '":', "ab", '"a', "12", "aa", "b0"]
EOS = len(PIECES)
VOCABULARY = Vocabulary(
    (*(piece.encode() for piece in PIECES), b""), (*PIECES, "<end>"), frozenset({EOS})
)
VOCAB_SIZE = EOS + 4
GRAMMARS = [
    grammar_of_regex("(ab|a+b?0){1,6}", "regex"),
    grammar_of_regex("[a-c]*(,[0-3]{2})?", "regex"),
    grammar_of_schema(
        {"type": "object", "additionalProperties": {"type": ["integer", "string"]}}, "schema"
    ),
]


@pytest.fixture(scope="module")
def grammars():
    return Grammars(VOCABULARY, VOCAB_SIZE)


def mask_by_itself(grammars, source, tokens):
    """What a fresh matcher allows after `tokens`; None if they are not allowed."""
    matcher = grammars.compile(source)
    return matcher.allowed() if matcher.accept(tokens) == len(tokens) else None


def some_output(grammars, source, chance, length):
    """Tokens that the grammar allows, its end left out."""
    matcher, tokens = grammars.compile(source), []
    for _ in range(length):
        allowed = [token for token in np.flatnonzero(matcher.allowed()) if token != EOS]
        if not allowed:
            break
        tokens.append(int(chance.choice(allowed)))
        matcher.accept(tokens[-1:])
    return tokens


def some_tree(grammars, source, chance, output):
    """Nodes that go on as the grammar allows, and others; parents before children, any order."""
    paths = [some_output(grammars, source, chance, len(output) + 5)[len(output) :] or [0]]
    for _ in range(4):
        matcher = grammars.compile(source)
        matcher.accept(output)
        path = []
        for _ in range(chance.randint(1, 5)):
            allowed = np.flatnonzero(matcher.allowed()).tolist()
            path.append(chance.choice(allowed) if chance.random() < 0.85 else chance.randrange(EOS))
            if matcher.accept(path[-1:]) == 0:
                break
        paths.append(path)
    return TokenTree.from_paths(paths)


@pytest.mark.parametrize("source", GRAMMARS)
@pytest.mark.parametrize("seed", range(6))
def test_masks_are_those_of_each_nodes_own_path(grammars, source, seed):
    chance = random.Random(seed)
    prompt_len = 4
    constraints = Constraints(VOCABULARY, VOCAB_SIZE)
    new = NewRequest(7, prompt_len, SamplingParams(), grammar=source)
    constraints.follow([new], [])
    output = []
    for _ in range(8):
        tree = some_tree(grammars, source, chance, output)
        row = Row(7, prompt_len + len(output), tree)
        masks = constraints.begin([(row, output)]).result()[7]
        assert constraints.allowed([(row, output)])[7] == tuple(sorted({0, *masks}))
        for node in range(len(tree)):
            expected = mask_by_itself(grammars, source, [*output, *tree.path_tokens(node)])
            if expected is None:
                assert node not in masks
            else:
                assert np.array_equal(masks[node], expected)
                assert not masks[node][EOS + 1 :].any()
        good = [node for node in masks if not masks[node][EOS]] or [None]
        kept = chance.choice(good)
        if kept is not None:
            output = [*output, *tree.path_tokens(kept)]


def test_nodes_may_stand_in_any_order_below_their_parents(grammars):
    chance = random.Random(1)
    source = GRAMMARS[1]
    for _ in range(20):
        tree = random_tree(chance, 12, vocab_size=3)
        constraints = Constraints(VOCABULARY, VOCAB_SIZE)
        constraints.follow([NewRequest(0, 2, SamplingParams(), grammar=source)], [])
        masks = constraints.begin([(Row(0, 2, tree), [])]).result()[0]
        assert sorted(masks) == list(range(12))
        for node, mask in masks.items():
            assert np.array_equal(mask, mask_by_itself(grammars, source, tree.path_tokens(node)))


def test_the_prompt_is_free_and_the_first_draw_is_not(grammars):
    constraints = Constraints(VOCABULARY, VOCAB_SIZE)
    constraints.follow([NewRequest(0, 4, SamplingParams(), grammar=GRAMMARS[0])], [])
    row = Row(0, 1, TokenTree.chain([9, 9, 9, 0, 0]))
    masks = constraints.begin([(row, [])]).result()[0]
    assert sorted(masks) == [2, 3, 4]
    assert np.array_equal(masks[4], mask_by_itself(grammars, GRAMMARS[0], [0, 0]))


def test_an_output_that_left_the_grammar_has_no_masks():
    constraints = Constraints(VOCABULARY, VOCAB_SIZE)
    constraints.follow([NewRequest(0, 2, SamplingParams(), grammar=GRAMMARS[0])], [])
    for _ in range(2):
        assert constraints.begin([(Row(0, 3, TokenTree.chain([0])), [5])]).result()[0] == {}
    assert constraints.begin([(Row(0, 2, TokenTree.chain([0])), [])]).result()[0].keys() == {0}


def test_a_model_that_cannot_end_a_text_has_no_masks():
    endless = Vocabulary(VOCABULARY.token_bytes, VOCABULARY.token_names, frozenset())
    constraints = Constraints(endless, VOCAB_SIZE)
    constraints.follow([NewRequest(0, 2, SamplingParams(), grammar=GRAMMARS[0])], [])
    assert constraints.begin([(Row(0, 2, TokenTree.chain([0])), [])]).result()[0] == {}


@pytest.mark.parametrize("mask_s", [MAX_MASK_S / 2, 2 * MAX_MASK_S])
def test_a_grammar_whose_masks_go_on_taking_long_is_given_up(mask_s):
    looks = itertools.count()
    constraints = Constraints(VOCABULARY, VOCAB_SIZE, lambda: next(looks) * mask_s)
    constraints.follow([NewRequest(0, 2, SamplingParams(), grammar=GRAMMARS[0])], [])
    made = [
        len(constraints.begin([(Row(0, 2, TokenTree.chain([0])), [])]).result()[0])
        for _ in range(2 * MANY_MASKS)
    ]
    assert made[: MANY_MASKS // 2] == [1] * (MANY_MASKS // 2)
    assert made[-1] == (mask_s < MAX_MASK_S)


def test_requests_are_forgotten():
    constraints = Constraints(VOCABULARY, VOCAB_SIZE)
    new = NewRequest(0, 2, SamplingParams(), grammar=GRAMMARS[0])
    constraints.follow([new], [])
    constraints.follow([], [0])
    with pytest.raises(KeyError):
        constraints.begin([(Row(0, 2, TokenTree.chain([0])), [])])
    constraints.follow([new], [])
    constraints.clear()
    with pytest.raises(KeyError):
        constraints.begin([(Row(0, 2, TokenTree.chain([0])), [])])


def test_a_grammar_that_takes_long_holds_up_no_other(monkeypatch):
    release = threading.Event()
    compile_now = Grammars.compile

    def compile_late(self, source):
        if source == GRAMMARS[1]:
            release.wait()
        return compile_now(self, source)

    monkeypatch.setattr(Grammars, "compile", compile_late)
    constraints = Constraints(VOCABULARY, VOCAB_SIZE)
    early, late = (NewRequest(i, 2, SamplingParams(), grammar=GRAMMARS[i]) for i in range(2))
    constraints.follow([early], [])
    while constraints.wait([0], 1.0):
        pass
    constraints.follow([late], [])
    assert constraints.wait([0, 1], 0.0) == {1}
    assert constraints.wait([1], 0.001) == {1}
    row = Row(0, 2, TokenTree.chain([0]))
    assert constraints.begin([(row, [])]).result()[0].keys() == {0}
    release.set()
    while constraints.wait([1], 1.0):
        pass
    row = Row(1, 2, TokenTree.chain([0]))
    assert constraints.begin([(row, [])]).result()[1].keys() == {0}


def test_a_grammar_that_nobody_waits_for_is_not_compiled(held):
    release, compiled = held
    constraints = Constraints(VOCABULARY, VOCAB_SIZE)
    first, second, third = GRAMMARS
    wanted = [first, second, second, third]
    constraints.follow(
        [NewRequest(i, 2, SamplingParams(), grammar=grammar) for i, grammar in enumerate(wanted)],
        [],
    )
    constraints.follow([], [1, 3])  # another request still wants the second one
    release.set()
    while constraints.wait([0, 2], 1.0):
        pass
    assert compiled == [first, second]
    constraints.follow([NewRequest(4, 2, SamplingParams(), grammar=third)], [])
    while constraints.wait([4], 1.0):
        pass
    assert compiled == [first, second, third]


def test_a_new_epoch_waits_for_no_grammar_of_the_last(monkeypatch):
    release, compiled = threading.Event(), []
    monkeypatch.setattr(
        Grammars, "compile", lambda self, source: release.wait() and compiled.append(source)
    )
    constraints = Constraints(VOCABULARY, VOCAB_SIZE)
    new = [NewRequest(i, 2, SamplingParams(), grammar=GRAMMARS[i]) for i in range(3)]
    constraints.follow(new[:2], [])
    constraints.clear()
    constraints.follow(new[2:], [])
    release.set()
    while constraints.wait([2], 1.0):
        pass
    assert GRAMMARS[1] not in compiled


def test_a_grammar_that_needs_too_much_work_says_so(grammars):
    with pytest.raises(GrammarError):
        grammars.compile("no grammar at all {")
