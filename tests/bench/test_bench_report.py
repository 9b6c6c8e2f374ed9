"""The report that every benchmark prints, and the order in which sides take turns."""

import json
from collections import Counter

import pytest
from bench_report import Compared, interleaved, report_text, table
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_doctor.machine_evidence import MachineEvidence

MACHINE = MachineEvidence(
    architecture="x86_64",
    cpu_model="a CPU",
    cores=2,
    quota_cores=None,
    flags=frozenset({"fma", "avx2"}),
    memory_total_bytes=8,
    memory_available_bytes=4,
    c_compiler=None,
)
FASTER = Compared("batch 1", "tokens/s", "peer", ours=(20.0, 30.0, 25.0), peer=(10.0, 10.0, 20.0))


def test_the_report_has_the_form_that_every_script_shares() -> None:
    held = json.loads(report_text("engine", MACHINE, [FASTER], versions={"peer": "1"}))
    assert held["bench"] == "engine"
    assert held["machine"]["isa"] == ["avx2", "fma"]
    assert held["versions"] == {"peer": "1"}
    (row,) = held["rows"]
    assert row == {
        "case": "batch 1",
        "ours": 25.0,
        "peer": 10.0,
        "peer_name": "peer",
        "unit": "tokens/s",
        "ratio": 2.0,
        "spread": {"ours": [20.0, 30.0], "peer": [10.0, 20.0], "ratio": [1.25, 3.0]},
        "repeats": 3,
    }


def test_a_ratio_above_one_means_that_ours_is_better_also_where_less_is_better() -> None:
    latency = Compared("p50", "ms", "peer", ours=(5.0,), peer=(10.0,), higher_is_better=False)
    assert latency.row()["ratio"] == 2.0


@pytest.mark.parametrize("peer", [pytest.param((), id="none"), pytest.param((1.0, 2.0), id="too-many")])
def test_repeats_come_in_pairs(peer: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="repeats of ours"):
        Compared("case", "ms", "peer", ours=(1.0,), peer=peer)


def test_sides_take_turns_and_every_other_repeat_runs_backwards() -> None:
    assert list(interleaved("abc", repeats=2)) == [(0, "a"), (0, "b"), (0, "c"), (1, "c"), (1, "b"), (1, "a")]


@given(st.lists(st.integers(), min_size=1, max_size=5, unique=True), st.integers(0, 7))
def test_each_side_runs_once_in_each_repeat(sides: list[int], repeats: int) -> None:
    counted = Counter(interleaved(sides, repeats=repeats))
    assert counted == Counter({(repeat, side): 1 for repeat in range(repeats) for side in sides})


def test_the_table_is_one_line_a_case() -> None:
    lines = table([FASTER, FASTER]).splitlines()
    assert len(lines) == 3
    assert "2.00 (1.25 to 3.00)" in lines[1]
