"""The start-up ledger against what the kernel counted: a core with a full pool on the real small model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ridgeline_testing.smollm2 import smollm2_folder

STATED_WITHIN = 0.1
SCRIPT = Path(__file__).with_name("full_core.py")
KV_TOKEN_BYTES = {"bf16": 23_040, "fp32": 46_080}


def run_full(*, dtype: str, weights: str, batch: int, prompt_tokens: int) -> str:
    """What a core of its own process logged and counted; its pool has room for the batch and no more."""
    kv_bytes = batch * (prompt_tokens + 32) * KV_TOKEN_BYTES[dtype]
    cache = Path.home() / ".cache" / "ridgeline" / "kernels"
    command = [
        sys.executable,
        SCRIPT,
        smollm2_folder(),
        cache,
        dtype,
        weights,
        batch,
        prompt_tokens,
        kv_bytes,
    ]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stderr


@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    ("dtype", "weights", "batch", "prompt_tokens"),
    [
        pytest.param("bf16", "auto", 4, 250, id="bf16-small-steps-loading-is-the-peak"),
        pytest.param("bf16", "auto", 24, 700, id="bf16-a-full-pool-is-the-peak"),
        pytest.param("fp32", "auto", 8, 300, id="fp32"),
        pytest.param("bf16", "int8", 8, 300, id="int8"),
    ],
)
def test_the_peak_of_memory_is_what_the_ledger_says(
    dtype: str, weights: str, batch: int, prompt_tokens: int
) -> None:
    told = run_full(dtype=dtype, weights=weights, batch=batch, prompt_tokens=prompt_tokens)
    guessed_mb, stated_mb = (float(size) for size in re.findall(r"peak +([\d.]+) MB", told))
    (counted_mb,) = (float(size) for size in re.findall(r"counted ([\d.]+) MB", told))
    assert stated_mb == pytest.approx(counted_mb, rel=STATED_WITHIN)
    assert guessed_mb > counted_mb * (1 - STATED_WITHIN)
