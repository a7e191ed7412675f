"""The renderer of the kustomize subset."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from render import NAMES, OVERLAYS, RenderError, apply, render

HEAD = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "thing.yaml").write_text("kind: Thing\nmetadata: {name: one}\nspec: {list: [1]}\n")
    return tmp_path


def test_resources_namespace_patches_and_files(folder: Path) -> None:
    (folder / "patch.yaml").write_text("- {op: add, path: /spec/list/-, value: 2}\n")
    (folder / "text.json").write_text("{}")
    (folder / "kustomization.yaml").write_text(
        f"{HEAD}namespace: here\nresources: [thing.yaml]\n"
        "patches: [{path: patch.yaml, target: {kind: Thing, name: one}}]\n"
        "configMapGenerator: [{name: texts, files: [text.json]}]\n"
        "generatorOptions: {disableNameSuffixHash: true, labels: {a: b}}\n"
    )
    thing, texts = render(folder)
    assert thing["spec"] == {"list": [1, 2]}
    assert thing["metadata"] == {"name": "one", "namespace": "here"}
    assert texts["data"] == {"text.json": "{}"}
    assert texts["metadata"] == {"name": "texts", "labels": {"a": "b"}, "namespace": "here"}


@pytest.mark.parametrize(
    "wrong",
    [
        "commonLabels: {a: b}\n",
        "patches: [{path: patch.yaml, target: {kind: Thing, name: two}}]\n",
        "configMapGenerator: [{name: texts, files: [thing.yaml]}]\n",
    ],
)
def test_what_is_not_in_the_subset_is_refused(folder: Path, wrong: str) -> None:
    (folder / "patch.yaml").write_text("[]")
    (folder / "kustomization.yaml").write_text(f"{HEAD}resources: [thing.yaml]\n{wrong}")
    with pytest.raises(RenderError):
        render(folder)


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "replace", "path": "/spec/size", "value": 1},
        {"op": "remove", "path": "/spec/list/3"},
        {"op": "add", "path": "/nowhere/size", "value": 1},
        {"op": "move", "path": "/spec/list", "from": "/spec"},
    ],
)
def test_a_patch_without_a_place_is_refused(operation: dict) -> None:
    with pytest.raises(RenderError):
        apply({"spec": {"list": []}}, operation)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl, to compare with kustomize's")
@pytest.mark.parametrize("name", NAMES)
def test_kustomize_renders_the_same(name: str) -> None:
    folder = OVERLAYS / name
    command = ["kubectl", "kustomize", str(folder)]
    theirs = subprocess.run(command, capture_output=True, check=True, text=True).stdout

    def by_name(objects: Iterable[dict]) -> dict[tuple[str, str], dict]:
        return {(one["kind"], one["metadata"]["name"]): one for one in objects}

    assert by_name(render(folder)) == by_name(yaml.safe_load_all(theirs))
