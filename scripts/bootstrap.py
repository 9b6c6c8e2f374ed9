#!/usr/bin/env python3
"""Makes the virtual environment that every other `make` target runs in: `make setup`.

Standard library only, and readable by Pythons too old for Ridgeline, so that they can say so (3.7 and newer).
Running it again repairs what is there; the Makefile calls it only when a pinned file has changed.
"""

from __future__ import annotations

import argparse
import os
import queue
import subprocess
import sys
import threading
import time

MINIMUM_PYTHON = (3, 11)
HEARTBEAT_S = 20.0
TAIL_LINES = 30
# Imported once at set-up, which compiles what they really load; compiling all of it ahead takes minutes.
FIRST_IMPORTS = (
    "fastapi, gguf, grpc, httpx, hypothesis, numpy, openai, prometheus_client, pytest, rich, safetensors, tokenizers, "
    "torch, transformers.models.llama.modeling_llama, typer, uvicorn"
)


class Stop(Exception):
    """Ends the set-up with one clear message for the person at the terminal."""


class Progress:
    """One line a stage; on a terminal it is rewritten in place, else it speaks every 20 seconds."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._stage = 0
        self._text = ""
        self._started_s = time.monotonic()
        self._spoke_s = 0.0
        self._live = sys.stdout.isatty()

    def begin(self, text: str) -> None:
        self._stage += 1
        self._text = f"[{self._stage}/{self._stages}] {text}"
        self._say(self._text)

    def update(self, note: str) -> None:
        if self._live or time.monotonic() - self._spoke_s >= HEARTBEAT_S:
            self._say(f"{self._text}: {note}, {self.elapsed_s():.0f} s")

    def end(self, note: str) -> None:
        self._say(f"{self._text}: {note}, {self.elapsed_s():.0f} s")
        if self._live:
            print(flush=True)

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _say(self, line: str) -> None:
        self._spoke_s = time.monotonic()
        if self._live:
            print("\r\033[K" + line, end="", flush=True)
        else:
            print(line, flush=True)


def check_python() -> None:
    if sys.version_info < MINIMUM_PYTHON:
        raise Stop(
            f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}, "
            "Ridgeline needs 3.11 or newer. Name another one: make setup PYTHON=python3.11"
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        raise Stop(
            "this Python cannot make virtual environments (no module venv or ensurepip). "
            "Debian and Ubuntu: apt-get install python3-venv"
        ) from None


def make_environment(venv_dir: str) -> str:
    """Returns the environment's interpreter; makes the environment anew where it is missing or broken."""
    python = os.path.join(venv_dir, "bin", "python")
    probe = [python, "-c", "import pip, sys; sys.exit(sys.version_info < (3, 11))"]
    if os.path.exists(python) and subprocess.run(probe, stderr=subprocess.DEVNULL).returncode == 0:
        return python
    command = [sys.executable, "-m", "venv", "--clear", venv_dir]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode != 0:
        raise Stop(f"{made.stdout.strip()}\nfailed: {' '.join(command)}")
    return python


def run(command: list[str], progress: Progress) -> None:
    """Runs `command` with its chatter turned into progress; raises Stop with its last lines when it fails."""
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PYTHONUNBUFFERED="1")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True
    )
    lines: queue.Queue[str | None] = queue.Queue()

    assert child.stdout is not None
    output = child.stdout

    def read() -> None:
        for line in output:
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    looked_up, note = 0, "at work"
    tail: list[str] = []
    while True:
        try:
            line = lines.get(timeout=0.5)
        except queue.Empty:
            progress.update(note)
            continue
        if line is None:
            break
        tail = [*tail[1 - TAIL_LINES :], line]
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            looked_up += 1
            note = f"{looked_up} looked up"
        elif line.lstrip().startswith("Downloading "):
            note = line.strip().replace("Downloading", "downloading", 1)
        elif line.startswith("Installing collected packages"):
            note = "installing"
        progress.update(note)
    output.close()
    if child.wait() != 0:
        raise Stop("\n".join([*tail, f"failed: {' '.join(command)}"]))


def setup(root: str, venv_dir: str, stamp: str) -> None:
    """Installs what the lock, torch.txt and pyproject.toml name, checks it, and writes the stamp."""
    lock = os.path.join(root, "requirements", "ci.lock")
    torch = os.path.join(root, "requirements", "torch.txt")
    with open(lock, encoding="utf-8") as file:
        locked = sum(line[:1].isalnum() for line in file)

    progress = Progress(stages=6)
    progress.begin(f"environment {os.path.relpath(venv_dir, root)}")
    python = make_environment(venv_dir)
    progress.end(f"Python {'.'.join(map(str, sys.version_info[:3]))}")

    install = [python, "-m", "pip", "install", "--no-compile"]

    progress.begin(f"{locked} locked packages")
    run([*install, "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", lock], progress)
    progress.end("installed")

    progress.begin("torch")
    run([*install, "-r", torch], progress)
    progress.end("installed")

    progress.begin("ridgeline, editable")
    run([*install, "--no-deps", "--no-build-isolation", "-e", root], progress)
    progress.end("installed")

    progress.begin("first imports")
    run([python, "-c", f"import {FIRST_IMPORTS}"], progress)
    progress.end("they load")

    progress.begin("every dependency is met")
    run([python, "-m", "pip", "check"], progress)
    progress.end("yes")

    # The root goes into the stamp: a copied checkout must not run the code that it was copied from.
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(root)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--venv", required=True, help="folder of the environment")
    parser.add_argument("--stamp", required=True, help="file written once everything is installed")
    arguments = parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        check_python()
        setup(root, os.path.abspath(arguments.venv), arguments.stamp)
    except Stop as stop:
        print(f"\nsetup: {stop}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
