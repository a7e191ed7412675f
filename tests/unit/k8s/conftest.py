"""The overlays, rendered, and what the server answers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from manifests import Manifests
from render import NAMES, OVERLAYS, render

from actors.vocabulary import Vocabulary
from deploy.api import build_app
from deploy.backend import BackendDescription


@pytest.fixture(params=NAMES)
def overlay(request: pytest.FixtureRequest) -> Manifests:
    """Each overlay in turn."""
    return Manifests(render(OVERLAYS / request.param))


@pytest.fixture
def cpu() -> Manifests:
    """The overlay to make mistakes in."""
    return Manifests(render(OVERLAYS / "cpu"))


@pytest.fixture
def ha() -> Manifests:
    return Manifests(render(OVERLAYS / "ha"))


@pytest.fixture
def stages() -> Manifests:
    return Manifests(render(OVERLAYS / "stages"))


@pytest.fixture
def replicas() -> Manifests:
    return Manifests(render(OVERLAYS / "replicas"))


@pytest.fixture
def offload() -> Manifests:
    return Manifests(render(OVERLAYS / "offload"))


@pytest.fixture(scope="session")
def routes() -> set[str]:
    """Paths that the server answers."""
    backend = SimpleNamespace(description=BackendDescription("m", 100, 300))
    tokenizer = SimpleNamespace(chat_template=None, bos_token_id=None)
    app = build_app(backend, tokenizer, Vocabulary((b"a",), ("a",), frozenset()))  # type: ignore[arg-type]
    return {route.path for route in app.routes}  # type: ignore[attr-defined]
