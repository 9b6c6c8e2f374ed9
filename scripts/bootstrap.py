#!/usr/bin/env python3
"""Makes the virtual environment that every other `make` target runs in: `make setup`.

Standard library only, and written so that a Python too old for Ridgeline can still read it and say so.
Running it again repairs what is there; the Makefile calls it only when a pinned file has changed.
"""

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
# Thousands of modules that nothing here imports: not worth a minute of compiling ahead.
NOT_COMPILED = r"/(tests?|testing|transformers/models)/"


class Stop(Exception):
    """Ends the set-up with one clear message for the person at the terminal."""


def check_python():
    if sys.version_info < MINIMUM_PYTHON:
        raise Stop(
            "python3 is Python %d.%d and Ridgeline needs 3.11 or newer. "
            "Name another one: make setup PYTHON=python3.11" % sys.version_info[:2]
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        raise Stop(
            "this Python cannot make virtual environments (no module venv or ensurepip). "
            "Debian and Ubuntu: apt-get install python3-venv"
        ) from None


class Progress:
    """One line a stage; on a terminal its counter is rewritten in place, else it speaks every 20 seconds."""

    def __init__(self, stages):
        self.stages = stages
        self.stage = 0
        self.started_s = time.monotonic()
        self.spoke_s = 0.0
        self.live = sys.stdout.isatty()

    def begin(self, text):
        self.stage += 1
        self.text = "[%d/%d] %s" % (self.stage, self.stages, text)
        self._say(self.text)

    def update(self, note):
        if self.live or time.monotonic() - self.spoke_s >= HEARTBEAT_S:
            self._say("%s: %s, %.0f s" % (self.text, note, self.elapsed_s()))

    def end(self, note):
        self._say("%s: %s" % (self.text, note))
        if self.live:
            print(flush=True)

    def elapsed_s(self):
        return time.monotonic() - self.started_s

    def _say(self, line):
        self.spoke_s = time.monotonic()
        if self.live:
            print("\r\033[K" + line, end="", flush=True)
        else:
            print(line, flush=True)


def run(command, progress, expected=None, may_fail=False):
    """Runs `command`, turning pip's chatter into progress; raises Stop with its last lines when it fails."""
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PYTHONUNBUFFERED="1")
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, universal_newlines=True
    )
    lines = queue.Queue()

    def read():
        for line in child.stdout:
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    seen, tail, note = 0, [], "at work"
    while True:
        try:
            line = lines.get(timeout=0.5)
        except queue.Empty:
            progress.update(note)
            continue
        if line is None:
            break
        tail = [*tail[1 - TAIL_LINES :], line]
        words = line.split()
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            seen += 1
            note = "%d of %d looked up" % (seen, expected) if expected else "looking up " + words[1]
        elif line.lstrip().startswith("Downloading "):
            note = "downloading " + " ".join(words[1:])
        elif line.startswith("Installing collected packages"):
            note = "installing"
        progress.update(note)
    if child.wait() != 0 and not may_fail:
        raise Stop("\n%s\nfailed: %s" % ("\n".join(tail), " ".join(command)))


def make_environment(venv_dir):
    """Returns the environment's interpreter; makes the environment anew where it is missing or broken."""
    python = os.path.join(venv_dir, "bin", "python")
    sound = os.path.exists(python) and (
        subprocess.call(
            [python, "-c", "import pip, sys; sys.exit(sys.version_info < (3, 11))"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        == 0
    )
    if not sound:
        made = subprocess.run(
            [sys.executable, "-m", "venv", "--clear", venv_dir],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
        )
        if made.returncode != 0:
            raise Stop("%s\nfailed: python3 -m venv %s" % (made.stdout.strip(), venv_dir))
    return python


def site_packages(python):
    command = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return subprocess.check_output(command, universal_newlines=True).strip()


def setup(root, venv_dir, stamp):
    lock = os.path.join(root, "requirements", "ci.lock")
    torch = os.path.join(root, "requirements", "torch.txt")
    with open(lock, encoding="utf-8") as file:
        packages = sum(1 for line in file if line[:1].isalnum())

    progress = Progress(stages=6)
    progress.begin("environment %s" % os.path.relpath(venv_dir, root))
    python = make_environment(venv_dir)
    # pip would compile on one core, and all of it; the fifth stage does better.
    pip = [python, "-m", "pip", "install", "--no-compile"]
    progress.end("Python %d.%d.%d" % sys.version_info[:3])

    progress.begin("%d locked packages" % packages)
    run([*pip, "--no-deps", "--require-hashes", "-r", lock], progress, packages)
    progress.end("installed, %.0f s" % progress.elapsed_s())

    progress.begin("torch")
    run([*pip, "-r", torch], progress)
    progress.end("installed, %.0f s" % progress.elapsed_s())

    progress.begin("ridgeline, editable")
    run([*pip, "--no-deps", "--no-build-isolation", "-e", root], progress)
    progress.end("installed")

    progress.begin("byte code")
    compiled = [python, "-m", "compileall", "-qq", "-j", "0", "-x", NOT_COMPILED, site_packages(python)]
    run(compiled, progress, may_fail=True)  # some packages ship templates that are not Python
    progress.end("compiled, %.0f s" % progress.elapsed_s())

    progress.begin("every dependency is met")
    run([python, "-m", "pip", "check"], progress)
    progress.end("yes")

    # The root goes into the stamp: a copied checkout must not run the code that it was copied from.
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(root)
    print("set up in %.0f s" % progress.elapsed_s(), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", required=True, help="folder of the environment")
    parser.add_argument("--stamp", required=True, help="file written once everything is installed")
    arguments = parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        check_python()
        setup(root, os.path.abspath(arguments.venv), arguments.stamp)
    except Stop as stop:
        print("\nsetup: %s" % stop, file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
