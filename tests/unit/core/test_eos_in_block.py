"""An EOS accepted in the middle of a block ends the output there, as without speculation."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
from coupled_decoding import plain_stream, tree_stream

from actors.request_manager.commit import OutputRules, OutputState, commit
from actors.request_manager.generation import FinishReason, StopConditions
from actors.request_manager.verify import verify
from actors.tree import TokenTree
from actors.vocabulary import Vocabulary

PROMPT = (3, 5)
MAX_TOKENS = 20
VOCAB_SIZE = 101
WIDTHS, DEPTHS = (1, 2, 4), range(1, 9)


def scripted(context, place=None):
    """A toy LLM that decodes greedily: the next token follows from the last two."""
    return (2 * context[-1] + 6 * context[-2] + 29) % VOCAB_SIZE


PLAIN = plain_stream(scripted, PROMPT, MAX_TOKENS)


@cache
def drafter(width, depth):
    """Follows the script, but errs at every seventh position; `width` children at each level."""

    def draft(tokens):
        paths, path = [], ()
        for _ in range(depth):
            right = scripted(tokens + path)
            off = 1 if (len(tokens) + len(path)) % 7 == 6 else 0
            children = [(right + off + sibling) % VOCAB_SIZE for sibling in range(width)]
            paths.extend((*path, child) for child in children)
            path = (*path, children[0])
        return TokenTree.from_paths(paths)

    return draft


def rules_with(eos, ignore_eos):
    table = tuple(f"<{token}>".encode() for token in range(VOCAB_SIZE))
    vocabulary = Vocabulary(table, tuple(map(repr, table)), frozenset({eos}))
    stop = StopConditions(MAX_TOKENS, ignore_eos=ignore_eos)
    return OutputRules(stop, vocabulary, len(PROMPT), 4096)


def generate(rules, draft):
    """Steps of draft, verify and commit until the output ends; also how long its blocks were."""
    tokens, state, blocks = PROMPT, OutputState(), []
    while state.finish_reason is None:
        tree = draft(tokens).rooted(tokens[-1])
        drawn_ids = [scripted(tokens[:-1] + tree.path_tokens(node)) for node in range(len(tree))]
        verified = verify(tree, drawn_ids)
        committed = commit(rules, state, verified.token_ids)
        blocks.append((len(committed.token_ids), len(verified.token_ids)))
        tokens, state = tokens + committed.token_ids, committed.state
    return tokens[len(PROMPT) :], state, blocks


def no_draft(tokens):
    return TokenTree()


@pytest.mark.parametrize("k", range(1, 17))
def test_eos_at_every_step_for_every_width_and_depth(k):
    rules = rules_with(PLAIN[k - 1], ignore_eos=False)
    expected = PLAIN[: PLAIN.index(PLAIN[k - 1]) + 1]
    plain = generate(rules, no_draft)
    assert plain[0] == expected
    assert plain[1].finish_reason is FinishReason.STOP
    for width, depth in product(WIDTHS, DEPTHS):
        assert generate(rules, drafter(width, depth))[:2] == plain[:2]


@pytest.mark.parametrize("k", [1, 5, 16])
def test_an_ignored_eos_runs_to_the_limit(k):
    rules = rules_with(PLAIN[k - 1], ignore_eos=True)
    for width, depth in product(WIDTHS, DEPTHS):
        tokens, state, _ = generate(rules, drafter(width, depth))
        assert tokens == PLAIN
        assert state.finish_reason is FinishReason.LENGTH


def test_the_cases_include_an_eos_with_accepted_tokens_behind_it():
    cut = 0
    for token, width, depth in product(PLAIN[:16], WIDTHS, DEPTHS):
        _, _, blocks = generate(rules_with(token, ignore_eos=False), drafter(width, depth))
        cut += any(kept < verified for kept, verified in blocks)
    assert cut > 100


def test_the_script_does_not_repeat_itself_too_soon():
    assert len(set(PLAIN[:16])) == 16


def test_trees_do_not_change_the_script():
    for width, depth in product(WIDTHS, DEPTHS):
        assert tree_stream(scripted, drafter(width, depth), PROMPT, MAX_TOKENS) == PLAIN
