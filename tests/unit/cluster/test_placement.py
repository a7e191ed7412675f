"""What a configuration asks of the cluster."""

from __future__ import annotations

from actors.llm.config import LLMConfig
from actors.ssm.config import SSMConfig
from cluster.config import Config
from cluster.placement import Place, missing, plan_placement


def split(stages: int, shards: int) -> Config:
    return Config(llm=LLMConfig(pipeline_parallel=stages, tensor_parallel=shards))


def test_one_rank_fits_into_two_cores() -> None:
    placement = plan_placement(Config())
    assert placement.bundles == [{"CPU": 1}, {"CPU": 1}]
    assert placement.num_cpus == 2
    assert placement.rank_places == [Place(1, {"CPU": 1})]
    assert placement.strategy == "PACK"


def test_the_ranks_of_a_stage_share_a_bundle_and_so_a_node() -> None:
    placement = plan_placement(split(2, 3))
    assert placement.bundles == [{"CPU": 1}, {"CPU": 3}, {"CPU": 3}]
    assert [place.bundle for place in placement.rank_places] == [1, 1, 1, 2, 2, 2]
    assert {place.resources["CPU"] for place in placement.rank_places} == {1}
    assert placement.strategy == "SPREAD"


def test_ranks_take_gpus_only_if_there_is_one_for_each() -> None:
    assert plan_placement(split(1, 2), num_gpus=1).bundles[1:] == [{"CPU": 2}]
    placement = plan_placement(split(1, 2), num_gpus=2)
    assert placement.bundles == [{"CPU": 1}, {"CPU": 2, "GPU": 2}]
    assert placement.rank_places == [Place(1, {"CPU": 1, "GPU": 1})] * 2


def test_a_device_that_is_named_does_not_wait_for_the_cluster_to_have_it() -> None:
    for device, num_gpus, gets in (("cuda", 0, True), ("cpu", 8, False)):
        config = Config(llm=LLMConfig(device=device))
        (rank,) = plan_placement(config, num_gpus).stages
        assert ("GPU" in rank.resources) == gets


def test_the_description_has_a_line_for_each_bundle() -> None:
    lines = plan_placement(split(1, 3)).describe().splitlines()
    assert lines[1:] == [
        "  bundle 0: request manager (CPU 1)",
        "  bundle 1: LLM stage 0, 3 ranks (CPU 3)",
    ]


def test_nothing_is_missing_where_all_bundles_find_a_node() -> None:
    placement = plan_placement(split(3, 2))
    assert missing(placement, [{"CPU": 3.0, "memory": 1e9}, {"CPU": 2.0}, {"CPU": 2.0}]) == []
    assert missing(placement, [{"CPU": 7.0}]) == []


def test_small_bundles_leave_large_nodes_to_large_ones() -> None:
    ssms = tuple(SSMConfig(path="somewhere", num_threads=8) for _ in range(2))
    config = Config.model_construct(llm=LLMConfig(tensor_parallel=3), ssms=ssms)
    assert missing(plan_placement(config), [{"CPU": 4.0}, {"CPU": 3.0}, {"CPU": 1.0}]) == []


def test_a_stage_that_no_node_can_hold_is_told_with_what_the_nodes_have() -> None:
    problems = missing(plan_placement(split(2, 4)), [{"CPU": 4.0}, {"CPU": 3.0}, {"CPU": 3.0}])
    assert problems == [
        "LLM stage 1, 4 ranks finds no node that has CPU 4 left",
        "CPU 9 are needed in all",
    ]
    problems = missing(plan_placement(split(1, 4)), [{"CPU": 3.0, "GPU": 8.0}, {"CPU": 2.0}])
    assert problems[0] == (
        "LLM stage 0, 4 ranks needs CPU 4 on one node; the nodes have CPU 3, GPU 8; CPU 2"
    )


def test_a_draft_model_takes_part_of_a_cpu_behind_the_ranks() -> None:
    config = Config.model_construct(llm=LLMConfig(), ssms=(SSMConfig(path="somewhere/ssm-0"),))
    placement = plan_placement(config)
    assert placement.bundles == [{"CPU": 1}, {"CPU": 1}, {"CPU": 0.25}]
    assert placement.ssm_places == [Place(2, {"CPU": 0.25})]
    assert placement.num_cpus == 3
    assert "draft model somewhere/ssm-0 (CPU 0.25)" in placement.describe()


def test_every_replica_of_a_draft_model_has_a_place_of_its_own() -> None:
    ssms = (SSMConfig(path="a", replicas=2), SSMConfig(path="b", num_threads=2))
    placement = plan_placement(Config.model_construct(llm=LLMConfig(), ssms=ssms))
    places = [(2, 0.25), (3, 0.25), (4, 0.5)]
    assert placement.ssm_places == [Place(bundle, {"CPU": cpus}) for bundle, cpus in places]
