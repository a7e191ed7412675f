"""What no schema holds: do ports, selectors, images, secrets and resources fit each other?

Each check gives its problems as text; none means that all is well.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from manifests import Manifests, Workload, find_all, quantity
from placing import can_hold_ingress, most_actors, worker_pods
from render import Manifest

from cluster.placement import RESOURCES, plan_placement

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "k8s" / "README.md"
RAY_PORTS = {"gcs-server": 6379, "dashboard": 8265, "metrics": 8080}
RAY_AGENT_PORT = 52365
RAY_PATHS = {"/api/healthz", "/api/local_raylet_healthz"}
STRANGERS = (
    {"k8s-app": "kube-dns"},
    {"app.kubernetes.io/name": "kuberay-operator"},
    {"app.kubernetes.io/name": "prometheus"},
    {"app.kubernetes.io/name": "opentelemetry-collector"},
)
"""Pods of others that policies name."""
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def port_problems(manifests: Manifests) -> Iterator[str]:
    """Is every port that somebody asks for one that somebody listens on?"""
    yield from _worker_port_problems(manifests)
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
            if not optional and not any(end["port"] in pod.ports for pod in pods):
                yield f"PodMonitor asks port {end['port']}, which its pods lack"
    yield from _policy_port_problems(manifests)
    for service in manifests.of("Service"):
        pods = manifests.selected({"matchLabels": service["spec"]["selector"]})
        for port in service["spec"]["ports"]:
            if not any(port["targetPort"] in pod.ports for pod in pods):
                yield f"Service {service['metadata']['name']}: nobody listens on {port}"


def _worker_port_problems(manifests: Manifests) -> Iterator[str]:
    config = manifests.config
    first, last = config.metrics.port_range
    most = {worker.name: most_actors(manifests, worker) for worker in manifests.workers}
    if last - first + 1 != max(most.values()):
        yield f"metrics at {first} to {last}, up to {max(most.values())} actors on a pod"
    for worker in manifests.workers:
        if can_hold_ingress(manifests, worker) and worker.ports.get("serve") != config.api.port:
            yield f"{worker.name}: api.port is {config.api.port}, the port 'serve' is not"
        actors = {name: port for name, port in worker.ports.items() if name.startswith("actor-")}
        if list(actors.values()) != list(range(first, first + most[worker.name])):
            yield f"{worker.name}: up to {most[worker.name]} actors, ports {actors}"
        for name, port in actors.items():
            if not any(_scrapes(monitor, name) for monitor in _selecting(manifests, worker)):
                yield f"{worker.name}: no PodMonitor asks port {name}"
            if not any(_lets_in(policy, name, port) for policy in _selecting(manifests, worker)):
                yield f"{worker.name}: no NetworkPolicy lets Prometheus in at {name}, {port}"


def _selecting(manifests: Manifests, pod: Workload) -> Iterator[Manifest]:
    """PodMonitors and network policies of a pod."""
    for one in manifests.of("PodMonitor", "NetworkPolicy"):
        selector = one["spec"].get("selector") or one["spec"].get("podSelector", {})
        if pod.name in [found.name for found in manifests.selected(selector)]:
            yield one


def _scrapes(monitor: Manifest, name: str) -> bool:
    return any(end["port"] == name for end in monitor["spec"].get("podMetricsEndpoints", []))


def _lets_in(policy: Manifest, name: str, port: int) -> bool:
    return any(
        entry["port"] == name or _in_range(entry, port)
        for rule in policy["spec"].get("ingress", [])
        for entry in rule.get("ports", [])
    )


def _in_range(entry: Manifest, port: int) -> bool:
    first = entry["port"]
    return isinstance(first, int) and first <= port <= entry.get("endPort", first)


def _policy_port_problems(manifests: Manifests) -> Iterator[str]:
    for policy in manifests.of("NetworkPolicy"):
        pods = manifests.selected(policy["spec"]["podSelector"])
        for rule in policy["spec"].get("ingress", []):
            for port in rule.get("ports", []):
                known = {known for pod in pods for known in (*pod.ports, *pod.ports.values())}
                if port["port"] not in known:
                    yield f"NetworkPolicy {policy['metadata']['name']}: nobody listens on {port}"


def serving_problems(manifests: Manifests) -> Iterator[str]:
    """Only pods that may get the ingress are asked for HTTP, and get requests."""
    config = manifests.config
    if manifests.head.ports.get("serve") != config.api.port:
        yield "the operator makes no service: the head names no port 'serve', or another"
    for pod in worker_pods(manifests):
        if can_hold_ingress(manifests, pod):
            continue
        asked = {
            port for probe in PROBES for port in find_all(pod.container.get(probe, {}), "port")
        }
        if asked & {"serve", config.api.port}:
            yield f"{pod.name}: a probe asks for HTTP, which this pod never answers"
        if "lifecycle" in pod.container:
            yield f"{pod.name}: has no HTTP to drain"
        # Every worker is behind the service, and what has no probe of its own gets Ray's.
        if pod.container.get("readinessProbe", {}).get("exec") != {"command": ["false"]}:
            yield f"{pod.name}: gets requests as soon as it is ready, and has nobody to answer them"


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
    made = secrets_made(README.read_text())
    for reference in find_all(manifests.objects, "secretKeyRef"):
        if reference["key"] not in made.get(reference["name"], set()):
            yield f"secret {reference['name']}, key {reference['key']}: nobody makes it"
    for name in find_all(manifests.objects, "secretName"):
        if name not in made:
            yield f"secret {name}: nobody makes it"
    claims = {one["metadata"]["name"] for one in manifests.of("PersistentVolumeClaim")}
    for name in find_all(manifests.objects, "claimName"):
        if name not in claims:
            yield f"volume claim {name}: there is none"
    config = manifests.config
    for worker in manifests.workers:
        wanted = {}
        if can_hold_ingress(manifests, worker):
            wanted["api.api_keys_file"] = config.api.api_keys_file or ""
        for name, path in config.grpc.tls or {}:
            wanted[f"grpc.tls.{name}"] = path
        for field, path in wanted.items():
            volume = worker.volumes.get(str(Path(path).parent), {})
            secret = volume.get("secret", {}).get("secretName", "")
            if Path(path).name not in made.get(secret, set()):
                yield f"{worker.name}: {field}: no secret is mounted as {path}"


def secrets_made(text: str) -> dict[str, set[str]]:
    """The keys of every secret that the README's commands make."""
    commands = re.findall(r"create secret generic (\S+)(.*)", text)
    return {name: set(re.findall(r"--from-\w+=([\w.]+)=", rest)) for name, rest in commands}


def resource_problems(manifests: Manifests) -> Iterator[str]:
    """Does what the application reserves fit the workers, and what they use the pods' limits?"""
    for pod in manifests.workloads:
        resources = pod.container["resources"]
        for name, amount in resources["requests"].items():
            if quantity(amount) > quantity(resources["limits"].get(name, amount)):
                yield f"{pod.name}: asks for more {name} than its limit"
    overrides = manifests.application["deployments"]
    for name in RESOURCES:
        size = sum(pod.resources[name] for pod in worker_pods(manifests))
        wanted = sum(bundle.get(name, 0) for bundle in plan_placement(manifests.config).bundles)
        wanted += sum(
            one.get("ray_actor_options", {}).get(f"num_{name.lower()}s", 0) for one in overrides
        )
        if wanted > size:
            yield f"the application wants {name} {wanted:g}, the workers have {size:g}"
    for worker in manifests.workers:
        cpus, limit = worker.resources["CPU"], worker.limit("cpu")
        if cpus > limit:
            yield f"{worker.name}: num-cpus {cpus:g} is more than the pod's {limit:g}"
        yield from _memory_problems(manifests, worker)


def _memory_problems(manifests: Manifests, worker: Workload) -> Iterator[str]:
    config = manifests.config
    kv = config.scheduler.kv_memory_bytes
    if kv == "auto":
        yield "scheduler.kv_memory_bytes: auto would go by the node's memory, not by the pod's"
        return
    used = float(worker.start["object-store-memory"])
    used += sum(ssm.kv_memory_bytes for ssm in config.ssms)
    used += 0 if config.llm.device == "cuda" else kv
    if used > worker.limit("memory") / 2:
        yield f"{worker.name}: {used:g} bytes of caches in a pod of {worker.limit('memory'):g}"


def offload_problems(manifests: Manifests) -> Iterator[str]:
    """Do weights that are to be streamed come from elsewhere, and is there what that needs?"""
    llm = manifests.config.llm
    if llm.offload == "cpu" and llm.device != "cuda":
        yield "llm.offload: cpu streams nothing where the device is the CPU"
    if llm.offload == "nvme":
        if "libaio-dev" not in (ROOT / "deploy" / "Dockerfile").read_text():
            yield "llm.offload: nvme: the image lacks libaio-dev"
        for worker in manifests.workers:
            folder = Path(llm.offload_dir or "")
            if not any(folder.is_relative_to(path) for path in worker.volumes):
                yield f"{worker.name}: llm.offload_dir is on no volume"


def tracing_problems(manifests: Manifests) -> Iterator[str]:
    """Does a policy let spans out to the collector's port?"""
    if (endpoint := manifests.config.tracing.endpoint) is None:
        return
    port = urlsplit(endpoint).port
    for worker in manifests.workers:
        let_out = [
            entry
            for policy in _selecting(manifests, worker)
            for rule in policy["spec"].get("egress", [])
            for entry in rule.get("ports", [])
        ]
        if not any(_in_range(entry, port or 0) for entry in let_out):
            yield f"{worker.name}: no NetworkPolicy lets spans out to {endpoint}"
