"""The document of results: sections replaced one by one, and sentences that follow the figures."""

from __future__ import annotations

import subprocess

import pytest

from actors.request_manager.generation import SpeculationStats
from cluster.bench.results import provenance
from cluster.bench.results.batches import falling
from cluster.bench.results.comparing import Ratio, first_drafts, ratio, seconds_and_tokens
from cluster.bench.results.coverage import pools
from cluster.bench.results.document import HEAD, table, with_section
from cluster.bench.results.places import WIDEST, Place, coverage, in_turns
from cluster.bench.results.provenance import Provenance, cpu_name
from cluster.bench.results.shapes import chain, count_nodes, name_of, tree
from cluster.bench.results.statements import at_least, at_most, most
from cluster.bench.results.tasks import CONFIGURED, OWN, PLAIN, SHARED, arms_of
from cluster.bench.served import Served
from cluster.config import parse_config

ORDER = ("First", "Second", "Third")


def served(task, tokens, steps, seconds, histogram=()):
    stats = SpeculationStats(
        num_llm_steps=steps,
        num_spec_steps=sum(histogram),
        acceptance_histogram=list(histogram),
    )
    return Served(task, tuple(range(tokens + 1)), seconds, stats)


def test_a_section_is_replaced_and_all_others_stay():
    document = with_section("", ORDER, "Third", "three\n\n### part\n\nmore")
    assert document.startswith(HEAD.strip())
    document = with_section(document, ORDER, "First", "one")
    both = f"{HEAD.strip()}\n\n## First\n\none\n\n## Third\n\nthree\n\n### part\n\nmore\n"
    assert document == both, "in the order of the parts, whichever came first"
    again = with_section(both, ORDER, "First", "another")
    assert again == both.replace("\none\n", "\nanother\n")


def test_what_others_wrote_stays():
    document = "# My title\n\nwords\n\n## Notes\n\nby hand\n\n## Second\n\nold\n"
    found = with_section(document, ORDER, "Second", "new")
    assert found == "# My title\n\nwords\n\n## Second\n\nnew\n\n## Notes\n\nby hand\n"
    assert with_section(found, ORDER, "Second", "new") == found


def test_tables_are_markdown():
    assert table(["a", "b"], [["x", 1.234], ["y", "z"]]).splitlines() == [
        "| a | b |",
        "| --- | ---: |",
        "| x | 1.23 |",
        "| y | z |",
    ]


def test_sentences_follow_the_figures():
    assert at_least("x", 2.4, 2.4).endswith("asked at least 2.4: met.")
    assert "missed" in at_least("x", 2.3999, 2.4)
    assert "met" in at_most("x", 0.65, 0.65)
    assert "missed" in at_most("x", 0.66, 0.65)
    assert at_least("x", Ratio(1.3, 1.25, 1.4), 1.2).endswith(
        "1.30 (1.25 to 1.40), asked at least 1.2: met."
    )
    assert at_least("x", Ratio(1.3, 1.1, 1.4), 1.2).endswith("met, not for sure.")
    assert at_most("x", Ratio(0.7, 0.6, 0.8), 0.65).endswith("**missed**, not for sure.")
    assert most("t", {"a": 1.0, "b": 2.0}) == "t: b has most, 2.00 (then a 1.00)."
    assert falling({1: 8.0, 4: 3.0, 16: 3.0}).endswith("8.0 → 3.0 → 3.0: falling.")
    assert "not falling" in falling({1: 8.0, 4: 3.0, 16: 4.0})


def test_ratios_are_of_sums_and_their_intervals_tell_what_is_sure():
    base = [(10.0, 5.0), (30.0, 10.0), (20.0, 10.0)] * 5
    same = ratio(base, base)
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)
    assert same.verdict == "no clear difference"
    twice = ratio([(2 * tokens, steps) for tokens, steps in base], base)
    assert (twice.value, twice.verdict) == (pytest.approx(2.0), "more")
    assert ratio([(tokens, 2 * steps) for tokens, steps in base], base).verdict == "less"
    mixed = ratio([(1.0, 1.0), (9.0, 1.0)], [(2.0, 1.0), (2.0, 1.0)])
    assert (mixed.value, mixed.low, mixed.high) == (2.5, 0.5, 4.5)
    assert mixed.verdict == "no clear difference"


def test_answers_without_a_step_do_no_harm():
    answers = [served("a", 0, 0, 0.0), served("a", 4, 2, 0.4)]
    found = ratio(seconds_and_tokens(answers), seconds_and_tokens(answers))
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_the_first_draft_counts_in_drafted_steps_alone():
    answers = [
        served("a", 9, 5, 1.0, (1, 2)),
        served("a", 9, 9, 1.0, (2, 0, 3)),
        served("a", 1, 1, 1),
    ]
    assert first_drafts(answers) == pytest.approx(5 / 8)
    assert first_drafts(answers[2:]) == 0.0


def test_models_take_turns_to_guess():
    assert in_turns([[1, 2, 3], [1, 4]], 5) == [1, 2, 4, 3]
    assert in_turns([[1, 2, 3], [5, 4]], 2) == [1, 5]
    assert in_turns([], 2) == []


def test_coverage_counts_the_guesses_that_are_needed():
    places = [
        Place([[7, 8], [9]], 7),  # the first guess of the first
        Place([[7, 8], [9]], 9),  # the second guess of both together
        Place([[7, 8], [9]], 8),  # the third
        Place([[7, 8], [9]], 1),  # none
    ]
    assert coverage(places, [0]) == [0.25, 0.5, 0.5, 0.5, 0.5]
    assert coverage(places, [1]) == [0.25] * WIDEST
    assert coverage(places, [0, 1]) == [0.25, 0.5, 0.75, 0.75, 0.75]
    assert coverage([], [0]) == [0.0] * WIDEST


@pytest.mark.parametrize(
    ("num_models", "num_own", "sizes"), [(1, 1, []), (3, 2, [2]), (3, 3, [2, 3]), (4, 4, [2, 4])]
)
def test_pools_are_of_the_configurations_own_models(num_models, num_own, sizes):
    found = pools(num_models, num_own)
    assert [len(models) for models in found.values()] == [1] * num_models + sizes
    assert all(
        models == list(range(size))
        for size, models in zip(sizes, [*found.values()][num_models:], strict=True)
    )


def test_static_trees_and_their_drafters():
    assert [count_nodes(tree(2, width)) for width in (1, 2, 5)] == [8, 14, 32]
    assert [count_nodes(tree(0, width)) for width in (1, 2, 5)] == [8, 16, 40]
    assert count_nodes((2, 3)) == 8
    assert tree(2, 3) == (1, 1, 3, 1, 1, 1, 1, 1)
    assert name_of(tree(2, 1)) == name_of(tree(0, 1)) == name_of(chain(8)) == "ssm-chain8"
    assert len({name_of(tree(level, width)) for level in (0, 2) for width in range(2, 6)}) == 8


def test_arms_are_configurations():
    config = parse_config(
        "{ssms: [{path: a}], speculation: {drafters: [ssm, grammar, prompt_lookup]}}"
    )
    arms = arms_of(config.speculation, has_models=True)
    assert arms[PLAIN].drafters == ()
    assert arms[CONFIGURED] == config.speculation
    assert arms[SHARED].drafters == arms[OWN].drafters == ("ssm", "grammar", "suffix", "ngram")
    assert (arms[SHARED].suffix_global, arms[OWN].suffix_global) == (True, False)
    assert arms_of(config.speculation, has_models=False)[OWN].drafters == (
        "grammar",
        "suffix",
        "ngram",
    )


def test_a_measurement_says_where_it_was_made(tmp_path, monkeypatch):
    said = str(Provenance.now(tmp_path / "results.md"))
    assert "cores" in said and "torch 2" in said and "load" in said
    busy, quiet = (str(Provenance("abc", "a machine", load)) for load in (3.0, 0.4))
    assert "times tell little" in busy and "times tell little" not in quiet
    assert (
        cpu_name("processor : 0\nmodel name\t: A fast one\nmodel name\t: A fast one\n")
        == "A fast one"
    )
    assert cpu_name("") != ""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert Provenance.now(tmp_path / "results.md").commit == "unknown"


def test_changed_code_is_told_but_not_the_document_itself(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    document, code = tmp_path / "results.md", tmp_path / "code.py"
    document.write_text("old")
    code.write_text("old")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    clean = Provenance.now(document).commit
    document.write_text("new")
    assert Provenance.now(document).commit == clean
    code.write_text("new")
    assert Provenance.now(document).commit == f"{clean} with changes"
