"""The names of metrics and labels in PromQL against those that the code exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from manifests import Manifests
from prometheus_client import CollectorRegistry

from actors.messages import LLMDescription
from actors.tls import TlsFiles
from cluster.metrics import Metrics
from cluster.metrics_server import process_registry, watch_certificate
from cluster.observed import ObservedDrafting, ObservedRank
from deploy.http_metrics import HttpMetrics

Exported = dict[str, set[str]]
"""Names of samples, each with its labels."""

FOREIGN_LABELS = {"instance", "job", "pod"}
"""Prometheus's own."""
GRAFANA = re.compile(r"\$__\w+|\$\w+")
WORDS = frozenset({"and", "or", "unless", "bool", "offset", "group_left", "group_right"})


def exported() -> Exported:
    """What every process of a running server exports."""
    description = LLMDescription("m", 9, 9, 9, 16, 1, "", "float32", "cpu", "fused", True)
    ingress = HttpMetrics("m")
    registries = [process_registry("x"), ingress._registry]
    watch_certificate(registries[0], TlsFiles(ca="ca.crt", cert="tls.crt", key="tls.key"))
    for make in (
        lambda registry: Metrics(registry, "m"),
        lambda registry: ObservedRank(_Described(description), registry),
        lambda registry: ObservedDrafting(_Described(None), registry, "m"),
    ):
        registries.append(CollectorRegistry())
        make(registries[-1])
    found: Exported = {}
    for registry in registries:
        for sample in (sample for family in registry.collect() for sample in family.samples):
            found.setdefault(sample.name, set()).update(sample.labels)
        for collector in list(registry._collector_to_names):
            labels = set(getattr(collector, "_labelnames", ()))
            for name in registry._collector_to_names[collector]:
                found.setdefault(name, set()).update(labels)
                if name.endswith("_bucket"):
                    found[name].add("le")
    return found


class _Described:
    def __init__(self, description: Any) -> None:
        self.describe = lambda: description


def rules(manifests: Manifests) -> list[dict[str, Any]]:
    return [
        rule
        for one in manifests.of("PrometheusRule")
        for group in one["spec"]["groups"]
        for rule in group["rules"]
    ]


def dashboard_queries(manifests: Manifests) -> dict[str, str]:
    """Queries by the name of their panel and their letter."""
    return {
        f"{panel['title']}, {target['refId']}": target["expr"]
        for one in manifests.of("ConfigMap")
        for name, text in one["data"].items()
        if name.endswith(".json")
        for panel in json.loads(text)["panels"]
        for target in panel["targets"]
    }


def metric_problems(manifests: Manifests, known: Exported) -> Iterator[str]:
    """Names in queries and rules that nobody exports."""
    all_rules = rules(manifests)
    recorded = {rule["record"]: {"model_name"} for rule in all_rules if "record" in rule}
    queries = dashboard_queries(manifests)
    queries |= {rule.get("alert") or rule["record"]: rule["expr"] for rule in all_rules}
    for where, query in queries.items():
        for name, labels in used(query):
            all_known = known | recorded
            if name not in all_known:
                yield f"{where}: nobody exports {name}"
            elif strange := labels - all_known[name] - FOREIGN_LABELS:
                yield f"{where}: {name} has no label {sorted(strange)}"


def used(query: str) -> Iterator[tuple[str, set[str]]]:
    """Metrics of a query, each with the labels that it is matched by."""
    text = re.sub(r"\[[^\]]*\]", "", GRAFANA.sub("1", query))
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    for match in re.finditer(r"([a-zA-Z_:][\w:]*)\s*(\(|\{([^}]*)\})?", bare):
        name, follows, matchers = match.groups()
        if follows == "(" or name in WORDS:
            continue
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers or ""))
