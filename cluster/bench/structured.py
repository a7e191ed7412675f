"""What speculation brings where the output must follow a JSON schema.

    python -m cluster.bench.structured CONFIG [--prompts FILE] [--schema FILE] [--limit N]

Every prompt is answered under the schema by a server of its own, with every drafter of the
configuration and without speculation, taking turns to be first. Prints a table, then one JSON line.
The exit status is 1 unless each prompt got the same text from both and every answer that ended by
itself fits the schema.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema

from actors.errors import InputError
from cluster.bench.client import Answer
from cluster.bench.modes import ModeResult, Workload, modes_of, run_alone
from cluster.bench.prompts import SAMPLE, load_prompts
from cluster.bench.server import running_server
from cluster.config import load_config

Schema = Mapping[str, Any]

SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "answerable": {"type": "boolean"},
        "answer": {"type": "string", "maxLength": 300},
    },
    "required": ["answerable", "answer"],
    "additionalProperties": False,
}
"""For questions about a text."""

MAX_PROMPTS = 1000
COLUMNS = ("tokens_per_step", "draft_nodes_per_step", "acceptance_rate", "ms_per_token")


def load_schema(path: Path | None) -> Schema:
    """The schema in a file, or the one for questions. Raises InputError."""
    if path is None:
        return SCHEMA
    try:
        schema: Schema = json.loads(path.read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
    except (OSError, ValueError, jsonschema.SchemaError) as error:
        raise InputError(f"{path} is no JSON schema: {error}", "--schema") from error
    return schema


def is_valid(answer: Answer, schema: Schema) -> bool:
    """True if the text of an answer fits the schema."""
    try:
        jsonschema.validate(json.loads(answer.text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def report(results: Mapping[str, ModeResult], schema: Schema) -> dict[str, Any]:
    """The figures of each mode, and what became of the promises."""
    by_mode = [[answer.token_ids for answer in result.answers] for result in results.values()]
    texts = list(zip(*by_mode, strict=True))
    answers = [answer for result in results.values() for answer in result.answers]
    ended = [answer for answer in answers if answer.finish_reason == "stop"]
    return {
        "modes": {mode: result.summary() for mode, result in results.items()},
        "prompts": len(texts),
        "equal": sum(all(text == first for text in same) for first, *same in texts),
        "answers": len(answers),
        "ended": len(ended),
        "valid": sum(is_valid(answer, schema) for answer in ended),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.bench.structured", description=__doc__)
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--prompts", type=Path, default=SAMPLE, metavar="FILE")
    parser.add_argument("--schema", type=Path, metavar="FILE", help="default: for questions")
    parser.add_argument("--limit", type=int, metavar="N", help="prompts at most")
    parser.add_argument("--max-tokens", type=int, default=200, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T")
    arguments = parser.parse_args(argv)
    config = load_config(arguments.config)
    schema = load_schema(arguments.schema)
    prompts = load_prompts(arguments.prompts, MAX_PROMPTS, arguments.limit)
    modes = modes_of(config.speculation.drafters)
    # One seed for all modes, for their texts must be the same.
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    more = {"response_format": wanted, "seed": 0}
    workload = Workload(prompts, arguments.max_tokens, arguments.temperature, more=more)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(arguments.config, Path(folder) / "server.log") as url,
    ):
        found = report(asyncio.run(run_alone(url, workload, modes)), schema)
    print(f"{'mode':>15}" + "".join(f"{column:>22}" for column in COLUMNS))
    for mode, figures in found["modes"].items():
        cells = (figures[column] for column in COLUMNS)
        print(f"{mode:>15}" + "".join(f"{cell or 0.0:22.2f}" for cell in cells))
    print(json.dumps(found))
    is_good = found["equal"] == found["prompts"] and found["valid"] == found["ended"] > 0
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
