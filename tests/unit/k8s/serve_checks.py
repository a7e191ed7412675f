"""What KubeRay's operator and Ray Serve ask of a RayService beyond its schema.

The operator's rules are those of its own validation of RayServices and RayClusters.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from manifests import Manifests, find_all
from placing import can_hold_ingress, worker_pods
from pydantic import BaseModel, ValidationError
from ray.serve.schema import DeploymentSchema, ServeApplicationSchema, ServeDeploySchema

from actors.errors import ConfigError
from cluster import ray_api

MAX_NAME = 41
"""Longer names leave no room for the suffixes of clusters and services."""
UPGRADES = ("NewCluster", "None", "NewClusterWithIncrementalUpgrade")


def serve_problems(manifests: Manifests, monkeypatch: Any) -> Iterator[str]:
    """serveConfigV2: by Serve's schema, nothing unknown, and the application can be built."""
    content = manifests.serve_config
    yield from _unknown(content, ServeDeploySchema, "serveConfigV2")
    try:
        ServeDeploySchema.model_validate(content)
    except ValidationError as error:
        yield f"serveConfigV2: {error}"
        return
    for application in content["applications"]:
        yield from _unknown(application, ServeApplicationSchema, application["name"])
        for deployment in application.get("deployments", []):
            yield from _unknown(deployment, DeploymentSchema, deployment["name"])
    yield from _application_problems(manifests, monkeypatch)


def _unknown(content: dict[str, Any], schema: type[BaseModel], where: str) -> Iterator[str]:
    """Serve ignores keys that it does not know; we do not."""
    for key in content.keys() - schema.model_fields.keys():
        yield f"{where}: unknown key {key}"


def _application_problems(manifests: Manifests, monkeypatch: Any) -> Iterator[str]:
    module, _, name = manifests.application["import_path"].partition(":")
    try:
        build = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        yield f"import_path: {error}"
        return
    monkeypatch.setattr(ray_api, "num_gpus", lambda: 0)
    monkeypatch.setattr(ray_api, "node_resources", list)
    try:
        built = build(manifests.application["args"])
    except ConfigError as error:
        yield f"args: {error}"
        return
    known = {"Ingress", "RequestManager"}
    if built._bound_deployment.name != "Ingress":
        yield "the application does not begin with its ingress"
    for deployment in manifests.application["deployments"]:
        if deployment["name"] not in known:
            yield f"no deployment {deployment['name']} in the application"


def operator_problems(manifests: Manifests) -> Iterator[str]:
    """The operator's rules."""
    (service,) = manifests.of("RayService")
    cluster = manifests.cluster
    if len(service["metadata"]["name"]) > MAX_NAME:
        yield f"the name is longer than {MAX_NAME}"
    if manifests.service["upgradeStrategy"]["type"] not in UPGRADES:
        yield f"upgradeStrategy.type is none of {UPGRADES}"
    if any("ray.io/ft-enabled" in one for one in find_all(service, "annotations")):
        yield "ray.io/ft-enabled beside gcsFaultToleranceOptions"
    names = [group["groupName"] for group in cluster["workerGroupSpecs"]]
    if len(set(names)) < len(names):
        yield "two worker groups of one name"
    for group in cluster["workerGroupSpecs"]:
        least, most = group["minReplicas"], group["maxReplicas"]
        if not least <= group.get("replicas", least) <= most:
            yield f"{group['groupName']}: replicas are not between minReplicas and maxReplicas"
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    set_by_operator = {"RAY_REDIS_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}
    for group in groups:
        variables = {one["name"] for env in find_all(group["template"], "env") for one in env}
        if clash := variables & set_by_operator:
            yield f"{sorted(clash)} are the operator's"
    for budget in manifests.of("PodDisruptionBudget"):
        if not isinstance(budget["spec"].get("minAvailable"), int):
            yield "Ray's pods need a budget with minAvailable, as a number"
    if cluster["headGroupSpec"]["rayStartParams"].get("num-cpus") != "0":
        yield "the head takes work"
    (ingress,) = [one for one in manifests.application["deployments"] if one["name"] == "Ingress"]
    if not ingress["ray_actor_options"]["num_cpus"] > 0:
        yield "the ingress would fit on the head"


def time_problems(manifests: Manifests) -> Iterator[str]:
    """Is every grace longer than what it is to outlast?"""
    config = manifests.config
    longest_s = config.api.request_timeout_s or float("inf")
    if config.api.drain_timeout_s <= longest_s:
        yield "an ingress that is replaced goes before its longest answer has ended"
    if manifests.service["rayClusterDeletionDelaySeconds"] <= longest_s:
        yield "an old cluster goes before its longest answer has ended"
    for worker in worker_pods(manifests):
        if not can_hold_ingress(manifests, worker):
            continue
        command = worker.container["lifecycle"]["preStop"]["exec"]["command"]
        grace_s = float(command[command.index("--grace-s") + 1])
        port = int(command[command.index("--port") + 1])
        if port != config.api.port:
            yield f"{worker.name}: preStop drains port {port}, the server is at {config.api.port}"
        if not longest_s < grace_s < worker.template["spec"]["terminationGracePeriodSeconds"]:
            yield f"{worker.name}: longest answer, preStop and termination are not in this order"
        probe = worker.container["startupProbe"]
        if probe["periodSeconds"] * probe["failureThreshold"] <= config.llm.start_timeout_s:
            yield f"{worker.name}: the pod is given up before its LLM is"


def security_problems(manifests: Manifests) -> Iterator[str]:
    """The restricted pod security standard, and read-only roots."""
    for pod in manifests.workloads:
        spec = pod.template["spec"]
        context = spec["securityContext"]
        if context.get("runAsNonRoot") is not True or context.get("runAsUser", 0) < 1:
            yield f"{pod.name}: may run as root"
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{pod.name}: no seccomp profile"
        contexts = [(one["name"], one.get("securityContext", {})) for one in spec["containers"]]
        if pod.name == "head":
            autoscaler = manifests.cluster["autoscalerOptions"]
            contexts.append(("autoscaler", autoscaler.get("securityContext", {})))
        for name, own in contexts:
            if own.get("allowPrivilegeEscalation") is not False:
                yield f"{pod.name}, {name}: may gain privileges"
            if own.get("readOnlyRootFilesystem") is not True:
                yield f"{pod.name}, {name}: may write to its root"
            if own.get("capabilities") != {"drop": ["ALL"]}:
                yield f"{pod.name}, {name}: keeps capabilities"
    if manifests.cluster.get("authOptions", {}).get("mode") != "token":
        yield "Ray lets everybody in"
    denied = [
        policy
        for policy in manifests.of("NetworkPolicy")
        if policy["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    ]
    if not denied:
        yield "no policy denies by default"
