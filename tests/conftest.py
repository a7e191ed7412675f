"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The embedded model's folder; unpacked on first use."""
    from cluster.models import resolve_model

    return resolve_model("smollm2-135m-instruct")
