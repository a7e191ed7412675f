"""The native kernels compiled for lesser CPUs than this one: no warnings, and the same results.

With few optimisations, which compile in a tenth of the time: it is the source that is in question,
where it chooses by the instructions that there are.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from actors.decoder.native import build, draws, kernels
from tests.unit.llm import test_draws as of_draws
from tests.unit.llm import test_native as of_decoders

COMPILER = shutil.which("c++")
STRICT = ("-O1", "-Wall", "-Wextra", "-Werror")
CPUS = {
    "avx2": ("-mavx2", "-mfma", "-mno-avx512f"),
    "no-avx": ("-march=x86-64-v2",),
    "no-vbmi": ("-march=cooperlake",),
}
NEEDED = {
    "avx2": {"avx2", "fma"},
    "no-avx": {"sse4_2", "popcnt", "ssse3"},
    "no-vbmi": {"avx512_bf16", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512_vnni"},
}

pytestmark = pytest.mark.skipif(
    COMPILER is None or platform.machine() != "x86_64", reason="no compiler for x86 here"
)


def can_run(cpu: str) -> bool:
    """True if this machine has the instructions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return NEEDED[cpu] <= set(next(line for line in lines if line.startswith("flags")).split())


@pytest.fixture(scope="module", params=CPUS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels for another CPU; a warning is an error."""
    assert COMPILER is not None
    path = tmp_path_factory.mktemp("kernels") / f"{request.param}.so"
    build.compile_kernels(COMPILER, path, (*STRICT, *CPUS[request.param]))
    return path


@pytest.fixture
def in_use(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Decoders and draws run on them."""
    if not can_run(library.stem):
        pytest.skip(f"this machine has no {library.stem}")
    loaded = ctypes.CDLL(str(library))
    for module in (kernels, draws):
        monkeypatch.setattr(module, "native_library", lambda: loaded)
    draws._library.cache_clear()
    yield
    draws._library.cache_clear()


def test_they_compile_without_a_warning(library: Path) -> None:
    assert library.stat().st_size > 0


@pytest.mark.usefixtures("in_use")
@pytest.mark.parametrize("dtype", of_decoders.TOLERANCE)
def test_a_decoder_computes_the_same_within_rounding(dtype: torch.dtype) -> None:
    for int8 in (False, True):
        of_decoders.test_it_computes_what_the_torch_decoder_computes(
            dtype, int8, *of_decoders.SHAPES[0]
        )
    of_decoders.test_any_number_of_rows(dtype, 29)
    of_decoders.test_product_is_not_rounded_to_the_type_of_its_elements(dtype, 31, 48, True)
    of_decoders.test_any_int8_is_itself(dtype)


@pytest.mark.usefixtures("in_use")
def test_draws_and_noise_are_the_same() -> None:
    of_draws.test_the_best_of_each_row(250)
    of_draws.test_a_draw_is_the_first_of_the_largest(33)
    of_draws.test_native_noise_is_the_noise(-5, 7, 2)
