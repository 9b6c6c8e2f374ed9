"""Executors over tiny random models, in fp32."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_engine.executors.torch_executor.draw_batch import TokenOps, TorchTokens
from ridgeline_engine.executors.torch_executor.executor import TorchExecutor
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_kernels.cpu import load_cpu_ops
from ridgeline_testing.tiny_llama import build_tiny_llama
from ridgeline_transfer.allocator import PrivateAllocator

MakeFolder = Callable[..., Path]
MakeExecutor = Callable[..., TorchExecutor]


@pytest.fixture(scope="session")
def kernel_cache() -> Path:
    """Compiled kernels are kept between runs, by the hash of their source and machine, as a worker keeps
    them."""
    return Path.home() / ".cache" / "ridgeline" / "kernels"


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> MakeFolder:
    """make_folder(config={...}, **options of build_tiny_llama): `config` is laid over config.json."""

    def make(*, config: dict[str, Any] | None = None, **options: Any) -> Path:
        folder = build_tiny_llama(tmp_path_factory.mktemp("tiny"), **options)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | (config or {})))
        return folder

    return make


@pytest.fixture
def make_executor(kernel_cache: Path) -> Iterator[MakeExecutor]:
    """make_executor(folder, layer_hook=None, **TorchSettings fields). Closed, memory checked, when the test
    ends."""
    made: list[tuple[TorchExecutor, PrivateAllocator]] = []

    def make(folder: Path, *, layer_hook: Any = None, **fields: Any) -> TorchExecutor:
        settings = TorchSettings(
            **({"kv_blocks": 64, "cache_dir": kernel_cache, "dtype": "fp32", "max_batch": 8} | fields)
        )
        allocator = PrivateAllocator()
        executor = TorchExecutor(
            load_model_folder(folder),
            settings,
            allocator=allocator,
            clock=SystemClock(),
            layer_hook=layer_hook,
        )
        made.append((executor, allocator))
        return executor

    yield make
    for executor, allocator in made:
        executor.close()
        allocator.close()


@pytest.fixture(scope="session", params=["in-c", "in-torch"])
def token_ops(request: pytest.FixtureRequest, kernel_cache: Path) -> TokenOps:
    """Both ways to choose; where nothing compiles there is one."""
    if request.param == "in-torch":
        return TorchTokens()
    native = load_cpu_ops(kernel_cache, 2).tokens
    return native or pytest.skip("NO C COMPILER HERE")
