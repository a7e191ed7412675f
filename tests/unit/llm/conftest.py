"""One torch thread for all tests of the LLM's rank: they share the machine with others."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)
