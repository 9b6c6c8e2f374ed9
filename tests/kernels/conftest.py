"""Operators for the kernel tests: compiled once per run where there is a compiler, and always the reference."""

from pathlib import Path

import pytest
import torch
from ridgeline_contracts.clock import SystemClock
from ridgeline_kernels.cpu import CpuOps, load_cpu_ops
from ridgeline_kernels.cpu.build import CompileFailed, build_library, find_toolchain
from ridgeline_kernels.cpu.chooser import LinearChooser
from ridgeline_kernels.cpu.native import load_library
from ridgeline_kernels.cpu.ops import COMPILERS

THREADS = 2


@pytest.fixture(autouse=True)
def _same_numbers_each_run() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session")
def best_ops(kernel_cache: Path) -> CpuOps:
    """What this machine offers: the C library, or the reference where nothing compiles."""
    return load_cpu_ops(kernel_cache, THREADS)


@pytest.fixture(scope="session")
def reference_ops(kernel_cache: Path) -> CpuOps:
    return CpuOps(None, THREADS, choices=LinearChooser(kernel_cache, None, THREADS, clock=SystemClock()))


@pytest.fixture(
    params=[
        "native",
        "reference",
        pytest.param("16 lanes", marks=pytest.mark.long),
        pytest.param("4 lanes", marks=pytest.mark.long),
        pytest.param("16 lanes and bf16 dot products", marks=pytest.mark.long),
    ]
)
def ops(
    request: pytest.FixtureRequest, kernel_cache: Path, best_ops: CpuOps, reference_ops: CpuOps
) -> CpuOps:
    """Each way to compute; the lane counts are those of other machines, spelled in this one's instructions."""
    kind: str = request.param
    if kind == "native":
        return best_ops
    if kind == "reference":
        return reference_ops
    flags = [f"-DRL_LANES={kind.split()[0]}", "-Wno-psabi"]
    if "dot products" in kind:
        flags.append("-DRL_EMULATE_DOT")
    try:
        library = load_library(build_library(kernel_cache, find_toolchain(COMPILERS), extra_flags=flags))
    except CompileFailed as error:
        pytest.skip(f"NO C COMPILER HERE: {error}")
    return CpuOps(
        library, THREADS, choices=LinearChooser(kernel_cache, library, THREADS, clock=SystemClock())
    )
