"""Every figure against scripts whose figures are known, on virtual time."""

from __future__ import annotations

import pytest
from virtual import ScriptedSender, run_virtual, session, summary_of

from loadtest.driver import Driver
from loadtest.slo import Slo
from loadtest.stub.script import Behaviour
from loadtest.summary import Judging


def play(behaviours, times, *, max_open=None, max_tokens=10):
    driver = Driver(ScriptedSender(behaviours), max_open)
    sessions = [session(index, at_s, 1, max_tokens) for index, at_s in enumerate(times)]
    run_virtual(driver.open_loop(sessions))
    return driver.records


def test_multi_token_chunks_are_spread_over_their_tokens():
    # 10 tokens as 1, 3, 2, 1, 3: four gaps of 60 ms for nine tokens.
    behaviour = Behaviour(ttft_s=0.2, gap_s=0.06, chunk_tokens=(1, 3, 2))
    found = summary_of(play([behaviour], [0.0])).distributions
    assert found["ttft_s"].mean == pytest.approx(0.2)
    assert found["tpot_s"].mean == pytest.approx(4 * 0.06 / 9)
    assert found["e2e_s"].mean == pytest.approx(0.2 + 4 * 0.06)
    assert found["itl_token_s"].count == 9
    assert found["itl_token_s"].mean == pytest.approx(4 * 0.06 / 9)
    assert found["itl_token_s"].minimum == pytest.approx(0.02)
    assert found["itl_token_s"].maximum == pytest.approx(0.06)
    assert found["chunk_gap_s"].count == 4
    assert found["chunk_gap_s"].mean == pytest.approx(0.06)
    assert found["tokens_per_chunk"].mean == pytest.approx(2.0)


def test_chunks_taken_for_tokens_would_be_wrong_here():
    """The mistake that this harness is for: the gap of a chunk as the latency of a token."""
    behaviour = Behaviour(ttft_s=0.1, gap_s=0.1, chunk_tokens=(5,))
    found = summary_of(play([behaviour], [0.0])).distributions
    assert found["chunk_gap_s"].mean == pytest.approx(0.1)
    assert found["itl_token_s"].mean == pytest.approx(0.02)


def test_the_tokens_of_the_first_delivery_have_no_gap():
    behaviour = Behaviour(ttft_s=0.3, gap_s=0.1, chunk_tokens=(8, 2))
    found = summary_of(play([behaviour], [0.0])).distributions
    assert found["tpot_s"].mean == pytest.approx(0.05)
    assert found["itl_token_s"].count == 2


def test_an_answer_in_one_delivery_has_no_time_per_token():
    found = summary_of(play([Behaviour(chunk_tokens=(10,))], [0.0])).distributions
    assert found["tpot_s"].count == found["itl_token_s"].count == 0
    assert found["ttft_s"].count == 1


def test_a_stall_is_a_gap():
    behaviour = Behaviour(gap_s=0.01, stall_after=5, stall_s=2.0)
    found = summary_of(play([behaviour], [0.0])).distributions
    assert found["chunk_gap_s"].maximum == pytest.approx(2.01)


def test_only_the_schedule_shows_what_a_limit_of_open_requests_hides():
    """The first answer stalls for 5 s; with one request open at a time the others wait unseen."""
    behaviours = [Behaviour(ttft_s=0.1, stall_after=3, stall_s=5.0), *[Behaviour(ttft_s=0.1)] * 9]
    records = play(behaviours, [0.1 * place for place in range(10)], max_open=1)
    found = summary_of(records)
    assert found.distributions["ttft_s"].maximum == pytest.approx(0.1)
    assert found.distributions["ttft_from_schedule_s"].maximum > 5.0
    # The harness itself was never late: it was the limit that held them.
    assert found.validity.schedule_lag["max_s"] == pytest.approx(0.0, abs=1e-9)


def test_throughput_is_by_the_window():
    # 20 answers of 10 tokens, one each 0.1 s from 0; the last ends at 1.9 + 0.02 + 9 * 0.01.
    found = summary_of(play([Behaviour()], [0.1 * place for place in range(20)]))
    assert found.window_s == pytest.approx(2.01)
    assert found.output_tokens_per_s == pytest.approx(200 / 2.01)
    assert found.requests_per_s == pytest.approx(20 / 2.01)


def test_warm_up_and_cool_down_are_left_out():
    slow, fast = Behaviour(ttft_s=0.9), Behaviour(ttft_s=0.1)
    behaviours = [slow] * 3 + [fast] * 4 + [slow] * 3
    records = play(behaviours, [float(place) for place in range(10)])
    found = summary_of(records, Judging(warm_up_s=2.5, cool_down_s=2.5))
    assert found.window_s == pytest.approx(9 - 2.5 - 2.5)
    assert found.outcomes == {"ok": 4}
    assert found.distributions["ttft_s"].maximum == pytest.approx(0.1)
    # Tokens count by when they came: request 2 began before the window and ends inside it.
    assert found.output_tokens_per_s == pytest.approx(50 / 4.0)


def test_failed_requests_are_in_no_latency_but_in_the_goodput():
    good, slow, bad = Behaviour(ttft_s=0.1), Behaviour(ttft_s=2.0), Behaviour(status=500)
    records = play([good, good, slow, bad], [float(place) for place in range(8)])
    found = summary_of(records, Judging(Slo({"ttft": 1.0})))
    assert found.outcomes == {"ok": 6, "http_5xx": 2}
    assert found.distributions["ttft_s"].count == 6
    assert found.good_share == pytest.approx(4 / 8)
    assert found.goodput_rps == pytest.approx(4 / found.window_s)
    assert found.missed == {"ttft": 2}
