"""The demo as a newcomer runs it, with the real model."""

import json
import subprocess
import sys

import pytest


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_demo_shows_a_prefix_cache_hit_and_leaves_nothing_behind() -> None:
    command = [sys.executable, "-m", "ridgeline_cli", "demo", "--json", "--max-tokens", "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout)
    first, again = held["requests"]
    assert held["problem"] is None
    assert first["cached_tokens"] == 0
    assert again["cached_tokens"] > first["prompt_tokens"] // 2
    assert again["engine_ttft_ms"] <= again["gateway_ttft_ms"] <= again["client_ttft_ms"]
    assert again["quota_left"] > 0
