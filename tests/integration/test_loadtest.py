"""The load-test harness as a command against its stub, both real processes over loopback.

No assertion here depends on how fast the machine is: times are compared with those that the stub
wrote down when it really sent, on the same clock.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PATIENCE_S = 120.0
QUICK = {"ttft_s": 0.01, "gap_s": 0.002}
LENIENT = ["--max-lag-ms", "60000", "--max-cpu", "2"]
"""Limits that no busy machine breaks: what is tested is arithmetic."""


@dataclass(frozen=True)
class Stub:
    """A running stub."""

    process: subprocess.Popen[str]
    address: str
    log: Path

    def sent(self) -> dict[int, dict]:
        """What it sent, by request."""
        rows = [json.loads(line) for line in self.log.read_text().splitlines()]
        return {row["index"]: row for row in rows}


@contextlib.contextmanager
def stub(folder: Path, *behaviours: dict, **script) -> Iterator[Stub]:
    """A stub that plays these behaviours."""
    file, log = folder / "script.json", folder / "sent.jsonl"
    file.write_text(json.dumps({"behaviours": list(behaviours), **script}))
    log.touch()
    command = [sys.executable, "-m", "loadtest.stub", file, "--port", "0", "--log", log]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield Stub(process, process.stdout.readline().split()[-1], log)
    finally:
        process.kill()
        process.communicate()


def loadtest(address: str, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "loadtest", address, "--out", str(out), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, stdout, stderr; the harness never shows a traceback."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in (out or "") + err
    return process.returncode, out, err


def measure(address: str, out: Path, *options: str) -> tuple[int, dict, list[dict]]:
    """Exit status, report.json, rows of requests.jsonl."""
    status, stdout, _ = finished(loadtest(address, out, *LENIENT, *options))
    json.loads(stdout.splitlines()[-1])
    return status, json.loads((out / "report.json").read_text()), rows_of(out)


def rows_of(out: Path) -> list[dict]:
    rows = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    return sorted(rows, key=lambda row: row["index"])


PROMPTS = ("--prompt-tokens", "20", "--output-tokens", "12")
FAST = ("--arrivals", "constant", "--rate", "100", *PROMPTS)


def test_times_and_tokens_are_those_that_the_stub_sent(tmp_path):
    behaviours = [
        {"ttft_s": 0.03, "gap_s": 0.01, "chunk_tokens": [1, 3, 2]},
        {"ttft_s": 0.01, "gap_s": 0.005, "chunk_tokens": [4]},
        {**QUICK, "chunk_tokens": [2], "stall_after": 3, "stall_s": 0.3},
    ]
    with stub(tmp_path, *behaviours) as server:
        status, report, rows = measure(server.address, tmp_path, "--requests", "60", *FAST)
        sent = server.sent()
    assert status == 0 and len(rows) == len(sent) == 60
    ((origin_s, _),) = report["measurements"][0]["stretches"]
    for row in rows:
        truth = sent[row["index"]]
        assert [tokens for _, tokens in row["chunks"]] == [tokens for _, tokens in truth["chunks"]]
        # Nothing arrives before it was sent, on either side; files round to a microsecond.
        assert truth["arrived_s"] >= origin_s + row["sent_s"] - 2e-6
        for (came_s, _), (left_s, _) in zip(row["chunks"], truth["chunks"], strict=True):
            assert origin_s + came_s >= left_s - 2e-6
        assert row["sent_s"] >= row["scheduled_s"] - 2e-6
        assert row["end_s"] >= row["chunks"][-1][0]


def test_the_figures_are_those_of_the_raw_times(tmp_path):
    with stub(tmp_path, {**QUICK, "chunk_tokens": [1, 4]}) as server:
        _, report, rows = measure(server.address, tmp_path, "--requests", "100", *FAST)
    found = report["measurements"][0]["distributions"]

    def check(name: str, values: list[float]) -> None:
        assert found[name]["count"] == len(values)
        assert found[name]["mean"] == pytest.approx(sum(values) / len(values), abs=3e-6)
        # The 50th and the 99th of a hundred.
        if len(values) == 100:
            assert found[name]["percentiles"]["p50"]["value"] == pytest.approx(
                sorted(values)[49], abs=3e-6
            )
            assert found[name]["percentiles"]["p99"]["value"] == pytest.approx(
                sorted(values)[98], abs=3e-6
            )

    check("ttft_s", [row["chunks"][0][0] - row["sent_s"] for row in rows])
    check("ttft_from_schedule_s", [row["chunks"][0][0] - row["scheduled_s"] for row in rows])
    check("e2e_s", [row["end_s"] - row["sent_s"] for row in rows])
    check("e2e_from_schedule_s", [row["end_s"] - row["scheduled_s"] for row in rows])
    check("tokens_per_chunk", [tokens for row in rows for _, tokens in row["chunks"]])


FAILURES = [
    ({**QUICK, "status": 429}, "http_429"),
    ({**QUICK, "status": 404}, "http_4xx"),
    ({**QUICK, "status": 503}, "http_5xx"),
    ({**QUICK, "reset_after": 0}, "reset"),
    ({**QUICK, "reset_after": 3}, "reset"),
    ({**QUICK, "truncate_after": 3}, "truncated"),
    ({**QUICK, "error_after": 3}, "error_event"),
    ({**QUICK, "garbage_after": 3}, "bad_stream"),
    ({**QUICK, "content": "json"}, "not_a_stream"),
    ({**QUICK, "content": "html"}, "not_a_stream"),
    ({**QUICK, "num_tokens": 0}, "empty"),
    ({**QUICK, "stall_after": 3, "stall_s": 1000.0}, "stall"),
    (QUICK, "ok"),
]


def test_every_kind_of_failure_is_kept_apart(tmp_path):
    with stub(tmp_path, *[behaviour for behaviour, _ in FAILURES]) as server:
        options = ("--requests", str(len(FAILURES)), "--silence-s", "3", "--slo", "ttft=1000")
        status, report, rows = measure(server.address, tmp_path, *FAST, *options)
    assert [row["outcome"] for row in rows] == [outcome for _, outcome in FAILURES]
    assert status == 1
    (measured,) = report["measurements"]
    assert measured["distributions"]["ttft_s"]["count"] == 1
    assert measured["good_share"] == pytest.approx(1 / len(FAILURES))
    assert measured["failures"]["http_5xx"] == "scripted status 503"


@pytest.mark.parametrize(
    ("counts", "source"),
    [("token_ids", "token_ids"), ("usage", "usage"), ("final", "shared"), ("none", "chunks")],
)
def test_tokens_are_counted_by_the_best_that_the_server_tells(tmp_path, counts, source):
    behaviour = {**QUICK, "counts": counts, "chunk_tokens": [3]}
    with stub(tmp_path, behaviour) as server:
        _, report, _ = measure(server.address, tmp_path, "--requests", "5", *FAST)
    (measured,) = report["measurements"]
    assert measured["token_counts"]["sources"] == {source: 5}
    per_chunk = measured["distributions"]["tokens_per_chunk"]["mean"]
    assert per_chunk == (1.0 if source == "chunks" else 3.0)


def test_a_wrong_usage_is_told(tmp_path):
    with stub(tmp_path, {**QUICK, "usage_error": 5}, QUICK) as server:
        _, report, _ = measure(server.address, tmp_path, "--requests", "6", *FAST)
    assert report["measurements"][0]["token_counts"]["answers_differing_from_usage"] == 3
    assert any("usage" in reason for reason in report["verdict"]["reasons"])


def test_a_frozen_server_and_its_queue_are_seen_from_the_schedule(tmp_path):
    """Nothing that is due in the freeze is sent before it ends; answers come one at a time."""
    with stub(tmp_path, QUICK, max_running=1, freeze_at_s=0.1, freeze_s=0.5) as server:
        _, report, rows = measure(server.address, tmp_path, "--requests", "10", *FAST)
        sent = sorted(server.sent().values(), key=lambda row: row["started_s"])
    thaw_s = min(row["arrived_s"] for row in sent) + 0.6
    whole_s = QUICK["ttft_s"] + 11 * QUICK["gap_s"]
    frozen = [row for row in sent if row["started_s"] + whole_s >= thaw_s - 0.5]
    assert frozen and all(row["chunks"][-1][0] >= thaw_s for row in frozen)
    assert all(before["ended_s"] <= after["started_s"] for before, after in pairwise(sent))
    ((origin_s, _),) = report["measurements"][0]["stretches"]
    slowest_s = max(row["end_s"] - row["scheduled_s"] for row in rows)
    last = sent[-1]
    due_s = origin_s + next(row for row in rows if row["index"] == last["index"])["scheduled_s"]
    assert slowest_s >= last["chunks"][-1][0] - due_s - 2e-6


def test_a_share_of_requests_is_hung_up_on(tmp_path):
    with stub(tmp_path, QUICK) as server:
        options = ("--requests", "40", "--cancel-share", "0.5", "--slo", "ttft=1000")
        status, report, rows = measure(server.address, tmp_path, *FAST, *options)
    outcomes = [row["outcome"] for row in rows]
    assert set(outcomes) == {"ok", "cancelled"}
    # They are neither good nor bad.
    assert status == 0 and report["measurements"][0]["good_share"] == 1.0
    assert report["measurements"][0]["distributions"]["e2e_s"]["count"] == outcomes.count("ok")


def test_a_saved_schedule_gives_the_same_requests_again(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    with stub(tmp_path, QUICK) as server:
        measure(server.address, first, "--requests", "20", "--rate", "200", *PROMPTS)
        measure(server.address, second, "--replay", str(first / "schedule.jsonl"))
    schedules = [(out / "schedule.jsonl").read_text().splitlines()[1:] for out in (first, second)]
    assert schedules[0] == schedules[1]
    assert len(rows_of(second)) == 20


def test_two_arms_share_one_schedule_and_their_answers_are_compared(tmp_path):
    with stub(tmp_path, QUICK) as server:
        options = ("--requests", "20", "--arm-b", '{"top_p": 0.5}', "--names", "on,off")
        status, report, rows = measure(
            server.address, tmp_path, *FAST, *options, "--blocks", "2", "--require-equal"
        )
    assert status == 0
    (comparison,) = report["comparisons"]
    assert (comparison["unit"], comparison["num_pairs"], comparison["num_equal"]) == (
        "token",
        20,
        20,
    )
    arms = {arm: {row["index"] for row in rows if row["arm"] == arm} for arm in ("on", "off")}
    assert arms["on"] == arms["off"] == set(range(20))


def test_a_server_that_dies_in_mid_run_loses_nothing(tmp_path):
    with stub(tmp_path, {"ttft_s": 0.1, "gap_s": 0.1}) as server:
        options = ("--arrivals", "constant", "--rate", "20", "--requests", "60", *PROMPTS)
        process = loadtest(server.address, tmp_path, *LENIENT, *options)
        wait_for_answers(server, 2)
        server.process.kill()
        status, out, _ = finished(process)
    rows = rows_of(tmp_path)
    outcomes = {row["outcome"] for row in rows}
    assert status == 1 and len(rows) == 60
    assert "ok" in outcomes and "connect" in outcomes and outcomes <= {"ok", "connect", "reset"}
    assert json.loads(out.splitlines()[-1])["completed"] >= 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_what_there_was_is_reported(tmp_path, number):
    with stub(tmp_path, {"ttft_s": 0.1, "gap_s": 0.1}) as server:
        options = ("--arrivals", "constant", "--rate", "20", "--requests", "2000", *PROMPTS)
        process = loadtest(server.address, tmp_path, *LENIENT, *options)
        wait_for_answers(server, 20)  # so that some have surely been read
        process.send_signal(number)
        status, out, _ = finished(process)
    assert status == 1 and out.startswith("INTERRUPTED")
    outcomes = [row["outcome"] for row in rows_of(tmp_path)]
    assert outcomes.count("ok") >= 2 and "interrupted" in outcomes
    assert (tmp_path / "report.html").exists()


def test_a_second_signal_leaves_at_once(tmp_path):
    with stub(tmp_path, {"ttft_s": 0.1, "gap_s": 0.1}) as server:
        options = ("--arrivals", "constant", "--rate", "20", "--requests", "2000", *PROMPTS)
        process = loadtest(server.address, tmp_path / "out", *LENIENT, *options)
        wait_for_answers(server, 1)
        process.send_signal(signal.SIGINT)
        assert "Ctrl-C again" in "".join(process.stderr.readline() for _ in range(2))
        process.send_signal(signal.SIGINT)
        status, out, err = finished(process)
    # The report may have been whole before the second signal came.
    assert status == 1 and ("without a report" in err or out.startswith("INTERRUPTED"))
    assert not list((tmp_path / "out").glob(".*.part"))


def test_a_report_that_cannot_be_written_goes_elsewhere(tmp_path):
    with stub(tmp_path, QUICK) as server:
        out = tmp_path / "out"
        (out / "requests.jsonl").mkdir(parents=True)
        status, said, err = finished(
            loadtest(server.address, out, *LENIENT, "--requests", "5", *FAST)
        )
    report = Path(said.splitlines()[0].split(": ")[1])
    assert status == 1 and f"--out {out}" in err
    assert report.exists() and len(rows_of(report.parent)) == 5
    shutil.rmtree(report.parent)


def test_a_reader_that_has_gone_away_costs_nothing(tmp_path):
    with stub(tmp_path, QUICK) as server:
        process = loadtest(server.address, tmp_path, *LENIENT, "--requests", "3", *FAST)
        process.stdout.close()
        process.stdout = None
        status, _, err = finished(process)
    assert status == 0 and "Broken" not in err
    assert (tmp_path / "report.html").exists()


def test_a_folder_that_cannot_be_is_named_before_the_run(tmp_path):
    (tmp_path / "file").touch()
    status, _, err = finished(loadtest("127.0.0.1:9", tmp_path / "file", "--requests", "1", *FAST))
    assert status == 2 and "--out" in err and len(err.splitlines()) == 1


def wait_for_answers(server: Stub, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(server.sent()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_wrong_address_is_one_clear_line(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        status, out, err = finished(loadtest(address, tmp_path, "--requests", "1", *FAST))
    assert status == 1 and out == ""
    assert len(err.splitlines()) == 1 and "no connection" in err


def test_a_name_that_is_none_is_one_clear_line(tmp_path):
    status, _, err = finished(
        loadtest("http://no-such-host.invalid", tmp_path, "--requests", "1", *FAST)
    )
    assert status == 1 and len(err.splitlines()) == 1


def test_tls_against_a_plain_server_is_one_clear_line(tmp_path):
    with stub(tmp_path, QUICK) as server:
        address = server.address.replace("http:", "https:")
        status, _, err = finished(loadtest(address, tmp_path, "--requests", "1", *FAST))
    assert status == 1
    assert len(err.splitlines()) == 1 and "TLS" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--requests", "1"], "--workload or --prompt-tokens"),
        (["--requests", "1", *FAST, "--slo", "speed=1"], "--slo"),
        (["--requests", "1", *FAST, "--body", "[]"], "--body"),
        (["--requests", "1", *FAST, "--workload", "/nowhere"], "--workload"),
        (["--requests", "1", *PROMPTS], "--rate"),
        (["--requests", "1", *FAST, "--search", "1,2"], "--slo"),
        (FAST, "--duration-s or --requests"),
        (["--requests", "1", *FAST, "--sweep", "1,nan"], "--sweep"),
        (["--requests", "1", *PROMPTS, "--arrivals", "closed", "--sweep", "0.4"], "whole numbers"),
        (["--requests", "1", *FAST, "--require-equal"], "--require-equal"),
        (["--requests", "0", *FAST], "--requests"),
        (["--requests", "1", *FAST, "--api-key-file", "/dev/null"], "--api-key-file"),
    ],
)
def test_wrong_use_is_named_and_has_its_own_status(tmp_path, options, said):
    status, _, err = finished(loadtest("127.0.0.1:9", tmp_path, *options))
    assert status == 2 and said in err and len(err.splitlines()) == 1
