"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import ray_api
from deploy import environment

# Ray reads its settings when it is first imported, which some unit test may do.
ray_api.prepare_environment()
environment.prepare_environment()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The embedded model's folder; unpacked on first use."""
    from cluster.models import resolve_model

    return resolve_model("smollm2-135m-instruct")
