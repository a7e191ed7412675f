"""The files that a run leaves behind."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from virtual import ScriptedSender, run_virtual, session, summary_of

from loadtest.compare import compare
from loadtest.driver import Driver
from loadtest.experiment import Experiment, Results
from loadtest.lab import Measurement, RunSettings, Stretch
from loadtest.plan import Plan
from loadtest.planning import Planner
from loadtest.report import charts
from loadtest.report.files import SCHEMA_VERSION, write_report
from loadtest.report.svg import Axis, Series, line_chart
from loadtest.report.units import number, percent, seconds
from loadtest.scrape import Scrapes
from loadtest.slo import Slo
from loadtest.stub.script import Behaviour
from loadtest.summary import Judging
from loadtest.target import Target
from loadtest.verdict import judge_results
from loadtest.vitals import Vitals
from loadtest.workload import LengthRange, WorkloadSpec

HOSTILE = "<script>alert(1)</script>"
JUDGING = Judging(Slo({"ttft": 1.0}), warm_up_s=1.0)


def outcome_of_run(arm):
    driver = Driver(ScriptedSender([Behaviour(chunk_tokens=(2, 3)), Behaviour(status=500)]))
    sessions = [session(n, 0.1 * n) for n in range(40)]
    run_virtual(driver.open_loop(sessions))
    for record in driver.records[1::2]:
        record.detail = HOSTILE
    summary = summary_of(driver.records, JUDGING, arm=arm)
    stretch = Stretch(0.0, 5.0, 4.0, 40, driver.records, Vitals(), Scrapes())
    measurement = Measurement(Target(arm, "http://stub"), "1/s", 1.0, True, [stretch])
    return Plan(tuple(sessions), ("made for a test",)), measurement, summary


@pytest.fixture
def folder(tmp_path):
    plan, *first = outcome_of_run("A")
    _, *second = outcome_of_run(HOSTILE)
    summaries = [first[1], second[1]]
    results = Results(
        [plan], [first[0], second[0]], summaries, [compare(*summaries, np.random.default_rng(0))]
    )
    planner = Planner(WorkloadSpec(LengthRange(1, 1)), 0, None)
    targets = [Target("A", "http://stub", api_key="secret-key")]
    experiment = Experiment(targets, planner, RunSettings(), JUDGING)
    verdict = judge_results(results, JUDGING.slo, require_equal=False)
    write_report(tmp_path, experiment, results, verdict)
    return tmp_path


class Checker(HTMLParser):
    """Notes what a page would load, and tags that are not closed."""

    VOID = frozenset({"meta", "br", "path", "rect", "circle", "link", "img"})

    def __init__(self):
        super().__init__()
        self.loads, self.open = [], []

    def handle_starttag(self, tag, attributes):
        self.loads += [value for name, value in attributes if name in ("src", "href")]
        self.loads += [tag] if tag in ("script", "link", "img", "iframe") else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_loads_nothing_and_is_well_formed(folder):
    text = (folder / "report.html").read_text()
    checker = Checker()
    checker.feed(text)
    assert checker.loads == [] and checker.open == []
    assert "url(" not in text and "@import" not in text


def test_what_a_server_says_cannot_become_part_of_the_page(folder):
    text = (folder / "report.html").read_text()
    assert HOSTILE not in text
    assert "&lt;script&gt;" in text


def test_the_verdict_stands_first(folder):
    body = (folder / "report.html").read_text().split("<body>")[1]
    assert re.match(r'<header class="bad"><h1>FAILED</h1>', body)


def test_the_json_has_a_schema_version_and_its_own_definitions(folder):
    body = json.loads((folder / "report.json").read_text())
    assert body["schema_version"] == SCHEMA_VERSION
    assert len(body["measurements"]) == 2
    assert body["definitions"].keys() >= body["measurements"][0]["distributions"].keys()


def test_the_raw_times_give_the_figures_again(folder):
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert len(rows) == 80
    assert [row["measured"] for row in rows[:40]] == [False] * 10 + [True] * 30
    row = rows[0]  # tokens that came in the window count, whichever request they belong to
    assert row["chunks"][0][0] - row["sent_s"] == pytest.approx(0.02)
    assert [tokens for _, tokens in row["chunks"]] == [2, 3, 2, 3]
    assert rows[1]["outcome"] == "http_5xx"


def test_a_time_line_counts_tokens_also_outside_the_window(monkeypatch):
    _, measurement, summary = outcome_of_run("A")
    lines = []
    monkeypatch.setattr(charts, "line_chart", lambda *drawn, **_: lines.append(drawn) or "")
    charts.timeline_charts(measurement, summary)
    ((_, points, *_),) = [(one.name, one.points) for one in lines[1][1]]
    assert sum(tokens for _, tokens in points) == 40 * 10


def test_no_file_holds_the_key_and_only_the_schedule_the_prompts(folder):
    for file in folder.iterdir():
        assert "secret-key" not in file.read_text()
        assert ("question 3" in file.read_text()) == (file.name == "schedule.jsonl")


def test_an_empty_run_has_a_page_too(tmp_path):
    planner = Planner(WorkloadSpec(LengthRange(1, 1)), 0, None)
    experiment = Experiment([Target("", "http://stub")], planner, RunSettings(), Judging())
    verdict = judge_results(Results(), None, require_equal=False)
    write_report(tmp_path, experiment, Results(), verdict)
    assert "INTERRUPTED" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("points", [[], [(1.0, 1.0)], [(0.0, 0.0), (0.0, 0.0)], [(1e-9, 5.0)]])
def test_charts_of_odd_data_hold_no_odd_numbers(points, log):
    chart = line_chart("t", [Series("a", points)], Axis("x", log=log), Axis("y"))
    assert "nan" not in chart and "inf" not in chart


def test_figures_are_written_for_people():
    assert seconds(0.0123) == "12.3 ms" and seconds(2.5) == "2.50 s" and seconds(None) != "None"
    assert number(12345.6) == "12,346" and number(3.0) == "3" and percent(0.123) == "12.3 %"
