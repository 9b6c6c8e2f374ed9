"""Defects planted in the C source of the sampler: the comparison with the definition finds each."""

import ctypes
import dataclasses
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.sampler_oracle import choose, kept_weights
from ridgeline_kernels.cpu import CpuTokens, DrawColumns
from ridgeline_kernels.cpu.build import SOURCES, CompileFailed, find_toolchain
from ridgeline_kernels.cpu.native import NativeLibrary, bind
from ridgeline_kernels.cpu.ops import COMPILERS

NEUTRAL = SamplingParams(max_tokens=8)
CUTS = [
    dataclasses.replace(NEUTRAL, **changes)
    for changes in (
        {},
        {"temperature": 0.5, "top_k": 7},
        {"temperature": 1.5, "top_p": 0.6},
        {"min_p": 0.2},
        {"temperature": 1.7, "top_k": 30, "top_p": 0.8, "min_p": 0.03},
    )
]
DEFECTS = [
    pytest.param("found += value >= least;", "found += value > least;", id="ties-cut"),
    pytest.param(
        "if (*above + mass[bin] >= target)", "if (*above + mass[bin] > target)", id="one-too-many-by-count"
    ),
    pytest.param("counted ? share : share * all", "counted ? share + 1 : share * all", id="top-k-off-by-one"),
    pytest.param(
        "counted ? share : share * all", "counted ? share : share", id="top-p-of-the-best-not-of-the-sum"
    ),
    pytest.param("(logits[i] - best) / temperature", "(logits[i] - best)", id="temperature-ignored"),
    pytest.param("weights[i] >= min_p ?", "weights[i] > min_p * 2 ?", id="min-p-of-something-else"),
    pytest.param(
        "const double target = uniform * total", "const double target = uniform", id="uniform-not-scaled"
    ),
    pytest.param(
        "if (cumulative > target) break;", "if (cumulative >= target) break;", id="u-0-takes-one-too-early"
    ),
    pytest.param("kept->listed ? kept->id[chosen] : chosen", "chosen", id="place-instead-of-id"),
    pytest.param(
        "job->rows[index] * job->vocab;\n    for", "index * job->vocab;\n    for", id="rows-mixed-up"
    ),
    pytest.param(
        "!(value > values[found - 1])", "!(value >= values[found - 1])", id="most-likely-by-highest-id"
    ),
]
VOCAB = 1300


@pytest.fixture(scope="module")
def compiler() -> str:
    try:
        return find_toolchain(COMPILERS).compiler
    except CompileFailed:
        pytest.skip("NO C COMPILER HERE")


def built(compiler: str, folder: Path, *, old: str = "", new: str = "") -> CpuTokens:
    """The sampler's source alone, with one text in it replaced."""
    source = (SOURCES / "sampling.c").read_text()
    assert old in source, "the defect's text is not there any more: plant it anew"
    for header in SOURCES.glob("*.h"):
        (folder / header.name).write_text(header.read_text())
    planted, team, library = folder / "sampling.c", SOURCES / "team.c", folder / "planted.so"
    planted.write_text(source.replace(old, new) if old else source)
    flags = ("-std=gnu11", "-O1", "-march=native", "-fPIC", "-fopenmp", "-shared", f"-I{SOURCES}")
    command = [compiler, *flags, str(planted), str(team), "-o", str(library), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    functions = bind(ctypes.CDLL(str(library)), ("draw", "draw_scratch", "most_likely"))
    return CpuTokens(cast(NativeLibrary, SimpleNamespace(**functions)), threads=2)


def compare_with_the_definition(tokens: CpuTokens) -> None:
    """Raises AssertionError at the first choice that is not the definition's."""
    random = np.random.default_rng(5)
    rows = np.arange(40)[::-1].copy()
    for sampling in CUTS:
        logits = np.round(random.standard_normal((40, VOCAB)) * 6).astype(np.float32) / 4
        logits[::7, : VOCAB // 2] = -np.inf
        uniforms = np.concatenate([[0.0] * 10, random.random(29), [0.5]])
        # The last row drawn: two tokens of equal weight, and a number exactly between them.
        logits[0] = -np.inf
        logits[0, [3, 8]] = 0.0
        columns = DrawColumns(
            np.full(40, sampling.temperature, dtype=np.float32),
            np.full(40, sampling.top_k),
            np.full(40, sampling.top_p),
            np.full(40, sampling.min_p),
            uniforms,
        )
        best = torch.from_numpy(logits[rows].max(axis=1))
        found: Any = tokens.draw(torch.from_numpy(logits), best, rows, columns).tolist()
        picked = zip(logits[rows], uniforms, strict=True)
        assert found == [choose(kept_weights(row, sampling), float(u)) for row, u in picked]
        ids, _ = tokens.most_likely(torch.from_numpy(logits), rows, 5)
        np.testing.assert_array_equal(ids, np.argsort(-logits[rows], axis=1, kind="stable")[:, :5])


def test_the_source_as_it_stands_is_the_definition(compiler: str, tmp_path: Path) -> None:
    compare_with_the_definition(built(compiler, tmp_path))


@pytest.mark.parametrize(("old", "new"), DEFECTS)
def test_each_planted_defect_is_caught(compiler: str, tmp_path: Path, old: str, new: str) -> None:
    tokens = built(compiler, tmp_path, old=old, new=new)
    with pytest.raises(AssertionError):
        compare_with_the_definition(tokens)
