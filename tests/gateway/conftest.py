"""Gateways over fakes, as fixtures."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ridgeline_testing.fake_model import FakeModelFiles, fake_model_files
from ridgeline_testing.fake_worker import CAPABILITIES
from ridgeline_testing.gateway_platform import TIMING, GatewayPlatform, gateway_platform, serving


@pytest.fixture(scope="session")
def model_files() -> FakeModelFiles:
    return fake_model_files()


@pytest.fixture
def gateway_over_fakes() -> Any:
    """A function that runs a platform: `lacks` names a capability to switch off, `timing` gives other waits."""

    def run(files: FakeModelFiles, folder: Path, *, lacks: str | None = None, **options: Any) -> Any:
        capabilities = CAPABILITIES if lacks is None else replace(CAPABILITIES, **{lacks: False})
        if "timing" in options:
            options["timing"] = replace(TIMING, **options["timing"])
        return gateway_platform(files, folder, capabilities=capabilities, **options)

    return run


@pytest.fixture
async def platform(model_files: FakeModelFiles, tmp_path: Path) -> AsyncIterator[GatewayPlatform]:
    async with gateway_platform(model_files, tmp_path) as running:
        yield running


@pytest.fixture
async def two_worker_platform(model_files: FakeModelFiles, tmp_path: Path) -> AsyncIterator[GatewayPlatform]:
    async with gateway_platform(model_files, tmp_path, workers=2) as running:
        yield running


@pytest.fixture
def serve() -> Any:
    """A function that serves an application over HTTP and gives its URL."""
    return serving


@pytest.fixture
async def served(platform: GatewayPlatform) -> AsyncIterator[str]:
    """The base URL of the platform's API behind a real HTTP server."""
    async with serving(platform.gateway.app) as url:
        yield url
