"""One call of a draft model beside one step of the LLM, in one process and without gRPC.

`python -m cluster.bench.draft_calls LLM DRAFT_MODEL` prints one JSON line. Each has the thread that
it has in serving. Every round brings each session two tokens, which the draft model itself thought
best, and asks for a tree below them; then the LLM takes a plain step with as many requests. The two
take turns, and medians are given.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from pathlib import Path

from actors.drafts import DraftReply, DraftRequest, DraftSession, SessionDraft
from actors.errors import PeerError
from actors.llm.rank import RankOptions, load_rank
from actors.model_thread import ModelThread
from actors.sampling import SamplingParams
from actors.ssm.config import SSMConfig
from actors.ssm.speculator import Speculator, SpeculatorOptions, load_speculator
from actors.tree import TokenTree
from cluster.bench.rank_timer import RankTimer, add_rank_options, random_context, rank_options

SESSIONS = (1, 8)
MAX_CALLS_TO_BEGIN = 100


class DraftTimer:
    """Sessions of a draft model, all brought on and drafted for in one call.

    Args:
        speculator: the draft model.
        thread: where it runs.
        ssm: limits of its trees.
        temperature: of all sessions; each has a seed of its own.
    """

    def __init__(
        self, speculator: Speculator, thread: ModelThread, ssm: SSMConfig, temperature: float
    ) -> None:
        self._speculator = speculator
        self._thread = thread
        self._ssm = ssm
        self._temperature = temperature
        self._texts: dict[int, list[int]] = {}
        self._num_sent: dict[int, int] = {}
        self._last: tuple[SessionDraft, ...] = ()

    def begin(self, texts: dict[int, list[int]]) -> None:
        """Forget all sessions and begin new ones; returns when each has its first tree.

        Raises:
            PeerError: a session gets no tree.
        """
        self._thread.run(functools.partial(self._speculator.release, list(self._texts)))
        self._texts, self._num_sent = texts, dict.fromkeys(texts, 0)
        for _ in range(MAX_CALLS_TO_BEGIN):
            if all(len(draft.tree) for draft in self._call().drafts):
                return
        raise PeerError("the draft model gives no tree")

    def seconds(self) -> float:
        """Bring every session on by two tokens, and time the call for the trees below them."""
        for draft in self._last:
            self._texts[draft.session_id] += _best_path(draft.tree)[:2]
        since = time.perf_counter()
        self._call()
        return time.perf_counter() - since

    def _call(self) -> DraftReply:
        request = DraftRequest(tuple(map(self._session, self._texts)))
        reply = self._thread.run(functools.partial(self._speculator.draft, request))
        self._num_sent = {number: len(text) for number, text in self._texts.items()}
        self._last = reply.drafts
        return reply

    def _session(self, number: int) -> DraftSession:
        text, sent = self._texts[number], self._num_sent[number]
        return DraftSession(
            session_id=number,
            keep_tokens=sent,
            token_ids=tuple(text[sent:]),
            prompt_len=len(text),
            sampling=SamplingParams(temperature=self._temperature, seed=number),
            max_nodes=self._ssm.max_nodes,
            max_depth=self._ssm.max_depth,
        )


def _best_path(tree: TokenTree) -> list[int]:
    """The tokens of the path of first children."""
    path, parent = [], -1
    for node, above in enumerate(tree.parents):
        if above == parent:
            path.append(tree.token_ids[node])
            parent = node
    return path


def measure(
    llm: RankOptions,
    options: SpeculatorOptions,
    num_context: int,
    temperature: float,
    num_rounds: int,
) -> dict[str, dict[str, float]]:
    """Median milliseconds by number of sessions."""
    rank_thread, draft_thread = ModelThread("the rank"), ModelThread("the draft model")
    try:
        rank = rank_thread.run(functools.partial(load_rank, llm))
        vocab_size = rank.describe().vocab_size
        texts = {n: random_context(vocab_size, num_context, n) for n in range(max(SESSIONS))}
        timer = RankTimer(rank)
        rank_thread.run(functools.partial(timer.prefill, texts, 1))
        # Later: how many threads it takes is then its own affair.
        speculator = draft_thread.run(functools.partial(load_speculator, options))
        drafts = DraftTimer(speculator, draft_thread, options.ssm, temperature)
        figures = {}
        for count in SESSIONS:
            drafts.begin({number: list(texts[number]) for number in range(count)})
            roots = {number: TokenTree.chain(texts[number][-1:]) for number in range(count)}
            step = functools.partial(timer.seconds, roots)
            pairs = [
                (drafts.seconds(), rank_thread.run(step).whole_s) for _ in range(num_rounds + 1)
            ][1:]
            figures[str(count)] = {
                "draft_ms": 1e3 * statistics.median(draft_s for draft_s, _ in pairs),
                "step_ms": 1e3 * statistics.median(step_s for _, step_s in pairs),
                "draft_to_step": statistics.median(draft_s / step_s for draft_s, step_s in pairs),
            }
        return figures
    finally:
        draft_thread.close()
        rank_thread.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cluster.bench.draft_calls", description=__doc__
    )
    parser.add_argument("llm", type=Path, help="the LLM's folder")
    parser.add_argument("draft", type=Path, help="the draft model's folder")
    parser.add_argument("--ssm", default="{}", help="more of its entry in `ssms`, as JSON")
    add_rank_options(parser)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    ssm = SSMConfig(path=str(asked.draft), **json.loads(asked.ssm))
    options = SpeculatorOptions(path=asked.draft, llm_path=asked.llm, ssm=ssm)
    llm = rank_options(asked.llm, asked)
    print(json.dumps(measure(llm, options, asked.context, asked.temperature, asked.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
