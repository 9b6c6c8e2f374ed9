"""Compiles the C sources into a shared library, once per machine, compiler and source text."""

import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
COMPILE_FLAGS = (
    *("-std=gnu11", "-O3", "-march=native", "-fPIC", "-fopenmp"),
    *("-fvisibility=hidden", "-fno-math-errno", "-Wall", "-Wextra"),
)
LINK_FLAGS = ("-shared",)
COMPILE_TIMEOUT_S = 180.0


class CompileFailed(Exception):
    """No library could be built: the message names each compiler tried and what it said."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What a library is built with; all of it is part of the library's name."""

    compiler: str
    version: str
    openmp_library: str | None
    """The OpenMP runtime already loaded in this process: linking to it makes one thread pool with torch's."""


def loaded_openmp(maps_text: str) -> str | None:
    """The path of a loaded libgomp in the text of /proc/self/maps, or None."""
    for line in maps_text.splitlines():
        path = line.partition("/")[2]
        if path.rpartition("/")[2].startswith("libgomp"):
            return "/" + path
    return None


def cpu_identity(cpuinfo_text: str) -> str:
    """Model name and feature flags of the first CPU in the text of /proc/cpuinfo."""
    kept: dict[str, str] = {}
    for line in cpuinfo_text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"model name", "flags", "Features", "CPU part"}:
            kept.setdefault(name.strip(), value.strip())
    return "; ".join(f"{name}={value}" for name, value in sorted(kept.items())) or platform.processor()


def read_proc(name: str) -> str:
    """The text of a file under /proc, empty where there is none."""
    try:
        return Path("/proc", name).read_text(errors="replace")
    except OSError:
        return ""


def find_toolchain(compilers: Sequence[str]) -> Toolchain:
    """The first of `compilers` (program names or paths) that runs. Raises CompileFailed if none does."""
    for name in compilers:
        found = shutil.which(name)
        if found is None:
            continue
        said = subprocess.run(
            [found, "--version"], capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
        if said.returncode == 0:
            version = said.stdout.partition("\n")[0]
            return Toolchain(found, version, loaded_openmp(read_proc("self/maps")))
    raise CompileFailed(f"no C compiler found (tried {', '.join(compilers)}); install gcc or set CC")


def library_name(toolchain: Toolchain, *, extra_flags: Sequence[str] = ()) -> str:
    """File name of the library: a hash over sources, flags, compiler, OpenMP runtime and CPU."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    facts = [*COMPILE_FLAGS, *extra_flags, *LINK_FLAGS, toolchain.compiler, toolchain.version]
    facts += [toolchain.openmp_library or "", cpu_identity(read_proc("cpuinfo"))]
    digest.update("\0".join(facts).encode())
    return f"ridgeline-cpu-{digest.hexdigest()[:20]}.so"


def build_library(cache_dir: Path, toolchain: Toolchain, *, extra_flags: Sequence[str] = ()) -> Path:
    """Returns the path of the library in `cache_dir`, building it if it is not there.

    The file appears whole, by a rename: processes that build at once each make their own and the last one stays,
    while those that have loaded another keep theirs. Raises CompileFailed with the compiler's words.
    """
    target = cache_dir / library_name(toolchain, extra_flags=extra_flags)
    if target.exists():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=cache_dir) as folder:
        objects = {source: Path(folder, source.stem + ".o") for source in sorted(SOURCES.glob("*.c"))}
        flags = [*COMPILE_FLAGS, *extra_flags]
        _run_all(
            [[toolchain.compiler, *flags, "-c", str(source), "-o", str(to)] for source, to in objects.items()]
        )
        built = Path(folder, target.name)
        runtime = [toolchain.openmp_library] if toolchain.openmp_library else ["-fopenmp"]
        _run_all(
            [
                [
                    toolchain.compiler,
                    *LINK_FLAGS,
                    "-o",
                    str(built),
                    *map(str, objects.values()),
                    *runtime,
                    "-lm",
                ]
            ]
        )
        built.replace(target)
    return target


def _run_all(commands: Sequence[list[str]]) -> None:
    """Runs the commands side by side. Raises CompileFailed with the first failure, after all have ended."""
    started = [
        (command, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        for command in commands
    ]
    failures = [
        failure for command, process in started if (failure := _failure(command, process)) is not None
    ]
    if failures:
        raise CompileFailed(failures[0])


def _failure(command: list[str], process: "subprocess.Popen[str]") -> str | None:
    try:
        _, said = process.communicate(timeout=COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"{' '.join(command)} took longer than {COMPILE_TIMEOUT_S:.0f} s"
    if process.returncode != 0:
        return f"{' '.join(command)} ended with {process.returncode}: {said.strip()[-2000:]}"
    return None
