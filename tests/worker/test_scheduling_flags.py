"""The scheduler's flags become its settings."""

import pytest
from ridgeline_contracts.errors import SettingsError
from ridgeline_engine.policy.overrides import PolicyOverrides
from ridgeline_engine.settings import AsyncScheduling, EngineSettings
from ridgeline_worker.flags import parse_flags
from ridgeline_worker.settings import SchedulingChoices


def _choices(*flags: str) -> SchedulingChoices:
    settings = parse_flags(["--model", "m", *flags], default_worker_id="here-1", default_threads=3)
    return settings.engine.scheduling


def test_without_flags_the_engine_gets_its_own_defaults() -> None:
    engine, choices = EngineSettings(eos_token_ids=()), _choices()
    for name in ("policy", "preemption", "tpot_target_ms", "ttft_target_ms", "async_scheduling", "overrides"):
        assert getattr(choices, name) == getattr(engine, name)


def test_targets_policies_and_overrides_are_read_with_their_units() -> None:
    flags = (
        "--policy fcfs --preemption wait --tpot-target-ms none --ttft-target-ms 1500 --async-scheduling on"
    )
    overrides = "--batch-cap 12 --batch-kv-tokens 0 --gap-bound-ms 40.5 --overtaking-ratio 2.5"
    rest = "--output-weight 4 --backlog-tokens 9000"
    assert _choices(*flags.split(), *overrides.split(), *rest.split()) == SchedulingChoices(
        "fcfs", "wait", None, 1500.0, AsyncScheduling.ON, PolicyOverrides(12, 0, 40.5, 2.5, 4.0, 9000)
    )


def test_swap_may_be_chosen_where_the_host_has_memory_for_it() -> None:
    assert _choices("--preemption", "swap", "--host-kv-memory", "1GB").preemption == "swap"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        pytest.param(["--tpot-target-ms", "0"], "target '0': give milliseconds above 0, or none", id="zero"),
        pytest.param(["--ttft-target-ms", "soon"], "target 'soon'", id="a-word"),
        pytest.param(["--batch-cap", "0"], "batch_cap=0: give more than 0", id="no-batch"),
        pytest.param(["--policy", "best"], "fair.*fcfs.*shortest", id="an-unknown-policy"),
        pytest.param(
            ["--preemption", "swap"],
            "swap.*--host-kv-memory.*give auto, recompute or wait",
            id="no-host-memory",
        ),
        pytest.param(["--preemption", "never"], "auto.*recompute.*swap.*wait", id="an-unknown-preemption"),
    ],
)
def test_a_bad_flag_names_itself(flags: list[str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        _choices(*flags)
