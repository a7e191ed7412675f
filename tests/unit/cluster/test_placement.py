"""What a configuration asks of the cluster."""

from __future__ import annotations

from actors.llm.config import LLMConfig
from actors.ssm.config import SSMConfig
from cluster.config import Config
from cluster.placement import Place, plan_placement


def split(stages: int, shards: int) -> Config:
    """A configuration that validation does not let through yet."""
    llm = LLMConfig.model_construct(pipeline_parallel=stages, tensor_parallel=shards)
    return Config.model_construct(llm=llm, ssms=())


def test_one_rank_fits_into_two_cores() -> None:
    placement = plan_placement(Config())
    assert placement.bundles == [{"CPU": 1}, {"CPU": 1}]
    assert placement.num_cpus == 2
    assert placement.rank_places == [Place(1, {"CPU": 1})]


def test_each_rank_has_a_bundle_stage_by_stage() -> None:
    placement = plan_placement(split(2, 3))
    assert len(placement.bundles) == 7
    assert [place.bundle for place in placement.rank_places] == [1, 2, 3, 4, 5, 6]
    assert placement.ranks[4].role == "LLM rank 4, stage 1, shard 1"


def test_ranks_take_gpus_only_if_there_is_one_for_each() -> None:
    assert plan_placement(split(1, 2), num_gpus=1).bundles[1:] == [{"CPU": 1}] * 2
    placement = plan_placement(split(1, 2), num_gpus=2)
    assert placement.bundles == [{"CPU": 1}, {"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}]


def test_a_device_that_is_named_does_not_wait_for_the_cluster_to_have_it() -> None:
    for device, num_gpus, gets in (("cuda", 0, True), ("cpu", 8, False)):
        config = Config(llm=LLMConfig(device=device))
        (rank,) = plan_placement(config, num_gpus).ranks
        assert ("GPU" in rank.resources) == gets


def test_the_description_has_a_line_for_each_bundle() -> None:
    lines = plan_placement(Config()).describe().splitlines()
    assert lines[1:] == [
        "  bundle 0: request manager (CPU 1)",
        "  bundle 1: LLM rank 0, stage 0, shard 0 (CPU 1)",
    ]


def test_a_draft_model_takes_part_of_a_cpu_behind_the_ranks() -> None:
    config = Config.model_construct(llm=LLMConfig(), ssms=(SSMConfig(path="somewhere/ssm-0"),))
    placement = plan_placement(config)
    assert placement.bundles == [{"CPU": 1}, {"CPU": 1}, {"CPU": 0.25}]
    assert placement.ssm_places == [Place(2, {"CPU": 0.25})]
    assert placement.num_cpus == 3
    assert "draft model somewhere/ssm-0 (CPU 0.25)" in placement.describe()
