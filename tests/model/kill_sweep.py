"""Run as a script: kills a fetch at one file operation after another and lets it finish afterwards.

    python kill_sweep.py SCRATCH (gguf|folder|wheel|force) STRIDE

Each kill is a SIGKILL that a child sends itself from an audit hook, just before the k-th open, rename, mkdir,
link or removal inside the cache. Prints one JSON object: how many operations a fetch has, how many kills were
tried, and for how many of them a finished-looking model was wrong or the next fetch gave other hashes.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline_cli.model.cache import ModelCache
from ridgeline_cli.model.catalogue import KnownModel
from ridgeline_cli.model.download import Pip
from ridgeline_cli.model.fetch import Fetcher
from ridgeline_cli.model.progress import PlainProgress
from ridgeline_cli.model.verify import verify_model
from ridgeline_testing.tiny_gguf import tiny_config, tiny_tensors, write_tiny_gguf
from ridgeline_testing.tiny_llama import build_tiny_llama
from ridgeline_testing.tiny_wheel import build_tiny_wheel, offline_pip_environment

IN_THE_CACHE = {"open", "os.rename", "os.mkdir", "os.symlink", "os.truncate"}
ANYWHERE = {"os.remove", "os.rmdir", "subprocess.Popen"}  # removals name a file relative to an open folder
QUIET = PlainProgress(lambda line: None)


class Sweep:
    """One kind of fetch, repeated with a kill at each of its operations."""

    def __init__(self, scratch: Path, kind: str) -> None:
        self.kind = kind
        self.scratch = scratch
        self.catalogue: Mapping[str, KnownModel] = {}
        self.asked = self._make_source()

    def fetcher(self, home: Path) -> Fetcher:
        pip = Pip(python=sys.executable, environ=offline_pip_environment(self.scratch))
        return Fetcher(cache=ModelCache(home), catalogue=self.catalogue, pip=pip, progress=QUIET)

    def run(self, home: Path, *, force: bool = False) -> Any:
        return self.fetcher(home).fetch(self.asked, name="model", force=force).folder.files

    def killed_run(self, home: Path, kill_at: int) -> int:
        """Operations that happened before the child ended: all of them, unless it was killed at `kill_at`."""
        counts = home.with_suffix(".count")
        pid = os.fork()
        if pid == 0:
            self._count_and_die(home, counts, kill_at)
            self.run(home, force=self.kind == "force")
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, f"the child ended with {status}"
        return counts.stat().st_size

    def _count_and_die(self, home: Path, counts: Path, kill_at: int) -> None:
        descriptor = os.open(counts, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        inside, done = str(home), 0

        def on_event(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal done
            if event in ANYWHERE or (event in IN_THE_CACHE and inside in str(arguments[:2])):
                done += 1
                if done == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                os.write(descriptor, b".")

        sys.addaudithook(on_event)

    def _make_source(self) -> str:
        if self.kind == "folder":
            return str(build_tiny_llama(self.scratch / "hf", vocabulary_tokens=300))
        config = tiny_config(layers=1)
        path = write_tiny_gguf(self.scratch / "tiny.gguf", config, tiny_tensors(config), matrix_format="Q4_1")
        if self.kind != "wheel":
            return str(path)
        known = build_tiny_wheel(self.scratch, path)
        self.catalogue = {known.name: known}
        return known.name


def sweep(scratch: Path, kind: str, stride: int) -> dict[str, int]:
    this = Sweep(scratch, kind)
    expected = this.run(scratch / "whole")
    prepared = (lambda home: this.run(home)) if kind == "force" else (lambda home: None)
    home = scratch / "counted"
    prepared(home)
    operations = this.killed_run(home, kill_at=0)
    found = {"operations": operations, "kills": 0, "wrong_model": 0, "other_hashes": 0}
    for kill_at in range(1, operations + 1, stride):
        home = scratch / f"killed-{kill_at}"
        prepared(home)
        assert this.killed_run(home, kill_at) == kill_at - 1, "the operations are not the same in each run"
        found["kills"] += 1
        cache = ModelCache(home)
        if any(entry.state == "ready" for entry in cache.entries()):
            found["wrong_model"] += bool(verify_model(cache, "model", progress=QUIET).problems)
        found["other_hashes"] += this.run(home) != expected
        found["other_hashes"] += bool(list((home / "staging").iterdir()))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(sweep(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))) + "\n")
