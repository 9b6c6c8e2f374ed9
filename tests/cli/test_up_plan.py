"""Which processes run with which flags, and what is refused before anything runs."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from ridgeline_cli.up.display import exit_words
from ridgeline_cli.up.plan import (
    STOP_ORDER,
    ChildSpec,
    KeyFiles,
    ModelFacts,
    PlanFacts,
    Ports,
    Role,
    plan_processes,
)
from ridgeline_cli.up.ports import check_port_free, choose_ports, free_ports
from ridgeline_cli.up.preflight import (
    KV_BYTES_BY_DEFAULT,
    UpOptions,
    check_options,
    resolve_dtype,
    resolve_kv_bytes,
    resolve_threads,
)
from ridgeline_cli.up.sizes import parse_size, written_size
from ridgeline_contracts.errors import SettingsError
from ridgeline_doctor.machine_evidence import GpuEvidence, MachineEvidence

GIB = 1024**3
FACTS = PlanFacts(
    python="/usr/bin/python3",
    model=ModelFacts("tiny", Path("/models/tiny"), weight_bytes=100),
    dtype="fp32",
    threads_per_worker=3,
    kv_bytes=4096,
    ports=Ports(8000, 8001, 7000, 7001, workers=(7100, 7101), worker_metrics=(7200, 7201)),
    keys=KeyFiles(Path("/data/keys/pepper"), Path("/data/keys/admin"), Path("/data/keys/tenant")),
    data_dir=Path("/data/gateway"),
    cache_dir=Path("/home/kernels"),
    weights="int8",
)


def _machine(*, cores: int = 8, available_bytes: int = 16 * GIB) -> MachineEvidence:
    return MachineEvidence(
        architecture="x86_64",
        cpu_model="a CPU",
        cores=cores,
        quota_cores=None,
        flags=frozenset({"avx2"}),
        memory_total_bytes=32 * GIB,
        memory_available_bytes=available_bytes,
        c_compiler="/usr/bin/cc",
    )


def _flag(child: ChildSpec, name: str) -> list[str]:
    """Every value that a flag is given."""
    return [value for flag, value in zip(child.command, child.command[1:], strict=False) if flag == name]


def test_a_plan_holds_one_router_the_workers_and_one_gateway() -> None:
    plan = plan_processes(FACTS)
    assert [child.name for child in plan.children] == ["router", "worker-0", "worker-1", "gateway"]
    assert sorted(STOP_ORDER) == sorted(Role), "every role has its turn at the stop"


def test_all_parts_are_told_the_same_addresses() -> None:
    plan = plan_processes(FACTS)
    (router,), workers, (gateway,) = (plan.of(role) for role in (Role.ROUTER, Role.WORKER, Role.GATEWAY))
    assert _flag(router, "--worker") == ["worker-0=127.0.0.1:7100", "worker-1=127.0.0.1:7101"]
    assert [(_flag(worker, "--worker-id"), _flag(worker, "--port")) for worker in workers] == [
        (["worker-0"], ["7100"]),
        (["worker-1"], ["7101"]),
    ]
    assert _flag(gateway, "--router") == ["127.0.0.1:7000"] == [f"127.0.0.1:{_flag(router, '--port')[0]}"]


def test_threads_are_set_for_torch_and_openmp_alike() -> None:
    for worker in plan_processes(FACTS).of(Role.WORKER):
        assert _flag(worker, "--threads") == ["3"]
        assert _flag(worker, "--weights") == ["int8"]
        assert dict(worker.environment)["OMP_NUM_THREADS"] == "3"
        assert dict(worker.environment)["OMP_WAIT_POLICY"] == "passive"


def test_the_workers_are_deterministic_where_that_was_asked_for() -> None:
    for asked in (False, True):
        workers = plan_processes(replace(FACTS, deterministic=asked)).of(Role.WORKER)
        assert ["--deterministic" in worker.command for worker in workers] == [asked, asked]


def test_no_secret_stands_in_a_command_line() -> None:
    (gateway,) = plan_processes(FACTS).of(Role.GATEWAY)
    assert _flag(gateway, "--admin-key-file") == [str(FACTS.keys.admin_key)]
    assert _flag(gateway, "--pepper-file") == [str(FACTS.keys.pepper)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(UpOptions(dtype="fp8"), "--dtype 'fp8'", id="dtype"),
        pytest.param(UpOptions(weights="int2"), "--weights 'int2'", id="weights"),
        pytest.param(UpOptions(workers=0), "--workers 0", id="no-workers"),
        pytest.param(UpOptions(workers=65), "--workers 65", id="too-many-workers"),
        pytest.param(UpOptions(port=70_000), "--port 70000", id="port"),
        pytest.param(UpOptions(admin_port=0), "--admin-port 0", id="admin-port"),
        pytest.param(UpOptions(port=8000, admin_port=8000), "both 8000", id="one-port-twice"),
        pytest.param(UpOptions(threads_per_worker=0), "--threads-per-worker 0", id="threads"),
    ],
)
def test_a_flag_that_cannot_work_is_named(options: UpOptions, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        check_options(options)


def test_cores_are_divided_between_the_workers() -> None:
    assert resolve_threads(UpOptions(workers=3), _machine(cores=8)) == 2
    assert resolve_threads(UpOptions(workers=16), _machine(cores=8)) == 1
    assert resolve_threads(UpOptions(workers=3, threads_per_worker=8), _machine(cores=8)) == 8


def test_a_stated_dtype_is_taken_and_auto_is_the_doctors() -> None:
    assert resolve_dtype(UpOptions(dtype="fp32"), _machine()) == "fp32"
    assert resolve_dtype(UpOptions(dtype="auto"), _machine()) == "bf16"


@pytest.mark.parametrize(
    ("options", "available_bytes", "kv_bytes"),
    [
        pytest.param(UpOptions(), 16 * GIB, KV_BYTES_BY_DEFAULT, id="plenty-gives-the-default"),
        pytest.param(UpOptions(kv_bytes=3 * GIB), 16 * GIB, 3 * GIB, id="stated"),
    ],
)
def test_kv_memory_that_fits(options: UpOptions, available_bytes: int, kv_bytes: int) -> None:
    machine = _machine(available_bytes=available_bytes)
    assert resolve_kv_bytes(options, machine, weight_bytes=GIB, dtype="bf16") == kv_bytes


def test_with_gpus_the_cache_is_theirs_and_workers_are_spread_over_them() -> None:
    gpu = GpuEvidence("a GPU", 80 * GIB, (9, 0), "1")
    machine = replace(_machine(available_bytes=GIB), gpus=(gpu, gpu))
    assert resolve_kv_bytes(UpOptions(workers=2), machine, weight_bytes=9 * GIB, dtype="bf16") is None
    with pytest.raises(SettingsError, match="3 workers share 2 GPU"):
        resolve_kv_bytes(UpOptions(workers=3), machine, weight_bytes=GIB, dtype="bf16")
    workers = plan_processes(replace(FACTS, gpus=2, kv_bytes=None)).of(Role.WORKER)
    assert [dict(worker.environment)["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["0", "1"]
    assert [_flag(worker, "--kv-memory") for worker in workers] == [[], []]


def test_little_memory_is_shared_between_the_workers() -> None:
    machine = _machine(available_bytes=6 * GIB)
    alone = resolve_kv_bytes(UpOptions(workers=1), machine, weight_bytes=GIB, dtype="bf16")
    shared = resolve_kv_bytes(UpOptions(workers=2), machine, weight_bytes=GIB, dtype="bf16")
    assert shared is not None
    assert alone == KV_BYTES_BY_DEFAULT > shared > 0


@pytest.mark.parametrize(
    ("options", "dtype", "way_out"),
    [
        pytest.param(UpOptions(kv_bytes=20 * GIB), "bf16", "lower --kv-memory", id="kv"),
        pytest.param(UpOptions(workers=8), "bf16", "fewer --workers", id="workers"),
        pytest.param(UpOptions(), "fp32", "--dtype bf16", id="fp32"),
        pytest.param(UpOptions(), "bf16", "smaller --model", id="model"),
    ],
)
def test_too_little_memory_is_refused_with_the_sum_and_a_way_out(
    options: UpOptions, dtype: str, way_out: str
) -> None:
    with pytest.raises(SettingsError, match=rf"too little memory: .*{way_out}"):
        resolve_kv_bytes(options, _machine(available_bytes=2 * GIB), weight_bytes=3 * GIB, dtype=dtype)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        pytest.param("4096", 4096, id="bytes"),
        pytest.param("512MiB", 512 * 1024**2, id="binary"),
        pytest.param("2GB", 2 * 10**9, id="decimal"),
        pytest.param("1.5g", 1_500_000_000, id="fraction"),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size_bytes: int) -> None:
    assert parse_size(text, flag="--kv-memory") == size_bytes


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "1QB"])
def test_what_is_no_size_names_the_flag(text: str) -> None:
    with pytest.raises(SettingsError, match="--kv-memory"):
        parse_size(text, flag="--kv-memory")


def test_sizes_are_written_for_people() -> None:
    assert written_size(int(1.5 * GIB)) == "1.5 GiB"
    assert written_size(300 * 1024**2) == "300 MiB"


def test_a_port_in_use_is_refused_with_its_flag() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"port {port} is in use.*--admin-port"):
            check_port_free(port, flag="--admin-port")
    check_port_free(port, flag="--admin-port")


def test_chosen_ports_all_differ() -> None:
    (gateway,) = free_ports(1)
    ports = choose_ports(workers=5, gateway=gateway, admin=None)
    single = [ports.gateway, ports.admin, ports.router, ports.router_metrics]
    every = [*single, *ports.workers, *ports.worker_metrics]
    assert ports.gateway == gateway
    assert len(set(every)) == len(every) == 14


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [(0, "exit code 0"), (86, "exit code 86"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")],
)
def test_an_end_is_told_in_words(exit_code: int, words: str) -> None:
    assert exit_words(exit_code) == words


def test_a_plan_can_be_printed() -> None:
    assert json.dumps([child.command for child in plan_processes(FACTS).children])
