"""Compiling the C sources into the cache folder, and doing without a compiler."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from ridgeline_kernels.cpu import CpuOps, load_cpu_ops
from ridgeline_kernels.cpu.build import (
    CompileFailed,
    Toolchain,
    build_library,
    cpu_identity,
    find_toolchain,
    library_name,
    loaded_openmp,
)


def script(folder: Path, body: str) -> str:
    """A stand-in for a compiler: a shell script."""
    path = folder / "fakecc"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_compiler_the_reference_is_used_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ops = load_cpu_ops(tmp_path, 1, compilers=("no-such-compiler",))
    assert not ops.native
    assert "no C compiler found (tried no-such-compiler)" in caplog.text
    x = torch.randn(3, 8)
    assert ops.pack_linear(torch.eye(8))(x).equal(x)


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = script(tmp_path, 'test "$1" = --version && exit 0; echo broken header >&2; exit 3')
    cache = tmp_path / "cache"
    ops = load_cpu_ops(cache, 1, compilers=(compiler,))
    assert not ops.native
    assert "ended with 3: broken header" in caplog.text
    assert list(cache.iterdir()) == []


def test_a_library_that_cannot_be_loaded_falls_back_to_the_reference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writes_rubbish = (
        'test "$1" = --version && exit 0; for last; do :; done; while [ "$1" != -o ]; do shift; done'
    )
    compiler = script(tmp_path, writes_rubbish + '; echo rubbish > "$2"')
    ops = load_cpu_ops(tmp_path / "cache", 1, compilers=(compiler,))
    assert not ops.native
    assert "plain torch" in caplog.text


def test_a_second_load_does_not_compile_again(best_ops: CpuOps, kernel_cache: Path) -> None:
    libraries = {path: path.stat().st_mtime_ns for path in kernel_cache.glob("*.so")}
    again = load_cpu_ops(kernel_cache, 1)
    assert again.native == best_ops.native
    assert {path: path.stat().st_mtime_ns for path in kernel_cache.glob("*.so")} == libraries


def test_builds_at_the_same_time_end_in_one_whole_library(tmp_path: Path) -> None:
    body = 'test "$1" = --version && exit 0; while [ "$1" != -o ]; do shift; done; echo whole > "$2"'
    toolchain = find_toolchain((script(tmp_path, body),))
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: build_library(cache, toolchain), range(8)))
    assert list(cache.iterdir()) == list(paths)
    assert paths.pop().read_text() == "whole\n"


def test_the_name_changes_with_whatever_the_library_depends_on() -> None:
    toolchain = Toolchain("/usr/bin/cc", "cc 1.0", None)
    names = {
        library_name(toolchain),
        library_name(toolchain, extra_flags=("-DX",)),
        library_name(Toolchain("/usr/bin/cc", "cc 2.0", None)),
        library_name(Toolchain("/usr/bin/cc", "cc 1.0", "/lib/libgomp.so.1")),
    }
    assert len(names) == 4
    assert library_name(toolchain) in names


def test_a_missing_compiler_names_what_was_tried() -> None:
    with pytest.raises(CompileFailed, match=r"tried a-cc, b-cc\); install gcc or set CC"):
        find_toolchain(("a-cc", "b-cc"))


@pytest.mark.parametrize(
    ("maps", "path"),
    [
        pytest.param(
            "7f-80 r-xp 00 08:01 1   /a b/libgomp-1a2b.so.1.0.0\n", "/a b/libgomp-1a2b.so.1.0.0", id="found"
        ),
        pytest.param("7f-80 r-xp 00 08:01 1   /x/libgompish/libm.so\n7f-80 rw-p\n", None, id="not-loaded"),
    ],
)
def test_the_openmp_runtime_of_this_process_is_found(maps: str, path: str | None) -> None:
    assert loaded_openmp(maps) == path


def test_the_cpu_is_named_by_model_and_flags_of_its_first_core() -> None:
    text = "processor: 0\nmodel name\t: X 1\nflags\t\t: sse avx2\n\nprocessor: 1\nmodel name\t: Y\nflags\t\t: sse\n"
    assert cpu_identity(text) == "flags=sse avx2; model name=X 1"
    assert cpu_identity(text) != cpu_identity(text.replace("avx2", "avx512f"))
