"""Configurations: what is read, and how mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from actors.errors import ConfigError
from actors.request_manager.drafter_names import LEARNERS
from actors.request_manager.drafters import DRAFTERS
from actors.vocabulary import Vocabulary
from cluster.config import Config, config_of, load_config, parse_config, with_address

READY = sorted((Path(__file__).resolve().parents[3] / "deploy" / "configs").glob("*.yaml"))


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    return list(caught.value.problems)


def test_the_defaults_are_those_of_a_first_run() -> None:
    config = parse_config("{}")
    assert config == Config()
    assert config.model.path == "smollm2-135m-instruct"
    assert config.speculation.drafters == ("grammar", "prompt_lookup")
    assert config.speculation.verification == "coupled"
    assert config.ssms == ()
    assert (config.api.host, config.api.port) == ("127.0.0.1", 8000)


@pytest.mark.parametrize("path", READY, ids=lambda path: path.name)
def test_ready_configurations_are_valid(path: Path) -> None:
    embedded = path.name.startswith("smollm2")
    assert (load_config(path).model.path == Config().model.path) == embedded


def test_every_section_is_read() -> None:
    config = parse_config("""
        model: {path: owner/thing, served_name: thing-1, dtype: float32}
        llm: {step_timeout_s: 5, num_threads: 2}
        speculation: {drafters: [], max_tree_nodes: 8}
        scheduler: {max_batch_tokens: 64, kv_memory_bytes: 1000000}
        grpc: {port_range: [5000, 5010]}
        api: {host: 0.0.0.0, port: 81}
    """)
    assert config.model.name == "thing-1"
    assert config.llm.step_timeout_s == 5.0
    assert config.speculation.drafters == ()
    assert config.scheduler.kv_memory_bytes == 1_000_000
    assert config.grpc.port_range == (5000, 5010)
    assert config.api.host == "0.0.0.0"


@pytest.mark.parametrize(
    ("path", "name"), [("smollm2-135m-instruct",) * 2, ("owner/thing", "thing"), ("/a/b/", "b")]
)
def test_a_model_is_called_by_the_last_part_of_its_path(path: str, name: str) -> None:
    assert parse_config(f"model: {{path: {path}}}").model.name == name


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Config().api.port = 1  # type: ignore[misc]


def test_all_mistakes_are_told_at_once_by_dotted_path() -> None:
    found = problems("""
        model: {dtype: int4, size: 7}
        llm: {tensor_parallel: 0}
        api: {port: 70000}
        bogus: {}
        scheduler: {kv_memory_bytes: much, max_running_requests: 0, kv_prefix_reuse: perhaps}
    """)
    paths = {line.split(":")[0] for line in found}
    assert paths == {
        "model.dtype",
        "model.size",
        "llm.tensor_parallel",
        "api.port",
        "bogus",
        "scheduler.kv_memory_bytes",
        "scheduler.max_running_requests",
        "scheduler.kv_prefix_reuse",
    }


def test_the_branches_of_a_union_are_one_mistake() -> None:
    assert len(problems("scheduler: {kv_memory_bytes: much}")) == 1


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("api: {port: '8000'}", "api.port"),
        ("api: {port: true}", "api.port"),
        ("api: {port: 80.0}", "api.port"),
        ("model: {path: 7}", "model.path"),
        ("speculation: {drafters: prompt_lookup}", "speculation.drafters"),
        ("llm: {step_timeout_s: .nan}", "llm.step_timeout_s"),
        ("llm: {step_timeout_s: .inf}", "llm.step_timeout_s"),
        ("llm: []", "llm"),
        ("grpc: {port_range: [1]}", "grpc.port_range"),
        ("grpc: {port_range: [10, 9]}", "grpc.port_range"),
        ("grpc: {tls: {ca: x, cert: x}}", "grpc.tls.key"),
        ("grpc: {tls: {ca: x, cert: x, key: x, name: x}}", "grpc.tls.name"),
        ("grpc: {tls: {ca: x, cert: '', key: x}}", "grpc.tls.cert"),
    ],
)
def test_values_of_another_type_are_refused(text: str, path: str) -> None:
    assert {line.split(":")[0].removesuffix(".1") for line in problems(text)} == {path}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("llm: {replicas: 2, trace_file: x}", "llm.trace_file"),
        ("llm: {offload: disk}", "llm.offload"),
        ("llm: {offload: cpu, tensor_parallel: 3}", "llm.offload"),
        ("llm: {offload: cpu, offload_dir: /tmp}", "llm.offload_dir"),
        ("llm: {offload: nvme, quantization: int8}", "llm.quantization"),
        ("llm: {quantization: int4}", "llm.quantization"),
        ("api: {replicas: 2}", "api.replicas"),
    ],
)
def test_what_is_not_built_yet_is_refused(text: str, path: str) -> None:
    (found,) = problems(text)
    assert found.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0", "llm.replicas"),
        ("65", "llm.replicas"),
        ("'2'", "llm.replicas"),
        ("true", "llm.replicas"),
        ("{min: 1}", "llm.replicas.max"),
        ("{min: 0, max: 2}", "llm.replicas.min"),
        ("{min: 3, max: 2}", "llm.replicas"),
        ("{max: 2, wait: 1}", "llm.replicas.wait"),
        ("{max: 2, wait_s: 0}", "llm.replicas.wait_s"),
        ("{max: 2, occupancy: 1.5}", "llm.replicas.occupancy"),
        ("{max: 2, down_delay_s: -1}", "llm.replicas.down_delay_s"),
    ],
)
def test_replicas_that_cannot_be_are_one_mistake(text: str, path: str) -> None:
    (found,) = problems(f"llm: {{replicas: {text}}}")
    assert found.startswith(f"{path}: ")


@pytest.mark.parametrize(("text", "ends"), [("3", (3, 3)), ("{max: 4}", (1, 4))])
def test_a_number_of_replicas_is_a_range_too(text: str, ends: tuple[int, int]) -> None:
    config = parse_config(f"llm: {{replicas: {text}}}")
    assert (config.llm.replicas.min, config.llm.replicas.max) == ends
    assert config.llm.replicas.is_fixed == (ends[0] == ends[1])
    assert with_address(config, None, 9).llm == config.llm, "also by way of JSON"


def test_several_draft_models_have_a_name_each() -> None:
    config = parse_config("""
        ssms: [{path: a, replicas: 2}, {path: b}]
        speculation: {drafters: [ssm, prompt_lookup]}
    """)
    assert config.ssm_indexes == (0, 0, 1)
    assert config.drafter_names == ("ssm-0", "ssm-1", "prompt_lookup")
    assert config.askable_drafters == ("ssm", "prompt_lookup", "ssm-0", "ssm-1")
    alone = parse_config("{ssms: [{path: a}], speculation: {drafters: [prompt_lookup, ssm]}}")
    assert alone.drafter_names == alone.askable_drafters == ("prompt_lookup", "ssm")


def test_ssms_and_the_drafter_that_asks_them_go_together() -> None:
    config = parse_config("""
        ssms: [{path: 'embedded:smollm2-135m/ssm-0', replicas: 1}]
        speculation: {drafters: [ssm, prompt_lookup], expansion: [3, 2, 1]}
    """)
    assert config.ssms[0].path == "embedded:smollm2-135m/ssm-0"
    assert config.speculation.expansion == (3, 2, 1)
    (found,) = problems("ssms: [{path: somewhere}]")
    assert found.startswith("speculation: there are ssms")
    (found,) = problems("speculation: {drafters: [ssm]}")
    assert found.startswith("speculation: 'ssm' is among the drafters")


@pytest.mark.parametrize("expansion", ["deepest", "[]", "[0]", "[2, 65]", "3"])
def test_an_expansion_is_best_first_or_a_list_of_widths(expansion: str) -> None:
    (found,) = problems(f"speculation: {{expansion: {expansion}}}")
    assert found.startswith("speculation.expansion")


def test_a_key_given_twice_is_refused() -> None:
    assert problems("api: {port: 1}\nllm: {}\napi: {port: 2}") == ["api: key given twice (line 3)"]
    assert problems("api: {port: 1, port: 1}") == ["port: key given twice (line 1)"]


def test_a_key_that_is_no_text_is_refused() -> None:
    assert any("plain text" in line for line in problems("true: {}"))


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n", "llm:\nssms:\napi: null", "{}"])
def test_nothing_means_defaults(text: str) -> None:
    assert parse_config(text) == Config()


def test_an_unknown_section_without_anything_in_it_is_refused() -> None:
    assert problems("bogus:") == ["bogus: unknown key"]


@pytest.mark.parametrize("text", ["- a", "just text", "7"])
def test_a_file_without_sections_is_refused(text: str) -> None:
    assert "top level" in problems(text)[0]


def test_broken_yaml_is_told_with_its_place() -> None:
    assert "line 2" in problems("a: 1\nb: [")[0]


def test_no_objects_are_built_from_tags() -> None:
    assert "not valid YAML" in problems("a: !!python/object/apply:os.getcwd []")[0]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: No such file"):
        load_config(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "binary.yaml")


def test_another_address() -> None:
    config = parse_config("{api: {port: 81}, speculation: {drafters: []}}")
    assert with_address(config, None, None) == config
    assert with_address(config, "0.0.0.0", None).api.port == 81
    changed = with_address(config, None, 82)
    assert (changed.api.host, changed.api.port) == ("127.0.0.1", 82)
    assert changed.speculation == config.speculation
    with pytest.raises(ConfigError, match=r"api\.port"):
        with_address(config, None, 0)


def test_plain_values_and_the_order_of_a_range() -> None:
    assert config_of({"llm": {"device": "cuda"}}).llm.device == "cuda"
    with pytest.raises(ConfigError, match=r"metrics\.port_range: the first port"):
        config_of({"metrics": {"port_range": [9101, 9100]}})


@pytest.mark.parametrize("rule", ["coupled", "naive", "mss", "spectr", "typical"])
def test_every_verification_rule_can_be_configured(rule: str) -> None:
    config = parse_config(f"speculation: {{verification: {rule}}}")
    assert config.speculation.verification == rule


def test_an_unknown_verification_rule_is_refused_by_name() -> None:
    (problem,) = problems("speculation: {verification: hope}")
    assert "speculation.verification" in problem
    assert "'mss'" in problem


def test_drafters_that_learn_have_bounded_memory() -> None:
    speculation = parse_config("{speculation: {drafters: [suffix, ngram]}}").speculation
    assert speculation.suffix_global
    for key in ("suffix_memory_bytes", "ngram_memory_bytes"):
        (problem,) = problems(f"speculation: {{drafters: [suffix], {key}: 1000}}")
        assert f"speculation.{key}" in problem
    vocabulary = Vocabulary((b"a",), ("a",), frozenset())
    for name, make in DRAFTERS.items():
        assert make(speculation, vocabulary, lambda text: ()).name == name
    assert DRAFTERS.keys() >= LEARNERS
