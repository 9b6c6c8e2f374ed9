"""The comparison as it is run, our engine and all, with a stand-in where vLLM would be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ridgeline_cli.__main__ import read_context
from ridgeline_cli.model.commands import open_fetcher, stderr_progress

BENCH = Path(__file__).parents[2] / "bench"
STAND_IN = """#!{python}
import json, sys
print(json.dumps({{"ready": True, "version": "stand-in"}}), flush=True)
for line in sys.stdin:
    work = json.loads(line)
    tokens = len(work["prompts"]) * work["output_tokens"]
    print(json.dumps({{"seconds": tokens / 4.0, "output_tokens": tokens}}), flush=True)
"""


@pytest.mark.long
def test_quick_prints_one_object_with_a_row_for_the_peer(tmp_path: Path) -> None:
    model = (
        open_fetcher(read_context(os.environ), stderr_progress()).fetch("smollm2-135m-instruct").folder.path
    )
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN.format(python=sys.executable))
    stand_in.chmod(0o755)
    command = [sys.executable, str(BENCH / "engine_vs_vllm.py"), "--quick", "--json", "--modes", "eager"]
    command += ["--vllm-python", str(stand_in), "--model", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout)
    (row,) = held["rows"]
    assert (held["bench"], row["peer_name"], row["unit"]) == ("engine_vs_vllm", "vllm-eager", "tokens/s")
    assert row["ours"] > 0
    assert row["peer"] == 4.0
    assert row["ratio"] == pytest.approx(row["ours"] / 4.0, rel=1e-3)
    assert held["versions"]["vllm-eager"] == "stand-in"
