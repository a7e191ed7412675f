"""Ten deliberate mistakes, each of which a check finds, and a few more."""

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
from manifests import Manifests, find_all
from metric_checks import exported, metric_problems, used
from placing import most_actors, placement_problems
from render import apply
from schemas import needs_crds, schema_problems
from serve_checks import operator_problems, security_problems, serve_problems, time_problems

WORKER = "/spec/rayClusterConfig/workerGroupSpecs/0"
CONTAINER = f"{WORKER}/template/spec/containers/0"
STAGE = "/spec/rayClusterConfig/workerGroupSpecs/1"
STAGE_CONTAINER = f"{STAGE}/template/spec/containers/0"


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


def test_an_ingress_that_is_replaced_too_soon(cpu: Manifests) -> None:
    change_serve(cpu, "drain_timeout_s: 620", "drain_timeout_s: 30")
    (problem,) = time_problems(cpu)
    assert "an ingress that is replaced" in problem


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


HTTP_PROBE = {"httpGet": {"path": "/ready", "port": 8000}}


@pytest.mark.parametrize(
    ("op", "path", "value", "told"),
    [
        ("add", f"{STAGE_CONTAINER}/startupProbe", HTTP_PROBE, "which this pod never answers"),
        ("replace", f"{STAGE_CONTAINER}/livenessProbe", HTTP_PROBE, "which this pod never answers"),
        ("remove", f"{STAGE_CONTAINER}/readinessProbe", None, "gets requests"),
        ("add", f"{STAGE_CONTAINER}/lifecycle", {"preStop": {}}, "no HTTP to drain"),
        ("remove", "/spec/rayClusterConfig/headGroupSpec/template/spec/containers/0/ports/3", None,
         "makes no service"),
    ],
)  # fmt: skip
def test_a_pod_asked_for_http_that_never_answers(
    stages: Manifests, op: str, path: str, value: object, told: str
) -> None:
    change(stages, op, path, value)
    (problem,) = serving_problems(stages)
    assert told in problem


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (f"{WORKER}/rayStartParams/resources", '\'{"ingress": 1, "stage": 2}\'', "share a pod"),
        (f"{WORKER}/rayStartParams/resources", "'{\"stage\": 1}'", "hold the ingress"),
        (f"{STAGE}/rayStartParams/resources", "'{}'", "do not fit the pods"),
        (f"{STAGE}/maxReplicas", 2, "fewer pods than the 3"),
    ],
)
def test_a_place_that_an_actor_must_not_get(
    stages: Manifests, path: str, value: object, told: str
) -> None:
    change(stages, "replace", path, value)
    assert any(told in problem for problem in placement_problems(stages))


def test_an_ingress_that_bundles_may_leave_no_room(stages: Manifests) -> None:
    change_serve(stages, "num_cpus: 0.1", "num_cpus: 1")
    assert list(placement_problems(stages)) == ["the bundles may leave no room for the ingress"]


def test_stages_that_may_share_one_of_two_pods(stages: Manifests) -> None:
    change_serve(stages, ", stage: 1}", "}")
    problems = list(placement_problems(stages))
    assert "two stages may come to share a pod" in problems


def test_two_pods_of_which_one_is_enough(stages: Manifests) -> None:
    change(stages, "remove", STAGE)
    change(stages, "replace", f"{WORKER}/maxReplicas", 2)
    change(stages, "replace", f"{WORKER}/rayStartParams/num-cpus", "4")
    change_serve(stages, ", stage: 1}", "}")
    assert "all bundles fit fewer pods than the 2 that there may be" in placement_problems(stages)


def test_bundles_that_the_configuration_does_not_ask_for(stages: Manifests) -> None:
    change_serve(stages, "pipeline_parallel: 2", "pipeline_parallel: 3")
    (problem,) = placement_problems(stages)
    assert "the configuration asks for" in problem


def test_a_third_stage_added_as_the_readme_tells(stages: Manifests) -> None:
    change_serve(stages, "pipeline_parallel: 2", "pipeline_parallel: 3")
    change_serve(stages, "- {CPU: 0.25}", f"- {{CPU: 1, stage: 1}}\n{' ' * 10}- {{CPU: 0.25}}")
    change(stages, "replace", f"{STAGE}/maxReplicas", 2)
    for check in (placement_problems, serving_problems, port_problems, resource_problems):
        assert list(check(stages)) == []


def test_a_stages_pod_gets_one_actor_and_the_other_the_rest(stages: Manifests) -> None:
    assert [most_actors(stages, worker) for worker in stages.workers] == [3, 1]


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("PodMonitor", "treeserve", "no PodMonitor asks port actor-2"),
        ("NetworkPolicy", "metrics", "lets Prometheus in at actor-2, 9102"),
    ],
)
def test_metrics_that_nobody_can_read(cpu: Manifests, kind: str, name: str, told: str) -> None:
    spec = of(cpu, kind, name)["spec"]
    if kind == "PodMonitor":
        spec["podMetricsEndpoints"].pop()
    else:
        spec["ingress"][0]["ports"][-1]["endPort"] = 9101
    (problem,) = port_problems(cpu)
    assert told in problem


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("ca: /etc/treeserve/grpc/ca.crt", "ca: /etc/treeserve/grpc/ca.pem"),
        ("cert: /etc/treeserve/grpc/tls", "cert: /etc/treeserve/tls/tls"),
        ("key: /etc/treeserve/grpc/tls.key", "key: /etc/treeserve/grpc/key.tls"),
    ],
)
def test_a_certificate_that_no_secret_has(stages: Manifests, right: str, wrong: str) -> None:
    change_serve(stages, right, wrong)
    told = f"grpc.tls.{right.partition(':')[0]}: no secret is mounted"
    assert [told in problem for problem in secret_problems(stages)] == [True, True]


def test_a_pod_without_the_certificate(stages: Manifests) -> None:
    change(stages, "remove", f"{STAGE_CONTAINER}/volumeMounts/2")
    assert all(problem.startswith("stage: grpc.tls") for problem in secret_problems(stages))
    assert len(list(secret_problems(stages))) == 3


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("device: cuda", "device: cpu", "streams nothing"),
        ("offload: cpu", "offload: nvme", "is on no volume"),
        ("offload: cpu", "offload: nvme, offload_dir: /fast/disk", "is on no volume"),
    ],
)
def test_weights_that_cannot_be_streamed(
    offload: Manifests, right: str, wrong: str, told: str
) -> None:
    change_serve(offload, right, wrong)
    (problem,) = offload_problems(offload)
    assert told in problem


def test_weights_streamed_from_a_volume(offload: Manifests) -> None:
    change_serve(offload, "offload: cpu", "offload: nvme, offload_dir: /cache/weights")
    assert list(offload_problems(offload)) == []


@pytest.mark.parametrize(("port", "is_let_out"), [(4318, True), (9999, False)])
def test_spans_to_a_port_that_is_closed(cpu: Manifests, port: int, is_let_out: bool) -> None:
    endpoint = f"http://collector.observability:{port}"
    change_serve(cpu, "api:\n", f"tracing: {{endpoint: '{endpoint}'}}\n      api:\n")
    assert (list(tracing_problems(cpu)) == []) == is_let_out


def test_metrics_are_found_in_any_query() -> None:
    query = 'sum by (le) (rate(a_bucket{x=~"b.*",y!="{"}[5m])) / on (z) group_left (w) c and 5 > d'
    assert list(used(query)) == [("a_bucket", {"x", "y"}), ("c", set()), ("d", set())]


def test_a_fourth_manager_added_as_the_readme_tells(replicas: Manifests) -> None:
    change_serve(replicas, "max: 3", "max: 4")
    assert any("do not fit the pods" in problem for problem in placement_problems(replicas))
    change(replicas, "replace", f"{STAGE}/maxReplicas", 3)
    assert list(placement_problems(replicas)) == []


def test_managers_that_may_share_a_pod(replicas: Manifests) -> None:
    change_serve(replicas, ", manager: 1}", "}")
    change(replicas, "replace", f"{WORKER}/rayStartParams/num-cpus", "7")
    problems = list(placement_problems(replicas))
    assert "all bundles fit fewer pods than the 3 that there may be" in problems
