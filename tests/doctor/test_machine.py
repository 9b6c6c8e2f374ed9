"""The machine topic: readers of the kernel's texts, the dtype, the findings."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from ridgeline_doctor.commands import machine_lines, machine_object
from ridgeline_doctor.finding import Finding, Severity, ranked
from ridgeline_doctor.machine_evidence import (
    GpuEvidence,
    MachineEvidence,
    parse_byte_count,
    parse_cpu_quota,
    parse_cpuinfo,
    parse_meminfo,
    parse_nvidia_smi,
)
from ridgeline_doctor.machine_findings import choose_dtype, machine_findings
from ridgeline_doctor.machine_probe import probe_machine

GIB = 1024**3
H100 = GpuEvidence("NVIDIA H100 80GB HBM3", 81_559 * 1024**2, (9, 0), "575.57")
LAPTOP = MachineEvidence(
    architecture="x86_64",
    cpu_model="a laptop's CPU",
    cores=8,
    quota_cores=None,
    flags=frozenset({"avx2", "fma"}),
    memory_total_bytes=16 * GIB,
    memory_available_bytes=10 * GIB,
    c_compiler="/usr/bin/cc",
)


@pytest.mark.parametrize(
    ("machine", "dtype", "word"),
    [
        pytest.param(LAPTOP, "bf16", "C kernels", id="avx2-with-a-compiler"),
        pytest.param(replace(LAPTOP, c_compiler=None), "fp32", "emulates", id="avx2-without-one"),
        pytest.param(
            replace(LAPTOP, c_compiler=None, flags=frozenset({"avx512_bf16"})),
            "bf16",
            "AVX-512",
            id="avx512-bf16",
        ),
        pytest.param(replace(LAPTOP, flags=frozenset({"amx_bf16", "avx512_bf16"})), "bf16", "AMX", id="amx"),
        pytest.param(replace(LAPTOP, gpus=(H100,), c_compiler=None), "bf16", "H100", id="gpu"),
        pytest.param(
            replace(LAPTOP, gpus=(replace(H100, name="Tesla T4", compute_capability=(7, 5)),)),
            "fp32",
            "T4",
            id="gpu-before-bf16",
        ),
    ],
)
def test_auto_takes_the_dtype_whose_products_run_at_full_speed(
    machine: MachineEvidence, dtype: str, word: str
) -> None:
    choice = choose_dtype(machine)
    assert choice.dtype == dtype
    assert word in choice.reason


@pytest.mark.parametrize(
    ("machine", "topics"),
    [
        pytest.param(LAPTOP, ["dtype"], id="nothing-to-mend"),
        pytest.param(replace(LAPTOP, c_compiler=None), ["compiler", "dtype"], id="no-compiler"),
        pytest.param(replace(LAPTOP, c_compiler=None, gpus=(H100,), gpu_device_files=1), ["dtype"], id="gpu"),
        pytest.param(replace(LAPTOP, gpu_device_files=1), ["gpu", "dtype"], id="a-gpu-that-is-not-reported"),
        pytest.param(replace(LAPTOP, flags=frozenset()), ["isa", "dtype"], id="no-avx2"),
        pytest.param(
            replace(LAPTOP, architecture="aarch64", flags=frozenset()),
            ["dtype"],
            id="avx2-is-not-asked-of-arm",
        ),
        pytest.param(replace(LAPTOP, cores=1), ["cores", "dtype"], id="one-core"),
        pytest.param(replace(LAPTOP, quota_cores=2.5), ["cores", "dtype"], id="a-cpu-limit"),
        pytest.param(
            replace(LAPTOP, c_compiler=None, memory_available_bytes=GIB),
            ["memory", "compiler", "dtype"],
            id="problems-before-warnings",
        ),
    ],
)
def test_findings_name_what_holds_a_machine_back_worst_first(
    machine: MachineEvidence, topics: list[str]
) -> None:
    found = machine_findings(machine)
    assert [finding.topic for finding in found] == topics
    assert all(finding.cause and finding.evidence and finding.next_check for finding in found)


def test_ranking_keeps_the_order_inside_a_severity() -> None:
    named = [Finding(topic, severity, "", "", "") for topic, severity in _MIXED]
    assert [finding.topic for finding in ranked(named)] == ["b", "d", "a", "c"]


_MIXED = [
    ("a", Severity.INFO),
    ("b", Severity.PROBLEM),
    ("c", Severity.INFO),
    ("d", Severity.WARNING),
]


@pytest.mark.parametrize(
    ("cores", "quota_cores", "usable"),
    [(8, None, 8), (8, 2.5, 2), (2, 4.0, 2), (8, 0.5, 1)],
)
def test_usable_cores_are_whole_and_at_least_one(cores: int, quota_cores: float | None, usable: int) -> None:
    assert replace(LAPTOP, cores=cores, quota_cores=quota_cores).usable_cores == usable


def test_cpuinfo_gives_the_first_processors_model_and_the_features_that_matter() -> None:
    text = "processor\t: 0\nmodel name\t: One\nflags\t\t: fpu avx2 fma\n\nmodel name: Two\nflags: amx_bf16"
    cpu = parse_cpuinfo(text)
    assert cpu.model == "One"
    assert cpu.flags == {"avx2", "fma"}


def test_texts_of_another_kind_give_nothing_and_no_error() -> None:
    assert parse_cpuinfo("Features : asimd bf16").flags == frozenset()
    assert parse_meminfo("") == (0, 0)
    assert parse_cpu_quota("max 100000") is None
    assert parse_cpu_quota("") is None
    assert parse_byte_count("max\n") is None
    assert parse_nvidia_smi("No devices were found\n") == ()


def test_meminfo_is_in_kibibytes() -> None:
    assert parse_meminfo("MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:  1024 kB\n") == (
        2 * 1024**2,
        1024**2,
    )


def test_control_group_limits_are_read() -> None:
    assert parse_cpu_quota("150000 100000\n") == 1.5
    assert parse_byte_count("1073741824\n") == GIB


def test_nvidia_smi_lines_become_gpus() -> None:
    text = "NVIDIA H100 80GB HBM3, 81559, 9.0, 575.57\nbroken, [N/A], 9.0, 575.57\n"
    assert parse_nvidia_smi(text) == (H100,)


def test_a_control_groups_memory_limit_counts(tmp_path: Path) -> None:
    for name, text in {
        "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n",
        "proc/cpuinfo": "model name: A CPU\nflags: avx2\n",
        "sys/fs/cgroup/memory.max": str(4 * GIB),
        "sys/fs/cgroup/memory.current": str(1 * GIB),
        "sys/fs/cgroup/cpu.max": "100000 100000",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = probe_machine(root=tmp_path, compilers=())
    assert (found.memory_total_bytes, found.memory_available_bytes) == (4 * GIB, 3 * GIB)
    assert found.usable_cores == 1
    assert found.c_compiler is None


def test_this_machine_can_be_read_shown_and_written_as_json() -> None:
    found = probe_machine()
    assert found.cores == len(os.sched_getaffinity(0))
    assert found.memory_available_bytes > 0
    held = json.loads(json.dumps(machine_object(found)))
    assert held["dtype"]["dtype"] in ("bf16", "fp32")
    assert held["findings"]
    assert len(machine_lines(found)) == 5
