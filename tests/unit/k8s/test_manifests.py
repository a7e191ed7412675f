"""Every overlay holds by every check, as it stands."""

from __future__ import annotations

import pytest
from cross_checks import (
    image_problems,
    offload_problems,
    path_problems,
    port_problems,
    resource_problems,
    secret_problems,
    selector_problems,
    serving_problems,
    tracing_problems,
)
from manifests import Manifests
from metric_checks import dashboard_queries, exported, metric_problems, rules
from placing import placement_problems
from schemas import needs_crds, pod_problems, schema_problems
from serve_checks import operator_problems, security_problems, serve_problems, time_problems


def test_native_kinds_by_kubernetes_own_schemas(overlay: Manifests) -> None:
    native = [one for one in overlay.objects if one["apiVersion"].split("/")[0] in NATIVE]
    assert native
    assert [problem for one in native for problem in schema_problems(one)] == []
    assert pod_problems({pod.name: pod.template for pod in overlay.workloads}) == []


NATIVE = {"v1", "apps", "networking.k8s.io", "policy"}


@needs_crds
def test_every_kind_by_its_schema(overlay: Manifests) -> None:
    assert {one["kind"] for one in overlay.objects} >= {"RayService", "PodMonitor"}
    assert [problem for one in overlay.objects for problem in schema_problems(one)] == []


def test_the_serve_configuration(overlay: Manifests, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(serve_problems(overlay, monkeypatch)) == []


@pytest.mark.parametrize(
    "check",
    [
        operator_problems,
        time_problems,
        security_problems,
        port_problems,
        selector_problems,
        secret_problems,
        resource_problems,
        placement_problems,
        serving_problems,
        offload_problems,
        tracing_problems,
    ],
)
def test_what_no_schema_holds(overlay: Manifests, check) -> None:
    assert list(check(overlay)) == []


def test_paths(overlay: Manifests, routes: set[str]) -> None:
    assert list(path_problems(overlay, routes)) == []


def test_images(overlay: Manifests) -> None:
    assert list(image_problems(overlay)) == []


def test_metrics_and_labels_of_rules_and_dashboard_are_exported(overlay: Manifests) -> None:
    assert len(dashboard_queries(overlay)) > 20
    assert len(rules(overlay)) > 10
    assert list(metric_problems(overlay, exported())) == []


def test_names_are_given_once_and_in_one_namespace(overlay: Manifests) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in overlay.objects]
    assert len(set(names)) == len(names)
    assert {one["metadata"]["namespace"] for one in overlay.objects} == {"treeserve"}
