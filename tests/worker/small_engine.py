"""The real engine in a real core process, over the executor that computes hashes in place of a model."""

from ridgeline_contracts.clock import Clock, VirtualClock
from ridgeline_engine.engine import Engine
from ridgeline_engine.settings import EngineSettings
from ridgeline_testing.fake_executor import EOS_TOKEN_ID, FakeExecutor
from ridgeline_worker.messages import CoreSpec


def build_engine(spec: CoreSpec, clock: Clock) -> Engine:
    """On a clock of its own: a step takes as long as the executor says, and no time at all."""
    virtual = VirtualClock()
    return Engine(FakeExecutor(virtual), virtual, EngineSettings(eos_token_ids=(EOS_TOKEN_ID,)))
