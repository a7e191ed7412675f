"""Several managers' metrics as one text."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from actors.request_manager.generation import FinishReason
from cluster.metric_texts import merged
from cluster.metrics import Metrics


def text(num_finished: int) -> str:
    metrics = Metrics(CollectorRegistry(), "m")
    for _ in range(num_finished):
        metrics.request_finished(FinishReason.STOP, 5, 1, 0.0, 1.0, 2.0, False)
    return metrics.text()


def test_a_single_text_stays_as_it_is() -> None:
    alone = text(1)
    assert merged({"a": alone}) == alone


def test_of_several_every_sample_tells_whose_it_is() -> None:
    families = list(text_string_to_metric_families(merged({"a": text(1), "b": text(3)})))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "each once"
    alone = {family.name: family for family in text_string_to_metric_families(text(1))}
    assert set(names) == set(alone)
    for family in families:
        assert (family.type, family.documentation) == (
            alone[family.name].type,
            alone[family.name].documentation,
        )
        whose = [sample.labels["manager"] for sample in family.samples]
        assert whose.count("a") == whose.count("b") == len(alone[family.name].samples)
    finished = {
        sample.labels["manager"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "treeserve_e2e_request_seconds_count"
    }
    assert finished == {"a": 1, "b": 3}
