"""Renders the subset of kustomize that our manifests use, and refuses everything else of it.

Resources, a namespace, JSON patches (RFC 6902: add, copy, replace, remove) and ConfigMaps out of
files.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

OVERLAYS = Path(__file__).resolve().parents[3] / "k8s" / "overlays"
NAMES = sorted(path.name for path in OVERLAYS.iterdir())

KNOWN = {
    "apiVersion",
    "kind",
    "namespace",
    "resources",
    "patches",
    "configMapGenerator",
    "generatorOptions",
}


class RenderError(Exception):
    """A kustomization that is wrong, or uses more than is known here."""


def render(folder: Path) -> list[Manifest]:
    """What `kubectl kustomize` makes of a folder, in the order of its resources."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := kustomization.keys() - KNOWN:
        raise RenderError(f"{folder}: not in the subset: {sorted(unknown)}")
    found: list[Manifest] = []
    for name in kustomization.get("resources", []):
        path = folder / name
        found += render(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    options = kustomization.get("generatorOptions", {})
    found += [
        _config_map(folder, entry, options) for entry in kustomization.get("configMapGenerator", [])
    ]
    found = copy.deepcopy(found)  # what YAML aliases share must not be patched together
    for entry in kustomization.get("patches", []):
        _patch(found, entry["target"], yaml.safe_load((folder / entry["path"]).read_text()))
    if namespace := kustomization.get("namespace"):
        for manifest in found:
            manifest["metadata"]["namespace"] = namespace
    return found


def _config_map(folder: Path, entry: Manifest, options: Manifest) -> Manifest:
    if options.get("disableNameSuffixHash") is not True or entry.keys() - {"name", "files"}:
        raise RenderError(f"{folder}: ConfigMaps from files, without a hash in the name, only")
    metadata: Manifest = {"name": entry["name"]}
    if labels := options.get("labels"):
        metadata["labels"] = labels
    data = {Path(name).name: (folder / name).read_text() for name in entry["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _patch(found: list[Manifest], target: Manifest, operations: list[Manifest]) -> None:
    chosen = [
        manifest
        for manifest in found
        if manifest["kind"] == target["kind"] and manifest["metadata"]["name"] == target["name"]
    ]
    if not chosen:
        raise RenderError(f"a patch finds no {target}")
    for manifest in chosen:
        for operation in operations:
            apply(manifest, operation)


def apply(manifest: Manifest, operation: Manifest) -> None:
    """One operation of a JSON patch, in place."""
    try:
        if operation["op"] == "copy":
            value = _find(manifest, _keys(operation["from"]))
            operation = {"op": "add", "path": operation["path"], "value": value}
        *above, last = _keys(operation["path"])
        _change(_find(manifest, above), last, operation)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise RenderError(f"{operation['op']} {operation['path']}: no such place") from error


def _keys(pointer: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _find(manifest: Manifest, keys: list[str]) -> Any:
    place: Any = manifest
    for key in keys:
        place = place[int(key) if isinstance(place, list) else key]
    return place


def _change(place: Any, key: str, operation: Manifest) -> None:
    match operation["op"], place:
        case "add", list():
            value = copy.deepcopy(operation["value"])
            place.insert(len(place) if key == "-" else int(key), value)
        case "add", dict():
            place[key] = copy.deepcopy(operation["value"])
        case "replace", _:
            index: Any = int(key) if isinstance(place, list) else key
            place[index]  # it must be there
            place[index] = copy.deepcopy(operation["value"])
        case "remove", _:
            del place[int(key) if isinstance(place, list) else key]
        case _:
            raise RenderError(f"{operation['op']}: not in the subset")
