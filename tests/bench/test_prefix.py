"""The bench of the prefix cache runs at a small size, and its figures belong together."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "prefix.py"


def _run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *flags], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_small_cache_is_filled_looked_up_and_evicted() -> None:
    done = _run("--blocks", "600", "--prompt-tokens", "1024", "--lookups", "4", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # Whole prompts of 64 blocks.
    assert (found["blocks"], found["prompt_tokens"]) == (576, 1024)
    assert found["ratio"] == pytest.approx(found["lookup_us"] / found["walk_us"])
    assert min(found["inserted_a_s"], found["evicted_a_s"], found["hashing_us"]) > 0
    assert "blocks are in" in done.stderr


def test_a_prompt_without_a_block_is_refused() -> None:
    done = _run("--prompt-tokens", "8")
    assert done.returncode == 2
    assert "prompts of 16 tokens" in done.stderr
