"""A core that was given memory of the host swaps; what the flags say reaches engine and executor."""

import random
from pathlib import Path

import pytest
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.ids import Attempt, Incarnation, RequestId
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.engine import Engine
from ridgeline_engine.request import Request, RequestKey
from ridgeline_roofline.decisions.preemption import PreemptionKind
from ridgeline_testing.tiny_llama import build_tiny_llama
from ridgeline_worker.core_factory import build_engine
from ridgeline_worker.flags import parse_flags
from ridgeline_worker.messages import CoreSpec
from ridgeline_worker.settings import REAL_CORE_FACTORY

SAMPLING = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_llama(tmp_path_factory.mktemp("tiny"))


def _texts(folder: Path, *flags: str) -> tuple[Engine, list[tuple[int, ...]]]:
    """Of three requests that come at once, by an engine built from the worker's flags; closed, but to be asked."""
    cache = Path.home() / ".cache" / "ridgeline" / "kernels"
    common = ("--model", str(folder), "--dtype", "fp32", "--threads", "1", "--cache-dir", str(cache))
    parsed = parse_flags([*common, *flags], default_worker_id="w", default_threads=1)
    model = load_model_folder(folder)
    spec = CoreSpec(REAL_CORE_FACTORY, parsed.engine, Incarnation("i"), "info", model)
    engine = build_engine(spec, SystemClock())
    drawn = random.Random(5)
    keys = [RequestKey(RequestId(f"r{number}"), Attempt(0)) for number in range(3)]
    for key in keys:
        engine.submit(Request(key, tuple(drawn.randrange(3, 500) for _ in range(30)), SAMPLING))
    given: dict[RequestKey, list[int]] = {key: [] for key in keys}
    while engine.has_work:
        for row in engine.step():
            given[row.key].extend(row.tokens)
    engine.check()
    engine.close()
    return engine, [tuple(given[key]) for key in keys]


def test_sequences_that_swap_to_the_hosts_memory_give_the_same_texts(folder: Path) -> None:
    roomy, expected = _texts(folder, "--kv-blocks", "64")
    assert roomy.preemption_trace == ()
    assert roomy.load().host_blocks == 0
    tight, texts = _texts(folder, "--kv-blocks", "12", "--host-kv-memory", "1MB", "--preemption", "swap")
    assert texts == expected
    assert {record.kind for record in tight.preemption_trace} == {PreemptionKind.SWAP}
    assert tight.load().host_blocks > 0
