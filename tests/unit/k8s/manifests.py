"""A set of manifests, and what of it the checks ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from render import Manifest

from cluster.config import Config, config_of

UNITS = {"m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def quantity(text: object) -> float:
    """A Kubernetes quantity as a number."""
    number = str(text).rstrip("mkMGKi")
    return float(number) * UNITS[str(text)[len(number) :]]


@dataclass(frozen=True)
class Workload:
    """A pod template, and how it is used.

    Attributes:
        start: parameters of `ray start`.
    """

    name: str
    template: Manifest
    max_pods: int = 1
    start: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.template["metadata"]["labels"])

    @property
    def container(self) -> Manifest:
        """The first, which runs the work."""
        return dict(self.template["spec"]["containers"][0])

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", [])}

    @property
    def volumes(self) -> dict[str, Manifest]:
        """By where they are mounted."""
        named = {volume["name"]: volume for volume in self.template["spec"].get("volumes", [])}
        mounts = self.container.get("volumeMounts", [])
        return {
            mount["mountPath"]: named[mount["name"]] for mount in mounts if mount["name"] in named
        }

    @property
    def resources(self) -> dict[str, float]:
        """What Ray takes a pod to have; of its own resources in quotes, as the shell wants them."""
        own = json.loads(self.start.get("resources", "'{}'").strip("'"))
        cpus = float(self.start["num-cpus"])
        return {"CPU": cpus, "GPU": self.limit("nvidia.com/gpu"), **own}

    def limit(self, resource: str) -> float:
        return quantity(self.container["resources"]["limits"].get(resource, 0))


class Manifests:
    """Rendered manifests of one overlay."""

    def __init__(self, objects: list[Manifest]) -> None:
        self.objects = objects

    def of(self, *kinds: str) -> Iterator[Manifest]:
        return (one for one in self.objects if one["kind"] in kinds)

    @property
    def service(self) -> Manifest:
        """The specification of the one RayService."""
        (service,) = self.of("RayService")
        return dict(service["spec"])

    @property
    def cluster(self) -> Manifest:
        return dict(self.service["rayClusterConfig"])

    @property
    def head(self) -> Workload:
        return Workload("head", self.cluster["headGroupSpec"]["template"])

    @property
    def workers(self) -> list[Workload]:
        groups = self.cluster["workerGroupSpecs"]
        return [
            Workload(
                group["groupName"], group["template"], group["maxReplicas"], group["rayStartParams"]
            )
            for group in groups
        ]

    @property
    def ray_pods(self) -> list[Workload]:
        return [self.head, *self.workers]

    @property
    def workloads(self) -> list[Workload]:
        others = [
            Workload(one["metadata"]["name"], one["spec"]["template"])
            for one in self.of("StatefulSet", "Deployment")
        ]
        return [*self.ray_pods, *others]

    @property
    def serve_config(self) -> Manifest:
        return dict(yaml.safe_load(self.service["serveConfigV2"]))

    @property
    def application(self) -> Manifest:
        (application,) = self.serve_config["applications"]
        return dict(application)

    def deployment(self, name: str) -> Manifest:
        """What Serve's file says of a deployment; empty if nothing."""
        named = {one["name"]: one for one in self.application["deployments"]}
        return dict(named.get(name, {}))

    @property
    def config(self) -> Config:
        """TreeServe's own configuration. Raises ConfigError."""
        return config_of(self.application["args"])

    def selected(self, selector: Manifest) -> list[Workload]:
        wanted = selector.get("matchLabels", {})
        return [one for one in self.workloads if wanted.items() <= one.labels.items()]


def find_all(content: Any, key: str) -> Iterator[Any]:
    """Every value under a key, wherever it stands."""
    if isinstance(content, dict):
        if key in content:
            yield content[key]
        for value in content.values():
            yield from find_all(value, key)
    elif isinstance(content, list):
        for value in content:
            yield from find_all(value, key)
