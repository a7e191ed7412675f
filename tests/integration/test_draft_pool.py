"""Several draft models, one of them in two replicas: all are asked, any may die. With TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from conftest import Server, wait_until
from launching import collect, greedy_and_sampled, launched

from actors.request_manager.generation import (
    GenerationRequest,
    SpeculationOptions,
)
from actors.tls import TlsFiles
from cluster.config import Config, parse_config
from cluster.launch import Launched
from tests.certificates import Authority
from tests.processes import descendants

pytestmark = [pytest.mark.integration, pytest.mark.model]

PROMPTS = [[504, 1820, 314, 260, 6502, 282], [1, 4093, 198, 3725, 506], [28, 29, 30, 28, 29, 30]]
OFF = SpeculationOptions(enabled=False)


def pool(untuned: Path, tls: TlsFiles) -> Config:
    return parse_config(f"""
        model: {{path: smollm2-135m-instruct, dtype: float32}}
        llm: {{num_threads: 1}}
        ssms:
          - {{path: 'embedded:smollm2-135m/ssm-0', replicas: 2}}
          - {{path: '{untuned}', max_nodes: 3}}
        speculation: {{drafters: [ssm, prompt_lookup], budget: fixed, draft_deadline_ms: 2000}}
        scheduler: {{kv_memory_bytes: 67108864}}
        grpc: {{tls: {tls.model_dump_json()}}}
    """)


def requests(speculation: SpeculationOptions) -> list[GenerationRequest]:
    return greedy_and_sampled(PROMPTS, 24, speculation)


def drafted(running: Launched) -> dict[str, float]:
    """Nodes that each drafter had in steps."""
    lines = running.metrics.text().splitlines()
    found = [line for line in lines if line.startswith("treeserve_draft_tokens_total{")]
    return {line.split('drafter="')[1].split('"')[0]: float(line.split()[-1]) for line in found}


def all_up(running: Launched) -> bool:
    """Whether every draft model works, and has been taken back."""
    lines = running.metrics.text().splitlines()
    found = [line for line in lines if line.startswith("treeserve_part_up{")]
    drafters = running.engine._guessing._drafting._drafters
    away = [one.is_away for name in ("ssm-0", "ssm-1") for one in drafters[name].drafters]
    return len(found) == 4 and all(line.endswith(" 1.0") for line in found) and not any(away)


async def test_a_pool_drafts_together_and_outlives_its_replicas(
    server: Server, draft_path: Path, tmp_path: Path
) -> None:
    tls = Authority().files(tmp_path)
    others = {process.pid for process in descendants("DraftModel")}

    def own() -> set[int]:
        return {process.pid for process in descendants("DraftModel")} - others

    async with launched(pool(draft_path, tls)) as running:
        actors = {("ssm-0", "0"), ("ssm-0", "1"), ("ssm-1", "0")}
        found = {(one.labels["part"], one.labels["index"]) for one in running.targets()}
        assert found == actors | {("manager", "0"), ("llm", "0")}
        for drafter, index in actors:
            labels = f'drafter="{drafter}",index="{index}",model_name="smollm2-135m-instruct"'
            assert f'treeserve_part_up{{{labels},part="DraftModel"}} 1.0' in running.metrics.text()
        lines = running.metrics.text().splitlines()
        (line,) = [one for one in lines if one.startswith("treeserve_certificate_expiry_")]
        assert float(line.split()[-1]) == tls.expires_at().timestamp()
        plain = await asyncio.gather(*(collect(running, one) for one in requests(OFF)))
        assert set(drafted(running).values()) == {0.0}
        asked = requests(SpeculationOptions())
        assert await asyncio.gather(*(collect(running, one) for one in asked)) == plain
        counts = drafted(running)
        assert counts["ssm-0"] > 0 < counts["ssm-1"], counts

        only = requests(SpeculationOptions(drafters=("ssm-1",)))
        assert await asyncio.gather(*(collect(running, one) for one in only)) == plain
        assert drafted(running)["ssm-0"] == counts["ssm-0"]

        pids = own()
        assert len(pids) == 3
        victims = {max(pids)}
        for _ in range(2):  # one replica; then, with all of it, a whole model
            killing = [collect(running, asked[0], kill=victims)]
            killing += [collect(running, one) for one in asked]
            assert await asyncio.gather(*killing) == [plain[0], *plain]
            await asyncio.to_thread(wait_until, lambda: all_up(running))
            assert len(own()) == 3 and not own() & victims
            counts = drafted(running)
            assert await asyncio.gather(*(collect(running, one) for one in asked)) == plain
            assert all(drafted(running)[name] > counts[name] for name in ("ssm-0", "ssm-1"))
            victims = own()

        weighed = requests(SpeculationOptions(verification="mss"))
        answers = await asyncio.gather(*(collect(running, one) for one in weighed))
        assert [len(answer) for answer in answers] == [24] * len(answers)
        assert answers[::2] == plain[::2], "greedy requests have one right answer"
    wait_until(lambda: not own())
