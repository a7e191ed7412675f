"""Records on disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from actors.errors import InputError
from actors.ssm.boost_tuning.records import MANIFEST_FILE, Record, RecordFolder


def test_reads_what_was_written(records: list[Record], tmp_path: Path) -> None:
    folder = RecordFolder(tmp_path, "hash")
    folder.add(records[:15])
    RecordFolder(tmp_path, "hash").add(records[15:])
    again = RecordFolder(tmp_path, "hash")
    read = again.read()
    assert again.num_records == len(read) == len(records)
    assert again.num_answer_tokens == sum(record.answer_len for record in records)
    for mine, other in zip(read, records, strict=True):
        assert (mine.source, mine.prompt_len) == (other.source, other.prompt_len)
        for name in ("tokens", "top_ids", "top_logprobs"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))


def test_a_shard_that_the_manifest_does_not_name_is_written_anew(
    records: list[Record], tmp_path: Path
) -> None:
    RecordFolder(tmp_path, "hash").add(records[:5])
    (tmp_path / "shard-00001.safetensors").write_bytes(b"half written")
    folder = RecordFolder(tmp_path, "hash")
    folder.add(records[5:9])
    assert len(RecordFolder(tmp_path, "hash").read()) == 9


def test_refuses_another_llm_and_damage(records: list[Record], tmp_path: Path) -> None:
    RecordFolder(tmp_path, "hash").add(records[:5])
    with pytest.raises(InputError, match="another LLM"):
        RecordFolder(tmp_path, "other")
    (tmp_path / "shard-00000.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="cannot be read"):
        RecordFolder(tmp_path, "hash").read()
    (tmp_path / MANIFEST_FILE).write_text(json.dumps({"format": 0, "shards": []}))
    with pytest.raises(InputError, match="format"):
        RecordFolder(tmp_path, "hash")
