"""Part `batches`: does speculation with its budget pay with 1, 4, 16 and 32 requests at once?
Interleaved pairs on the real server, as `cluster.bench.pairs` has them."""

from __future__ import annotations

import itertools

from cluster.bench.paired_runs import Plan
from cluster.bench.pairs import SPECULATION, compare
from cluster.bench.results.comparing import Ratio
from cluster.bench.results.document import bullets, table
from cluster.bench.results.setting import Findings, Setting
from cluster.bench.results.statements import at_least

TITLE = "Throughput by batch size"
BATCHES = (1, 4, 16, 32)
LEAST_RATIO = 0.97
COLUMNS = {
    "plain_tokens_per_s": "plain tokens/s",
    "budget_tokens_per_s": "with budget",
    "ratio": "median ratio",
    "low": "from",
    "high": "to",
    "tokens_per_step": "tokens/step",
    "nodes_per_step": "draft nodes/step",
}


async def measure(setting: Setting) -> Findings:
    limits = setting.limits
    plan = Plan(BATCHES, limits.num_pairs, limits.per_stream, limits.max_tokens)
    prompts = [prompt.token_ids for prompt in setting.prompts]
    found = {
        batch: pairs.summary()
        for batch, pairs in (await compare(setting.config_path, prompts, plan)).items()
    }
    ratios = [
        at_least(
            f"Batch {batch}, median ratio",
            Ratio(one["ratio"], one["low"], one["high"]),
            LEAST_RATIO,
        )
        for batch, one in found.items()
    ]
    same = sum(one["equal_texts"] for one in found.values())
    texts = sum(one["texts"] for one in found.values())
    body = [
        f"{limits.num_pairs} interleaved pairs each, greedy, over HTTP on the real server "
        f"({' and '.join(SPECULATION)}); the interval is the median's.",
        table(
            ["batch", *COLUMNS.values()],
            [[str(batch), *(one[key] for key in COLUMNS)] for batch, one in found.items()],
        ),
        bullets(
            [
                *ratios,
                falling({batch: one["nodes_per_step"] for batch, one in found.items()}),
                f"{same} of {texts} texts are plain decoding's.",
            ]
        ),
    ]
    return Findings("\n\n".join(body), {str(batch): one for batch, one in found.items()})


def falling(nodes: dict[int, float]) -> str:
    """Whether draft nodes become fewer as the batch grows."""
    counts = [nodes[batch] for batch in sorted(nodes)]
    falls = all(later <= earlier for earlier, later in itertools.pairwise(counts))
    told = " → ".join(f"{count:.1f}" for count in counts)
    how = "falling" if falls else "**not falling throughout**"
    return f"Draft nodes a request and step as the batch grows: {told}: {how}."
