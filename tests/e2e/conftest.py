"""One platform in fp32 for the tests that only talk to it; fault tests start their own."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from ridgeline_testing.running import Platform, running_platform


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder: Path = tmp_path_factory.mktemp("platform")
    with running_platform(folder, "--dtype", "fp32") as running:
        yield running


@pytest.fixture
def client(platform: Platform) -> Iterator[openai.OpenAI]:
    ready = platform.ready()
    with openai.OpenAI(base_url=ready.base_url, api_key=ready.api_key, max_retries=0, timeout=300) as made:
        yield made
