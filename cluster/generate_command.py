"""`treeserve generate`: one answer on stdout, no HTTP; statistics as one JSON line on stderr."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING

from actors.request_manager.generation import (
    GenerationEvent,
    GenerationRequest,
    SpeculationOptions,
    StopConditions,
)
from actors.sampling import SamplingParams
from cluster import ray_api
from cluster.config import Config, load_config
from cluster.launch import launch
from cluster.models import resolve_model
from cluster.placement import plan_placement
from cluster.tokenizer import load_tokenizer

TextBytes = Callable[[Iterable[int]], bytes]

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def run(arguments: argparse.Namespace) -> int:
    """Start a cluster, generate, and take it down again."""
    config = load_config(arguments.config)
    loaded = load_tokenizer(resolve_model(config.model.path))
    request = GenerationRequest(
        "generate",
        encode_prompt(loaded.tokenizer, arguments.prompt),
        SamplingParams(temperature=arguments.temperature, seed=arguments.seed),
        StopConditions(arguments.max_tokens),
        speculation=SpeculationOptions(enabled=not arguments.no_speculation),
    )
    try:
        _say("Starting Ray")
        ray_api.start_cluster(plan_placement(config).num_cpus)
        _say(f"Loading {config.model.name}")
        statistics = asyncio.run(_answer(config, request, loaded.vocabulary.text_bytes))
    finally:
        ray_api.stop_cluster()
    print(json.dumps(statistics), file=sys.stderr)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str) -> tuple[int, ...]:
    """Token ids of a prompt, as the user's message where the model has a chat template."""
    return encode_messages(tokenizer, [{"role": "user", "content": prompt}])


def encode_messages(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, str]]
) -> tuple[int, ...]:
    """Token ids of a conversation that the model is to go on with; without a chat template of its
    texts, a line each."""
    if not tokenizer.chat_template:
        return tuple(tokenizer("\n".join(one["content"] for one in messages))["input_ids"])
    encoded = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True)
    return tuple(encoded["input_ids"])


async def _answer(
    config: Config, request: GenerationRequest, text_bytes: TextBytes
) -> dict[str, object]:
    """Write the answer to stdout as it comes; returns the statistics."""
    launched = await launch(config)
    _say("Generating")
    try:
        started_s = time.monotonic()
        writer = _Writer(text_bytes)
        async with aclosing(launched.engine.generate(request)) as events:
            async for event in events:
                writer.write(event)
        return writer.statistics(len(request.prompt_ids), started_s, time.monotonic())
    finally:
        await launched.stop()


class _Writer:
    """Puts on stdout what may be shown, and keeps count."""

    def __init__(self, text_bytes: TextBytes) -> None:
        self._text_bytes = text_bytes
        self._text = bytearray()
        self._num_shown = 0
        self._num_tokens = 0
        self._first_token_s: float | None = None
        self._last: GenerationEvent | None = None

    def write(self, event: GenerationEvent) -> None:
        if event.token_ids and self._first_token_s is None:
            self._first_token_s = time.monotonic()
        self._num_tokens += len(event.token_ids)
        self._text += self._text_bytes(event.token_ids)
        sys.stdout.buffer.write(self._text[self._num_shown : event.visible_bytes])
        self._num_shown = event.visible_bytes
        self._last = event
        if event.finish_reason is not None:
            sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()

    def statistics(self, prompt_tokens: int, started_s: float, ended_s: float) -> dict[str, object]:
        last = self._last or GenerationEvent()
        first_token_s = self._first_token_s
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self._num_tokens,
            "finish_reason": last.finish_reason,
            "time_to_first_token_s": None if first_token_s is None else first_token_s - started_s,
            "total_s": ended_s - started_s,
            "speculative_decoding": asdict(last.stats) if last.stats else None,
        }
