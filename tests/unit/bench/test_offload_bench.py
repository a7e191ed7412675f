"""Trees where weights are streamed: what the bench says of answers that it is given."""

from __future__ import annotations

import pytest

from cluster.bench.client import Answer
from cluster.bench.modes import PLAIN, ModeResult
from cluster.bench.offload import equal_texts, modes_for, summarise, with_offload
from cluster.bench.prompts import Prompt
from cluster.bench.snapshots import Counts
from cluster.config import parse_config

ACCOUNT = {
    "num_draft_tokens": 4,
    "num_accepted_draft_tokens": 1,
    "draft_s": 0.1,
    "step_s": 0.2,
    "forward_s": 0.1,
}


def result(seconds, streamed, steps, tokens=(1, 2, 3, 4, 5)):
    """One answer to one prompt."""
    found = ModeResult("mode")
    account = ACCOUNT | {"num_llm_steps": steps}
    answer = Answer(0.0, [1.0, 1.0 + seconds], [1, len(tokens) - 1], list(tokens))
    answer.speculation = account
    counts = Counts({("treeserve_offload_bytes_total", frozenset()): streamed})
    found.add(Prompt("all", "?"), answer, counts)
    return found


def test_ratios_are_against_plain_decoding():
    found = summarise({PLAIN: result(4.0, 50e6, 4), "16": result(1.0, 20e6, 1)})
    assert found[PLAIN]["ms_per_token"] == 1000.0
    assert found[PLAIN]["mb_per_token"] == 10.0
    assert found["16"]["mb_per_token"] == 4.0
    assert found["16"]["tokens_per_step"] == 4.0
    assert (found["16"]["faster"], found["16"]["fewer_bytes"]) == (4.0, 2.5)
    assert (found[PLAIN]["faster"], found[PLAIN]["fewer_bytes"]) == (1.0, 1.0)


def test_where_nothing_was_streamed_there_is_no_ratio():
    found = summarise({PLAIN: result(4.0, 0.0, 4), "16": result(1.0, 0.0, 1)})
    assert found["16"]["fewer_bytes"] is None


def test_larger_trees_pay_once_a_pass_takes_so_much_longer():
    dear = result(8.0, 20e6, 2)  # 2 tokens in 4 s, where a plain pass makes one in 1 s
    found = summarise({PLAIN: result(4.0, 50e6, 4), "16": dear, "64": result(1.0, 20e6, 1)})
    assert found["16"]["pays_beyond_ms"] == 2000.0  # (1 + 2) / 1 = (4 + 2) / 2
    assert found["64"]["pays_beyond_ms"] == 0.0
    assert found[PLAIN]["pays_beyond_ms"] is None


def test_another_text_is_told():
    same, other = result(1, 1, 1), result(1, 1, 1, tokens=(1, 2, 3, 4, 6))
    assert equal_texts([same, same]) == 1
    assert equal_texts([same, same, other]) == 0


@pytest.mark.parametrize("kind", ["cpu", "nvme"])
def test_the_drafters_may_fill_the_trees(kind):
    config = parse_config("""
        llm: {offload: nvme, offload_dir: /somewhere}
        ssms: [{path: a}]
        speculation: {drafters: [ssm, suffix, ngram]}
    """)
    changed = with_offload(config, kind, "fixed", 512)
    assert changed.llm.offload == kind
    assert changed.llm.offload_dir == ("/somewhere" if kind == "nvme" else None)
    assert changed.speculation.max_tree_nodes == 512
    assert changed.ssms[0].max_nodes == 256
    assert changed.speculation.drafters == ("ssm", "suffix")  # nothing that other modes taught
    assert not changed.speculation.suffix_global
    assert modes_for([16, 64])["64"] == {"max_nodes": 64}
