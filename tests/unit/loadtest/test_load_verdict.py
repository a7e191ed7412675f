"""Objectives, validity, comparison, search, and the one word at the end."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import aiohttp
import numpy as np
import pytest
from virtual import ScriptedSender, run_virtual, session, summary_of

from loadtest.compare import compare, first_difference
from loadtest.driver import Driver
from loadtest.errors import UsageError
from loadtest.experiment import Results
from loadtest.failures import FOREIGN, MAPPING, outcome_of
from loadtest.records import OUTCOME_MEANINGS, Outcome, RequestRecord
from loadtest.report import tables
from loadtest.report.highlights import highlights
from loadtest.scrape import Scrapes, ServerSide, server_side
from loadtest.search import SearchResult, highest_rate
from loadtest.slo import Slo
from loadtest.stub.script import Behaviour
from loadtest.summary import Judging
from loadtest.validity import ValidityLimits, judge
from loadtest.verdict import judge_results, last_line
from loadtest.vitals import Vitals

SLO = Slo({"ttft": 0.5}, 0.9)


def run(behaviours, count=20):
    driver = Driver(ScriptedSender(behaviours))
    run_virtual(driver.open_loop([session(n, 0.1 * n) for n in range(count)]))
    return driver.records


def results(*summaries):
    return Results(summaries=list(summaries))


def test_slos_are_read_and_applied():
    slo = Slo.parse("ttft=1.0, tpot=0.06", 0.95)
    assert slo.limits_s == {"ttft": 1.0, "tpot": 0.06}
    for text in ("ttft", "ttft=x", "ttft=0", "speed=1", "ttft=nan", "ttft=inf", ""):
        with pytest.raises(UsageError):
            Slo.parse(text, 0.9)


@pytest.mark.parametrize(("num_slow", "word"), [(2, "PASSED"), (3, "FAILED")])
def test_the_share_of_good_requests_decides(num_slow, word):
    slow = [Behaviour(ttft_s=2.0)] * num_slow
    summary = summary_of(run([*slow, *[Behaviour()] * (20 - num_slow)]), Judging(SLO))
    verdict = judge_results(results(summary), SLO, require_equal=False)
    assert (verdict.word, verdict.good) == (word, word == "PASSED")


def test_an_invalid_run_says_so_first_and_is_never_good():
    vitals = Vitals([0.0] * 95 + [0.1] * 5, 0.1, 1.0)
    summary = summary_of(run([Behaviour()]), Judging(SLO), vitals=vitals)
    verdict = judge_results(results(summary), SLO, require_equal=False)
    assert verdict.word == "INVALID" and not verdict.good
    assert "read its clock 100.0 ms late" in verdict.reasons[0]


def test_each_sign_of_a_late_harness_is_found():
    limits = ValidityLimits(lag_p99_s=0.02, cpu_share=0.8)
    record = RequestRecord(0, 0, 1.0, 1.0, sent_s=1.5)
    good = Vitals([0.001] * 100, 0.1, 1.0)
    assert judge([], [good], limits).valid
    assert "sent requests 500.0 ms late" in judge([record], [good], limits).problems[0]
    assert "90 % of its core" in judge([], [Vitals([0.0], 0.9, 1.0)], limits).problems[0]


def test_held_back_by_the_limit_of_open_requests_is_not_late():
    record = RequestRecord(0, 0, 1.0, 9.0, sent_s=9.001)
    assert judge([record], [], ValidityLimits()).valid


def test_a_run_without_an_answer_has_failed():
    summary = summary_of(run([Behaviour(status=500)]))
    verdict = judge_results(results(summary), None, require_equal=False)
    assert verdict.word == "FAILED"
    assert json.loads(json.dumps(last_line(results(summary), verdict)))["errors"] == {
        "http_5xx": 20
    }


@pytest.mark.parametrize(("cached", "told"), [(5, False), (60, True)])
def test_a_prefix_cache_that_flatters_is_told(cached, told):
    records = run([Behaviour()])
    for record in records:
        record.prompt_tokens, record.cached_tokens = 100, cached
    verdict = judge_results(results(summary_of(records)), None, require_equal=False)
    assert any(f"{cached} % of prompt tokens" in reason for reason in verdict.reasons) is told


def test_an_invalid_run_that_was_interrupted_says_both():
    late = Vitals([0.1] * 100, 0.1, 1.0)
    summary = replace(summary_of(run([Behaviour()]), vitals=late), stopped=True)
    verdict = judge_results(results(summary), None, require_equal=False)
    assert verdict.word == "INVALID" and "ended before its time" in verdict.reasons


def test_a_sweep_fails_only_if_every_load_is_beyond_the_slo():
    slow = summary_of(run([Behaviour(ttft_s=2.0)]), Judging(SLO))
    quick = replace(summary_of(run([Behaviour()]), Judging(SLO)), load=2.0)
    for second, word in ((quick, "MEASURED"), (replace(slow, load=2.0), "FAILED")):
        verdict = judge_results(results(slow, second), SLO, require_equal=False)
        assert (verdict.word, verdict.good) == (word, word == "MEASURED")


def test_a_search_that_was_broken_off_says_nothing_of_its_lowest_rate():
    summary = replace(summary_of(run([Behaviour()]), Judging(SLO)), stopped=True)
    found = Results(summaries=[summary], searches={"": SearchResult(None, None, ())})
    verdict = judge_results(found, SLO, require_equal=False)
    assert verdict.word == "INTERRUPTED"
    assert not any("lowest" in reason for reason in verdict.reasons)


def test_a_warm_up_longer_than_the_run_is_named():
    summary = summary_of(run([Behaviour()]), Judging(SLO, warm_up_s=100.0))
    verdict = judge_results(results(summary), SLO, require_equal=False)
    assert verdict.word == "FAILED" and "no request was due" in verdict.reasons[0]


def test_a_run_that_was_never_begun_was_interrupted():
    assert judge_results(results(), None, require_equal=False).word == "INTERRUPTED"


def test_the_last_line_has_what_scripts_rely_on():
    summary = summary_of(run([Behaviour(chunk_tokens=(1, 3))], 120), Judging(SLO))
    line = last_line(results(summary), judge_results(results(summary), SLO, require_equal=False))
    assert line["valid"] is True and line["requests"] == 120 and line["errors"] == {}
    for name in ("ttft_s", "ttft_from_schedule_s", "tpot_s", "itl_token_s", "e2e_s"):
        assert {"p50", "p90", "p95", "p99"} <= line[name].keys()
    assert line["ttft_s"]["p99"] is not None and line["ttft_s"]["p99_9"] is None
    assert line["tokens_per_chunk"] == pytest.approx(10 / 6)
    assert line["output_tokens_per_s"] > 0 and line["goodput_rps"] > 0


def test_first_difference():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_arms_are_paired_by_request_and_compared_by_token():
    rng = np.random.default_rng(0)
    fast, slow = run([Behaviour(ttft_s=0.1, gap_s=0.01)]), run([Behaviour(ttft_s=0.1, gap_s=0.02)])
    slow[4].token_ids[3] += 100
    slow[7].outcome = Outcome.RESET
    found = compare(summary_of(fast, arm="A"), summary_of(slow, arm="B"), rng)
    assert (found.unit, found.num_pairs, found.num_equal, found.num_unpaired) == (
        "token",
        19,
        18,
        1,
    )
    assert [(one.index, one.place) for one in found.differences] == [(4, 3)]
    assert found.ratios["tpot_s"].value == pytest.approx(2.0)
    assert found.ratios["ttft_s"].value == pytest.approx(1.0)


def test_differing_answers_fail_only_if_equality_is_required():
    rng = np.random.default_rng(0)
    ours, theirs = run([Behaviour()]), run([Behaviour()])
    theirs[0].token_ids[0] = 7
    pair = summary_of(ours, arm="A"), summary_of(theirs, arm="B")
    found = Results(summaries=list(pair), comparisons=[compare(*pair, rng)])
    assert judge_results(found, None, require_equal=False).good
    assert not judge_results(found, None, require_equal=True).good


@pytest.mark.parametrize("limit", [0.7, 1.0, 5.3, 31.9, 99.0])
def test_bisection_closes_in_on_the_limit(limit):
    async def passes(rate):
        return rate <= limit

    found = asyncio.run(highest_rate(passes, 0.5, 100.0, 0.05))
    assert found.passed <= limit < found.failed <= 1.05 * found.passed * 1.001


def test_bisection_at_the_edges():
    async def always(rate):
        return True

    async def never(rate):
        return False

    async def broken_off(rate):
        return None if rate == 100.0 else True

    assert asyncio.run(highest_rate(always, 1.0, 100.0, 0.1)).passed == 100.0
    lowest = asyncio.run(highest_rate(never, 1.0, 100.0, 0.1))
    assert (lowest.passed, lowest.failed, len(lowest.tried)) == (None, 1.0, 1)
    assert asyncio.run(highest_rate(broken_off, 1.0, 100.0, 0.1)).passed == 1.0


def every_subclass(kind):
    return {kind, *(below for sub in kind.__subclasses__() for below in every_subclass(sub))}


def test_every_error_of_the_http_library_has_a_class():
    for kind in every_subclass(aiohttp.ClientError):
        error = kind.__new__(kind)
        assert outcome_of(error).failed
    assert all(issubclass(kind, FOREIGN) for kind, _ in MAPPING)
    with pytest.raises(TypeError):
        outcome_of(KeyError("ours"))


def test_every_outcome_has_a_meaning():
    assert OUTCOME_MEANINGS.keys() == set(Outcome)


PAGE = """# TYPE steps counter
steps_total{{model="m"}} {steps}
# TYPE nodes histogram
nodes_bucket{{le="+Inf"}} {count}
nodes_count {count}
nodes_sum {sum}
# TYPE running gauge
running {running}
"""


def test_the_servers_metrics_are_differences_over_the_run():
    pages = [
        (0.0, PAGE.format(steps=100, count=10, sum=40, running=0)),
        (1.0, PAGE.format(steps=130, count=15, sum=50, running=4)),
        (2.0, PAGE.format(steps=160, count=20, sum=120, running=1)),
    ]
    found = server_side(Scrapes(pages))
    assert found.total("steps_total") == 60
    assert found.mean("nodes") == pytest.approx(8.0)
    assert found.gauges["running"] == [0.0, 4.0, 1.0]
    assert not found.restarted
    assert server_side(Scrapes([pages[2], pages[0]])).restarted


def test_known_servers_are_summed_up_by_the_names_that_they_use():
    grown = {
        'treeserve_tree_nodes_sum{model_name="m"}': 60.0,
        'treeserve_tree_nodes_count{model_name="m"}': 10.0,
        'vllm:spec_decode_num_draft_tokens_total{model_name="m"}': 60.0,
        'vllm:spec_decode_num_accepted_tokens_total{model_name="m"}': 15.0,
    }
    gauges = {
        'treeserve_requests_waiting{model_name="m"}': [0.0, 7.0, 2.0],
        'treeserve_kv_blocks_used{model_name="m"}': [0.0, 25.0, 5.0],
        'treeserve_kv_blocks_total{model_name="m"}': [100.0, 100.0, 100.0],
    }
    assert dict(highlights(ServerSide(grown, gauges, [0.0, 1.0, 2.0], False))) == {
        "most requests waiting": "7",
        "most KV blocks used": "25 %",
        "draft nodes in a tree": "6",
        "draft tokens accepted": "25 %",
    }


def test_only_what_counts_can_tell_of_a_restart():
    page = '# TYPE s summary\ns{{quantile="0.5"}} {0}\ns_sum {1}\ns_count {1}\nuntyped {0}\n'
    found = server_side(Scrapes([(0.0, page.format(9, 1)), (1.0, page.format(2, 3))]))
    assert not found.restarted
    assert found.mean("s") == 1.0
    assert found.gauges["untyped"] == [9.0, 2.0]


def test_figures_that_are_none_are_written_all_the_same():
    values = "# TYPE a gauge\na NaN\n# TYPE b counter\nb_total NaN\n# TYPE c gauge\nc -Inf\n"
    found = server_side(Scrapes([(0.0, values), (1.0, values)]))
    assert "nan" in tables.server_side(found)


def test_a_page_that_is_no_metrics_is_left_out():
    assert server_side(Scrapes([(0.0, "<html>"), (1.0, "<html>")])) is None
    assert server_side(Scrapes([])) is None
