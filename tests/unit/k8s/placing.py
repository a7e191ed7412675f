"""Which pods Ray may put the application's actors on: every way in which its bundles fit.

Ray promises no more than that each bundle finds the resources that it asks for, so whatever must be
so has to be so in every way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from manifests import Manifests, Workload

from cluster.placement import RESOURCES, plan_placement

Bundle = Mapping[str, float]
Way = tuple[int, ...]
"""For each bundle the index of its pod."""


def worker_pods(manifests: Manifests) -> list[Workload]:
    """Every worker pod that there may be at once."""
    return [worker for worker in manifests.workers for _ in range(worker.max_pods)]


def group(manifests: Manifests) -> Sequence[Bundle]:
    """What a manager's placement group asks for: Serve's file has the last word."""
    asked = manifests.deployment("RequestManager").get("placement_group_bundles")
    return asked or plan_placement(manifests.config).bundles


def bundles(manifests: Manifests) -> Sequence[Bundle]:
    """Those of all managers that there may be."""
    return list(group(manifests)) * manifests.config.llm.replicas.max


def ingress_wants(manifests: Manifests) -> Bundle:
    options = manifests.deployment("Ingress")["ray_actor_options"]
    return {"CPU": options["num_cpus"], **options.get("resources", {})}


def ways(manifests: Manifests) -> Iterator[Way]:
    """All in which every bundle fits; none if the pods are too few or too small."""
    hosts, asked = worker_pods(manifests), bundles(manifests)
    strategy = manifests.deployment("RequestManager").get("placement_group_strategy")
    together = len(group(manifests)) if strategy == "STRICT_PACK" else 1
    for places in product(range(len(hosts)), repeat=len(asked) // together):
        way = tuple(place for place in places for _ in range(together))
        if all(_fits(on(way, pod, asked), host.resources) for pod, host in enumerate(hosts)):
            yield way


def on(way: Way, pod: int, asked: Sequence[Bundle]) -> list[Bundle]:
    """The bundles that a pod gets."""
    return [bundle for bundle, host in zip(asked, way, strict=True) if host == pod]


def can_hold_ingress(manifests: Manifests, pod: Workload) -> bool:
    return _fits([ingress_wants(manifests)], pod.resources)


def most_actors(manifests: Manifests, worker: Workload) -> int:
    """How many actors with metrics a pod may get, the manager among them."""
    hosts = worker_pods(manifests)
    return max(
        (
            way.count(index)
            for way in ways(manifests)
            for index, host in enumerate(hosts)
            if host.name == worker.name
        ),
        default=0,
    )


def placement_problems(manifests: Manifests) -> Iterator[str]:
    """Does everything find a pod, whatever way Ray takes, and does it need every pod?"""
    placement, asked, hosts = (
        plan_placement(manifests.config),
        group(manifests),
        worker_pods(manifests),
    )
    planned = [{name: bundle.get(name, 0) for name in RESOURCES} for bundle in placement.bundles]
    if [{name: bundle.get(name, 0) for name in RESOURCES} for bundle in asked] != planned:
        yield f"placement_group_bundles: the configuration asks for {placement.bundles}"
        return
    if not any(can_hold_ingress(manifests, host) for host in hosts):
        yield "no pod can hold the ingress"
    stages = range(1, 1 + len(placement.stages))
    found = list(ways(manifests))
    if not found:
        yield f"the bundles {asked} do not fit the pods"
    if any(len(set(way)) < len(hosts) for way in found):
        yield f"all bundles fit fewer pods than the {len(hosts)} that there may be"
    if len(hosts) > 1 and any(len({way[stage] for stage in stages}) < len(stages) for way in found):
        yield "two stages may come to share a pod"
    if not all(_leaves_room(manifests, way) for way in found):
        yield "the bundles may leave no room for the ingress"


def _leaves_room(manifests: Manifests, way: Way) -> bool:
    asked, ingress = bundles(manifests), ingress_wants(manifests)
    return any(
        _fits([*on(way, pod, asked), ingress], host.resources)
        for pod, host in enumerate(worker_pods(manifests))
    )


def _fits(wanted: Sequence[Bundle], resources: Bundle) -> bool:
    names = {name for bundle in wanted for name in bundle}
    return all(
        sum(bundle.get(name, 0) for bundle in wanted) <= resources.get(name, 0) for name in names
    )
