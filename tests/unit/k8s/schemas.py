"""Manifests against the schemas of Kubernetes and of its extensions, strictly.

The definitions of the extensions lie beside the checkout, where they do at all.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from render import Manifest

CRDS = Path(__file__).resolve().parents[4] / "shared" / "crds"
KUBERNETES = "1.30"
"""The oldest version that the manifests are for."""

needs_crds = pytest.mark.skipif(not CRDS.is_dir(), reason="no ../shared/crds beside the checkout")


def schema_problems(manifest: Manifest) -> list[str]:
    """What a strict API server would refuse."""
    group = manifest["apiVersion"].split("/")[0]
    if group in ("ray.io", "monitoring.coreos.com"):
        return list(_custom(manifest))
    return list(_native(manifest))


def _native(manifest: Manifest) -> Iterator[str]:
    where = f"{manifest['kind']}/{manifest['metadata'].get('name', '')}"
    try:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{where}: {'.'.join(map(str, error.path))}: {error.message}"


def _custom(manifest: Manifest) -> Iterator[str]:
    schema = _strict_schema(manifest["kind"])
    content = copy.deepcopy(manifest)
    _apply_defaults(content, schema)
    where = f"{manifest['kind']}/{manifest['metadata']['name']}"
    for error in jsonschema.Draft202012Validator(schema).iter_errors(content):
        yield f"{where}: {'.'.join(map(str, error.absolute_path))}: {error.message[:300]}"


@functools.cache
def _strict_schema(kind: str) -> Manifest:
    for path in CRDS.glob("*.yaml"):
        definition = yaml.safe_load(path.read_text())
        if definition["spec"]["names"]["kind"] == kind:
            (schema,) = [
                version["schema"]["openAPIV3Schema"]
                for version in definition["spec"]["versions"]
                if version["name"] == "v1"
            ]
            schema["properties"]["metadata"] = {"type": "object"}
            _refuse_unknown(schema)
            return dict(schema)
    raise LookupError(f"no definition of {kind} in {CRDS}")


def _refuse_unknown(schema: Any) -> None:
    if isinstance(schema, list):
        for part in schema:
            _refuse_unknown(part)
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    is_open = schema.get("x-kubernetes-preserve-unknown-fields", False)
    is_bare = properties == {"metadata": {"type": "object"}}
    if isinstance(properties, dict) and not is_open and not is_bare and schema.get("type"):
        schema.setdefault("additionalProperties", False)
    for part in schema.values():
        _refuse_unknown(part)


def _apply_defaults(content: Any, schema: Manifest) -> None:
    if isinstance(content, list):
        for item in content:
            _apply_defaults(item, schema.get("items", {}))
    if not isinstance(content, dict):
        return
    for name, part in schema.get("properties", {}).items():
        if name not in content and "default" in part:
            content[name] = copy.deepcopy(part["default"])
        if name in content:
            _apply_defaults(content[name], part)


def pod_problems(templates: dict[str, Manifest]) -> list[str]:
    """Pod templates, by what they are of, as pods of their own."""
    found = []
    for name, template in templates.items():
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **template.get("metadata", {})},
            "spec": template["spec"],
        }
        found += schema_problems(pod)
    return found
