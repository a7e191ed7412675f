"""Ten deliberate mistakes, each of which a check finds, and a few more."""

from __future__ import annotations

import pytest
from cross_checks import (
    image_problems,
    path_problems,
    port_problems,
    resource_problems,
    secret_problems,
    selector_problems,
)
from manifests import Manifests, find_all
from metric_checks import exported, metric_problems, used
from render import apply
from schemas import needs_crds, schema_problems
from serve_checks import operator_problems, security_problems, serve_problems, time_problems

WORKER = "/spec/rayClusterConfig/workerGroupSpecs/0"
CONTAINER = f"{WORKER}/template/spec/containers/0"


def change(manifests: Manifests, op: str, path: str, value: object = None) -> None:
    """A JSON patch of the RayService."""
    (service,) = manifests.of("RayService")
    apply(service, {"op": op, "path": path, "value": value})


def change_serve(manifests: Manifests, old: str, new: str) -> None:
    text = manifests.service["serveConfigV2"]
    assert old in text
    change(manifests, "replace", "/spec/serveConfigV2", text.replace(old, new))


def of(manifests: Manifests, kind: str, name: str) -> dict:
    (one,) = [one for one in manifests.of(kind) if one["metadata"]["name"] == name]
    return one


@needs_crds
def test_1_a_misspelt_field(cpu: Manifests) -> None:
    change(cpu, "add", f"{WORKER}/template/spec/terminationGracePeriod", 60)
    (problem,) = [problem for one in cpu.of("RayService") for problem in schema_problems(one)]
    assert "'terminationGracePeriod' was unexpected" in problem


def test_1_a_misspelt_field_of_a_native_kind(cpu: Manifests) -> None:
    policy = of(cpu, "NetworkPolicy", "api")
    policy["spec"]["ingres"] = policy["spec"].pop("ingress")
    (problem,) = schema_problems(policy)
    assert "ingres" in problem


@needs_crds
def test_2_a_wrong_type(cpu: Manifests) -> None:
    change(cpu, "replace", f"{WORKER}/rayStartParams/num-cpus", 4)
    (problem,) = [problem for one in cpu.of("RayService") for problem in schema_problems(one)]
    assert "4 is not of type 'string'" in problem


def test_3_a_port_that_nobody_listens_on(cpu: Manifests) -> None:
    change(cpu, "replace", f"{CONTAINER}/readinessProbe/httpGet/port", 8001)
    assert any("8001" in problem for problem in port_problems(cpu))


def test_3_a_port_that_the_application_does_not_listen_on(cpu: Manifests) -> None:
    change_serve(cpu, "port: 8000", "port: 8123")
    assert any("api.port is 8123" in problem for problem in port_problems(cpu))


def test_3_metrics_ports_for_fewer_actors_than_there_are(cpu: Manifests) -> None:
    change_serve(cpu, "[9100, 9102]", "[9100, 9101]")
    assert any("3 actors" in problem for problem in port_problems(cpu))


@pytest.mark.parametrize(("kind", "name"), [("NetworkPolicy", "api"), ("PodMonitor", "treeserve")])
def test_4_a_selector_that_matches_nothing(cpu: Manifests, kind: str, name: str) -> None:
    labels = next(find_all(of(cpu, kind, name), "matchLabels"))
    labels["app.kubernetes.io/name"] = "tree-serve"
    assert any("selects nothing" in problem for problem in selector_problems(cpu))


def test_5_a_probe_path_that_is_gone(cpu: Manifests, routes: set[str]) -> None:
    change(cpu, "replace", f"{CONTAINER}/livenessProbe/httpGet/path", "/alive")
    assert list(path_problems(cpu, routes)) == ["worker: livenessProbe: nobody answers at /alive"]


@pytest.mark.parametrize(
    ("image", "told"),
    [
        ("treeserve:0.0.9-cpu", "version"),
        ("treeserve:0.1.0-tpu", "no stage 'tpu'"),
        ("treeserve:latest", "not pinned"),
        ("treeserve:0.1.0-cuda", "different images"),
    ],
)
def test_6_an_image_mismatch(cpu: Manifests, image: str, told: str) -> None:
    change(cpu, "replace", f"{CONTAINER}/image", image)
    assert any(told in problem for problem in image_problems(cpu))


def test_7_a_missing_secret(cpu: Manifests) -> None:
    change(cpu, "replace", f"{WORKER}/template/spec/volumes/2/secret/secretName", "keys")
    assert any("secret keys: nobody makes it" in problem for problem in secret_problems(cpu))


def test_7_a_missing_key_of_a_secret(ha: Manifests) -> None:
    next(find_all(of(ha, "StatefulSet", "treeserve-redis"), "secretKeyRef"))["key"] = "pass"
    assert any("key pass" in problem for problem in secret_problems(ha))


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("rate(treeserve_llm_step_total[5m])", "nobody exports treeserve_llm_step_total"),
        ('treeserve_requests_running{model="m"}', "has no label ['model']"),
    ],
)
def test_8_a_metric_unknown(cpu: Manifests, expression: str, told: str) -> None:
    of(cpu, "PrometheusRule", "treeserve")["spec"]["groups"][1]["rules"][0]["expr"] = expression
    (problem,) = metric_problems(cpu, exported())
    assert told in problem


def test_9_an_import_path_that_is_wrong(cpu: Manifests, monkeypatch: pytest.MonkeyPatch) -> None:
    change_serve(cpu, "deploy.app:application", "deploy.app:applications")
    (problem,) = serve_problems(cpu, monkeypatch)
    assert problem.startswith("import_path")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (f"{WORKER}/rayStartParams/num-cpus", "16", "more than the pod's"),
        (f"{WORKER}/rayStartParams/num-cpus", "2", "the application wants CPU 2.35"),
        (f"{CONTAINER}/resources/limits/memory", "2Gi", "bytes of caches"),
        (f"{CONTAINER}/resources/requests/cpu", "5", "more cpu than its limit"),
    ],
)
def test_10_resources_beyond_the_node(cpu: Manifests, path: str, value: str, told: str) -> None:
    change(cpu, "replace", path, value)
    assert any(told in problem for problem in resource_problems(cpu))


def test_gpus_that_no_worker_has(cpu: Manifests) -> None:
    change_serve(cpu, "device: cpu", "device: cuda")
    assert any("wants GPU 1" in problem for problem in resource_problems(cpu))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("drafters: [ssm,", "drafter: [ssm,", "speculation.drafter: unknown key"),
        ("device: cpu", "tensor_parallel: two", "llm.tensor_parallel"),
        ("route_prefix: /", "route: /", "unknown key route"),
        ("name: Ingress", "name: Engress", "no deployment Engress"),
        ("proxy_location: Disabled", "proxy_location: Nowhere", "proxy_location"),
    ],
)
def test_a_wrong_serve_configuration(
    cpu: Manifests, monkeypatch: pytest.MonkeyPatch, old: str, new: str, told: str
) -> None:
    change_serve(cpu, old, new)
    assert any(told in problem for problem in serve_problems(cpu, monkeypatch))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/spec/upgradeStrategy/type", "Rolling"),
        (f"{WORKER}/minReplicas", 3),
        ("/spec/rayClusterConfig/headGroupSpec/rayStartParams/num-cpus", "2"),
        (f"{CONTAINER}/env", [{"name": "RAY_AUTH_TOKEN", "value": "secret"}]),
    ],
)
def test_what_the_operator_refuses(cpu: Manifests, path: str, value: object) -> None:
    change(cpu, "add", path, value)
    assert len(list(operator_problems(cpu))) == 1


def test_a_disruption_budget_that_kubernetes_does_not_apply_to_rays_pods(ha: Manifests) -> None:
    of(ha, "PodDisruptionBudget", "treeserve")["spec"] = {"maxUnavailable": 1, "selector": {}}
    assert len(list(operator_problems(ha))) == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/spec/rayClusterDeletionDelaySeconds", 60),
        (f"{WORKER}/template/spec/terminationGracePeriodSeconds", 30),
        (f"{CONTAINER}/startupProbe/failureThreshold", 3),
    ],
)
def test_a_grace_that_is_too_short(cpu: Manifests, path: str, value: object) -> None:
    change(cpu, "replace", path, value)
    assert len(list(time_problems(cpu))) == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{CONTAINER}/securityContext/readOnlyRootFilesystem", False),
        (f"{WORKER}/template/spec/securityContext/runAsUser", 0),
        ("/spec/rayClusterConfig/authOptions/mode", "disabled"),
    ],
)
def test_a_door_left_open(cpu: Manifests, path: str, value: object) -> None:
    change(cpu, "replace", path, value)
    assert list(security_problems(cpu))


def test_metrics_are_found_in_any_query() -> None:
    query = 'sum by (le) (rate(a_bucket{x=~"b.*",y!="{"}[5m])) / on (z) group_left (w) c and 5 > d'
    assert list(used(query)) == [("a_bucket", {"x", "y"}), ("c", set()), ("d", set())]
