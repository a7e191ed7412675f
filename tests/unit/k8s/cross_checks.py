"""What no schema holds: do ports, selectors, images, secrets and resources fit each other?

Each check gives its problems as text; none means that all is well.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from manifests import Manifests, Workload, find_all, quantity
from render import Manifest

from cluster.placement import plan_placement

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "k8s" / "README.md"
RAY_PORTS = {"gcs-server": 6379, "dashboard": 8265, "metrics": 8080}
RAY_AGENT_PORT = 52365
RAY_PATHS = {"/api/healthz", "/api/local_raylet_healthz"}
STRANGERS = (
    {"k8s-app": "kube-dns"},
    {"app.kubernetes.io/name": "kuberay-operator"},
    {"app.kubernetes.io/name": "prometheus"},
)
"""Pods of others that policies name."""
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def port_problems(manifests: Manifests) -> Iterator[str]:
    """Is every port that somebody asks for one that somebody listens on?"""
    config = manifests.config
    first, last = config.metrics.port_range
    for worker in manifests.workers:
        ports = dict(worker.ports)
        if ports.pop("serve", None) != config.api.port:
            yield f"{worker.name}: api.port is {config.api.port}, the port 'serve' is not"
        actors = [port for name, port in ports.items() if name.startswith("actor-")]
        wanted = list(range(first, last + 1))
        num_actors = len(plan_placement(config).bundles)
        if actors != wanted or len(wanted) != num_actors:
            yield f"{worker.name}: {num_actors} actors, metrics at {wanted}, ports {actors}"
    for pod in manifests.ray_pods:
        for name, port in pod.ports.items():
            if RAY_PORTS.get(name, port) != port:
                yield f"{pod.name}: Ray listens on {RAY_PORTS[name]} for {name}, not on {port}"
    for pod in manifests.workloads:
        for probe in PROBES:
            for ask in find_all(pod.container.get(probe, {}), "port"):
                if ask not in (*pod.ports, *pod.ports.values(), RAY_AGENT_PORT):
                    yield f"{pod.name}: {probe} asks port {ask}, on which nobody listens"
    for monitor in manifests.of("PodMonitor"):
        for end in monitor["spec"]["podMetricsEndpoints"]:
            pods = manifests.selected(monitor["spec"]["selector"])
            optional = end["port"].startswith("actor-")  # fewer actors, fewer ports
            if not optional and not all(end["port"] in pod.ports for pod in pods):
                yield f"PodMonitor asks port {end['port']}, which some of its pods lack"
    yield from _policy_port_problems(manifests)
    for service in manifests.of("Service"):
        pods = manifests.selected({"matchLabels": service["spec"]["selector"]})
        for port in service["spec"]["ports"]:
            if not any(port["targetPort"] in pod.ports for pod in pods):
                yield f"Service {service['metadata']['name']}: nobody listens on {port}"


def _policy_port_problems(manifests: Manifests) -> Iterator[str]:
    for policy in manifests.of("NetworkPolicy"):
        pods = manifests.selected(policy["spec"]["podSelector"])
        for rule in policy["spec"].get("ingress", []):
            for port in rule.get("ports", []):
                known = {known for pod in pods for known in (*pod.ports, *pod.ports.values())}
                if port["port"] not in known:
                    yield f"NetworkPolicy {policy['metadata']['name']}: nobody listens on {port}"


def selector_problems(manifests: Manifests) -> Iterator[str]:
    """Does every selector find a pod of ours, or a stranger that we know?"""
    for one in manifests.objects:
        for key in ("selector", "podSelector", "labelSelector"):
            for selector in find_all(one, key):
                labels = selector.get("matchLabels", selector)
                if labels in STRANGERS or manifests.selected({"matchLabels": labels}):
                    continue
                yield f"{one['kind']} {one['metadata']['name']}: {labels} selects nothing"


def path_problems(manifests: Manifests, routes: set[str]) -> Iterator[str]:
    """Are the paths of probes and scrapes among the server's `routes`, or Ray's?"""
    for pod in manifests.workloads:
        for probe in PROBES:
            for ask in find_all(pod.container.get(probe, {}), "httpGet"):
                known = RAY_PATHS if ask["port"] == RAY_AGENT_PORT else routes
                if ask["path"] not in known:
                    yield f"{pod.name}: {probe}: nobody answers at {ask['path']}"
    for monitor in manifests.of("PodMonitor"):
        for end in monitor["spec"]["podMetricsEndpoints"]:
            if "path" in end and end["path"] not in routes:
                yield f"PodMonitor: nobody answers at {end['path']}"


def image_problems(manifests: Manifests) -> Iterator[str]:
    """Ray's pods run one image, of this version, that the Dockerfile can make; all are pinned."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = {pod.container["image"] for pod in manifests.ray_pods}
    if len(images) > 1:
        yield f"Ray's pods run different images: {sorted(images)}"
    for image in sorted(images):
        name, _, tag = image.partition(":")
        tagged, _, variant = tag.rpartition("-")
        if (name, tagged) != ("treeserve", version):
            yield f"{image} is not treeserve at version {version}"
        if not re.search(rf"^FROM .* AS {variant or '-'}$", dockerfile, re.MULTILINE):
            yield f"{image}: the Dockerfile has no stage {variant!r}"
    for pod in manifests.workloads:
        if not re.search(r":\d", pod.container["image"]):
            yield f"{pod.name}: {pod.container['image']} is not pinned"
    pins = (ROOT / "constraints.txt").read_text()
    if f"ray=={manifests.cluster['rayVersion']}\n" not in pins:
        yield f"rayVersion {manifests.cluster['rayVersion']} is not the one that is installed"


def secret_problems(manifests: Manifests) -> Iterator[str]:
    """Does the README create each secret that is used, and the set each volume claim?"""
    made = dict(
        re.findall(
            r"create secret generic (\S+) --from-\w+=([\w.]+)=",
            README.read_text() if README.exists() else "",
        )
    )
    for reference in find_all(manifests.objects, "secretKeyRef"):
        if made.get(reference["name"]) != reference["key"]:
            yield f"secret {reference['name']}, key {reference['key']}: nobody makes it"
    for name in find_all(manifests.objects, "secretName"):
        if name not in made:
            yield f"secret {name}: nobody makes it"
    claims = {one["metadata"]["name"] for one in manifests.of("PersistentVolumeClaim")}
    for name in find_all(manifests.objects, "claimName"):
        if name not in claims:
            yield f"volume claim {name}: there is none"
    keys_file = Path(manifests.config.api.api_keys_file or "")
    mounted = {
        mount["mountPath"]: mount["name"]
        for worker in manifests.workers
        for mount in worker.container["volumeMounts"]
    }
    volume = mounted.get(str(keys_file.parent))
    secrets = {
        volume["name"]: volume["secret"]["secretName"]
        for worker in manifests.workers
        for volume in worker.template["spec"]["volumes"]
        if "secret" in volume
    }
    if made.get(secrets.get(volume or "", "")) != keys_file.name:
        yield f"api.api_keys_file: no secret is mounted as {keys_file}"


def resource_problems(manifests: Manifests) -> Iterator[str]:
    """Does what the application reserves fit the workers, and what they use the pods' limits?"""
    for pod in manifests.workloads:
        resources = pod.container["resources"]
        for name, amount in resources["requests"].items():
            if quantity(amount) > quantity(resources["limits"].get(name, amount)):
                yield f"{pod.name}: asks for more {name} than its limit"
    (worker,) = manifests.workers
    (group,) = manifests.cluster["workerGroupSpecs"]
    cpus, limit = float(group["rayStartParams"]["num-cpus"]), worker.limit("cpu")
    if cpus > limit:
        yield f"{worker.name}: num-cpus {cpus:g} is more than the pod's {limit:g}"
    placement = plan_placement(manifests.config)
    for name, size in (("CPU", cpus), ("GPU", worker.limit("nvidia.com/gpu"))):
        overrides = manifests.application["deployments"]
        wanted = sum(bundle.get(name, 0) for bundle in placement.bundles)
        wanted += sum(one["ray_actor_options"].get(f"num_{name.lower()}s", 0) for one in overrides)
        if wanted > size * worker.max_pods:
            yield f"the application wants {name} {wanted:g}, the workers have {size:g}"
    yield from _memory_problems(manifests, worker, group)


def _memory_problems(manifests: Manifests, worker: Workload, group: Manifest) -> Iterator[str]:
    config = manifests.config
    kv = config.scheduler.kv_memory_bytes
    if kv == "auto":
        yield "scheduler.kv_memory_bytes: auto would go by the node's memory, not by the pod's"
        return
    used = float(group["rayStartParams"]["object-store-memory"])
    used += sum(ssm.kv_memory_bytes for ssm in config.ssms)
    used += 0 if config.llm.device == "cuda" else kv
    if used > worker.limit("memory") / 2:
        yield f"{worker.name}: {used:g} bytes of caches in a pod of {worker.limit('memory'):g}"
