"""Starting a worker from the command line: flags, sizes, and one clear line where it cannot be."""

import asyncio
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ridgeline_contracts.errors import SettingsError
from ridgeline_testing.tiny_llama import build_tiny_llama
from ridgeline_worker.core_memory import core_sizes
from ridgeline_worker.flags import parse_flags, parse_size_bytes
from ridgeline_worker.host_memory import available_bytes
from ridgeline_worker.memory_advice import changes_that_fit
from ridgeline_worker.settings import EngineSettings


def _parsed(*flags: str):
    return parse_flags(["--model", "m", *flags], default_worker_id="here-1", default_threads=3)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        pytest.param("4096", 4096, id="bytes"),
        pytest.param("1GB", 10**9, id="powers-of-1000"),
        pytest.param("1GiB", 2**30, id="powers-of-1024"),
        pytest.param("1.5g", 1_500_000_000, id="fractions"),
        pytest.param(" 64 MiB ", 64 * 2**20, id="spaces"),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size_bytes) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "0", "GB", "-1GB", "1XB", "one"])
def test_a_size_that_is_none_names_itself(text) -> None:
    with pytest.raises(SettingsError, match="is not understood"):
        parse_size_bytes(text)


def test_flags_become_settings_with_their_units() -> None:
    settings = _parsed(
        "--kv-memory", "1GB", "--watchdog-s", "2", "--drain-max-s", "0.5", "--max-context", "512"
    )
    assert settings.engine.kv_bytes == 10**9
    assert (settings.limits.watchdog_ms, settings.limits.drain_max_ms) == (2000, 500)
    assert settings.engine.max_context_tokens == 512
    assert (settings.serving.worker_id, settings.engine.threads) == ("here-1", 3)
    assert not settings.engine.deterministic
    assert _parsed("--deterministic").engine.deterministic
    assert _parsed("--kv-bytes", "5000").engine.kv_bytes == 5000


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        pytest.param(["--kv-memory", "1GB", "--kv-blocks", "9"], "give one of them", id="two-sizes"),
        pytest.param(["--threads", "0"], "--threads=0", id="no-threads"),
        pytest.param(["--dtype", "fp8"], "fp8", id="unknown-dtype"),
        pytest.param(["--max-batches", "3"], "--max-batches", id="unknown-flag"),
        pytest.param(["--block-tokens", "24"], "multiple of 16", id="no-whole-granules"),
        pytest.param(["--port", "x"], "--port", id="no-number"),
    ],
)
def test_a_bad_flag_names_itself(flags, says) -> None:
    with pytest.raises(SettingsError, match=says):
        _parsed(*flags)


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_llama(tmp_path_factory.mktemp("tiny"))


def _sizes(folder: Path, settings: EngineSettings, *, limit_bytes: int, shares: bool = True):
    from ridgeline_contracts.model_folder import load_model_folder

    return core_sizes(
        load_model_folder(folder),
        settings,
        limit_bytes=limit_bytes,
        shares_host_memory=shares,
        max_batch=8,
        max_step_tokens=512,
    )


def test_the_cache_gets_as_many_blocks_as_were_asked_for(tiny_folder) -> None:
    settings = EngineSettings(tiny_folder, kv_blocks=123)
    assert _sizes(tiny_folder, settings, limit_bytes=2 * 10**9).kv_blocks == 123


def test_a_stated_memory_is_a_cap_and_a_full_batch_is_another(tiny_folder) -> None:
    capped = _sizes(
        tiny_folder, EngineSettings(tiny_folder, dtype="bf16", kv_bytes=2**20), limit_bytes=2 * 10**9
    )
    assert capped.kv_blocks == 2**20 // (2 * 2 * 2 * 16 * 16 * 2)
    free = _sizes(tiny_folder, EngineSettings(tiny_folder), limit_bytes=2 * 10**9)
    assert free.kv_blocks == 8 * 2048 // 16


def test_memory_for_swapped_sequences_is_in_the_ledger_where_it_is_the_same_memory(tiny_folder) -> None:
    block_bytes = 2 * 2 * 2 * 16 * 16 * 2
    settings = EngineSettings(tiny_folder, dtype="bf16", kv_bytes=2**20, host_kv_bytes=10 * block_bytes + 1)
    shared = _sizes(tiny_folder, settings, limit_bytes=2 * 10**9)
    assert shared.host_blocks == 10
    assert shared.kv_blocks == 2**20 // block_bytes
    assert [line.name for line in shared.ledger.lines][:3] == ["runtime", "KV pool", "swapped KV"]
    device = _sizes(tiny_folder, settings, limit_bytes=2 * 10**9, shares=False)
    assert device.host_blocks == 10
    assert "swapped KV" not in [line.name for line in device.ledger.lines]


def test_memory_for_swapped_sequences_that_holds_no_block_is_refused(tiny_folder) -> None:
    settings = EngineSettings(tiny_folder, host_kv_bytes=100)
    with pytest.raises(SettingsError, match=r"--host-kv-memory=100: a block of 16 tokens takes \d+ bytes"):
        _sizes(tiny_folder, settings, limit_bytes=2 * 10**9)


def test_too_little_memory_is_refused_with_the_ledger(tiny_folder) -> None:
    with pytest.raises(SettingsError, match=r"(?s)too little memory.*weights.*limit"):
        _sizes(tiny_folder, EngineSettings(tiny_folder), limit_bytes=200 * 10**6)


def _would_fit(folder: Path, settings: EngineSettings, *, limit_bytes: int) -> str:
    with pytest.raises(SettingsError) as refused:
        _sizes(folder, settings, limit_bytes=limit_bytes)
    return refused.value.message.partition("what would fit: ")[2]


def test_a_refused_start_names_the_largest_batch_that_fits_and_it_does(tiny_folder) -> None:
    needs = EngineSettings(tiny_folder, max_batch=4000)
    advice = _would_fit(tiny_folder, needs, limit_bytes=300 * 10**6)
    batch = int(advice.split("; or ")[0].removeprefix("--max-batch "))
    fits = replace(needs, max_batch=batch)
    assert _sizes(tiny_folder, fits, limit_bytes=300 * 10**6).kv_blocks > 0
    with pytest.raises(SettingsError):
        _sizes(tiny_folder, replace(needs, max_batch=batch + 1), limit_bytes=300 * 10**6)


def test_a_start_that_no_single_change_saves_gets_no_advice(tiny_folder) -> None:
    assert _would_fit(tiny_folder, EngineSettings(tiny_folder), limit_bytes=200 * 10**6) == ""


@pytest.mark.parametrize(
    ("fits", "advice"),
    [
        pytest.param(lambda s: s.max_batch <= 12, ["--max-batch 12"], id="batch"),
        pytest.param(lambda s: s.max_context_tokens <= 700, ["--max-context 700"], id="context"),
        pytest.param(lambda s: s.weights == "int4", ["--weights int4"], id="the-narrowest-weights"),
        pytest.param(lambda s: s.weights != "auto", ["--weights int8"], id="the-widest-weights-that-fit"),
        pytest.param(
            lambda s: s.max_batch <= 3 or s.max_context_tokens <= 128,
            ["--max-batch 3", "--max-context 128"],
            id="either",
        ),
        pytest.param(lambda s: s.max_context_tokens < 128, [], id="a-context-that-serves-nobody"),
        pytest.param(lambda _s: False, [], id="nothing"),
    ],
)
def test_the_advice_is_the_smallest_change_of_each_kind(fits, advice) -> None:
    settings = EngineSettings(Path("model"), max_batch=32, max_context_tokens=8192)
    assert changes_that_fit(settings, fits) == advice


def test_a_containers_limit_bounds_what_is_available(tmp_path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert available_bytes(tmp_path) == 600
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 250\nactive_file 50\n")
    assert available_bytes(tmp_path) == 850
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) > 10**6


async def _start(*flags: object) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ridgeline_worker",
        *map(str, flags),
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await process.communicate()
    assert process.returncode is not None
    return process.returncode, told.decode()


async def test_a_folder_that_is_no_model_is_one_line_and_code_2(tmp_path) -> None:
    code, told = await _start("--model", tmp_path / "nothing")
    assert code == 2
    assert told.count("\n") == 1
    assert "no model folder" in told


async def test_a_port_in_use_is_one_line_and_code_2_before_anything_is_loaded(tiny_folder) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, told = await _start(
            "--model", tiny_folder, "--port", port, "--metrics-port", 0, "--log-level", "error"
        )
    assert code == 2
    assert f"127.0.0.1:{port}" in told
    assert told.count("\n") == 1


async def test_what_the_engine_refuses_is_one_line_and_code_2(tiny_folder, tmp_path) -> None:
    flags = ("--port", 0, "--metrics-port", 0, "--log-level", "error", "--cache-dir", tmp_path)
    code, told = await _start("--model", tiny_folder, "--kv-memory", "1kB", *flags)
    assert code == 2
    last = told.strip().splitlines()[-1]
    assert last.startswith("ridgeline_worker: ")
    assert "too little memory" in last
    assert "Traceback" not in told
