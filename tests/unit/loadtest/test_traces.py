from __future__ import annotations

import json

import pytest

from loadtest.errors import UsageError
from loadtest.traces import Scaling, TraceRow, read_trace, scale

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:17:03.9799600,4808,10\r
2023-11-16 18:17:05.4799600,3180,8\r
"""


def test_an_azure_trace_is_read(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(AZURE.encode())
    first, second = read_trace(path)
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (0.0, 4808, 10)
    assert second.at_s == pytest.approx(1.5, abs=1e-6)


def test_a_mooncake_trace_is_read(tmp_path):
    path = tmp_path / "trace.jsonl"
    row = {"timestamp": 1500, "input_length": 700, "output_length": 5, "hash_ids": [0, 7]}
    path.write_text(json.dumps(row) + "\n")
    assert read_trace(path) == [TraceRow(0.0, 700, 5, (0, 7))]


def test_a_trace_out_of_order_with_zones_and_whole_seconds_is_put_in_order(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:03+00:00,3,1\n2024-05-10 00:00:01.500000+00:00,2,1\n"
        "2024-05-10 00:00:01+00:00,1,1\n"
    )
    assert [(row.at_s, row.prompt_tokens) for row in read_trace(path)] == [
        (0.0, 1),
        (0.5, 2),
        (2.0, 3),
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{"timestamp": 0, "input_length": 1}',
        '{"timestamp": "soon", "input_length": 1, "output_length": 1}',
        '{"timestamp": 0, "input_length": NaN, "output_length": 1}',
        '{"timestamp": 0, "input_length": 1e999, "output_length": 1}',
        '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}',
        "[]",
        "{",
    ],
)
def test_a_broken_line_is_refused(tmp_path, line):
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(UsageError, match=r"--trace .*trace\.jsonl"):
        read_trace(path)


@pytest.mark.parametrize(
    "text", ["", "TIMESTAMP,Other\n1,2\n", "no,trace\nat,all\n", f"TIMESTAMP\n{'x' * 200_000}\n"]
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"trace\.csv"):
        read_trace(path)


ROWS = [TraceRow(10.0, 1000, 100), TraceRow(20.0, 50, 10), TraceRow(30.0, 5000, 800)]


def test_times_are_brought_to_the_rate():
    found = scale(ROWS, Scaling(2.0, 1.0, None))
    assert [row.at_s for row in found.rows] == [0.0, 0.5, 1.0]
    assert found.time_factor == pytest.approx(0.05)


def test_recorded_times_are_kept_without_a_rate():
    assert [row.at_s for row in scale(ROWS, Scaling(None, 1.0, None)).rows] == [0.0, 10.0, 20.0]


def test_lengths_are_scaled_then_clipped_and_what_was_clipped_is_told():
    found = scale(ROWS, Scaling(None, 0.5, 600))
    assert [(row.prompt_tokens, row.output_tokens) for row in found.rows] == [
        (500, 50),
        (25, 5),
        (300, 300),
    ]
    assert found.num_clipped == 1


def test_a_scaled_row_keeps_at_least_one_token():
    (row,) = scale([TraceRow(0.0, 3, 1)], Scaling(None, 0.01, 2)).rows
    assert (row.prompt_tokens, row.output_tokens) == (1, 1)
