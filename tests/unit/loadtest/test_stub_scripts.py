"""Scripts of the stub server: what can be played, and what is refused before it is."""

import json

import pytest

from loadtest.errors import UsageError
from loadtest.stub.script import Script, parse_script, read_script


@pytest.mark.parametrize(
    "script",
    [
        [],
        {"behaviours": []},
        {"behaviours": {}},
        {"behaviours": [5]},
        {"speed": 1},
        {"max_running": 0},
        {"freeze_s": None},
        {"behaviours": [{"speed": 1}]},
        {"behaviours": [{"chunk_tokens": []}]},
        {"behaviours": [{"chunk_tokens": [0]}]},
        {"behaviours": [{"chunk_tokens": 2}]},
        {"behaviours": [{"ttft_s": "x"}]},
        {"behaviours": [{"gap_s": -1}]},
        {"behaviours": [{"gap_s": None}]},
        {"behaviours": [{"status": 99}]},
        {"behaviours": [{"content": "xml"}]},
        {"behaviours": [{"counts": "all"}]},
    ],
)
def test_what_cannot_be_played_is_refused(tmp_path, script):
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    with pytest.raises(UsageError, match=r"script\.json: not a script"):
        read_script(path)


def test_a_script_says_pauses_and_tokens():
    assert parse_script({}) == Script()
    answer = {"ttft_s": 1, "gap_s": 0.5, "chunk_tokens": [2, 0], "stall_after": 2, "stall_s": 3}
    (behaviour,) = parse_script({"behaviours": [answer]}).behaviours
    assert list(behaviour.chunks(5)) == [(1, 2), (0.5, 0), (3.5, 2), (0.5, 0), (0.5, 1)]
