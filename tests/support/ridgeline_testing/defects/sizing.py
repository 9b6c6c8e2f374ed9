"""Where memory goes, and what a layout or a block size costs."""

from ridgeline_testing.planting import Defect

_MEMORY = "ridgeline_roofline.memory"
_MEMORY_TESTS = "tests/roofline/test_memory.py"

SIZING: tuple[Defect, ...] = (
    Defect(
        "a guess is printed as measured",
        f"{_MEMORY}:_table",
        "'measured' if line.measured else 'guessed'",
        "'measured'",
        f"{_MEMORY_TESTS}::test_lines_are_guesses_until_they_are_measured",
    ),
    Defect(
        "the ledger forgets the margin",
        f"{_MEMORY}:memory_ledger",
        "sum(line.size_bytes for line in fixed)",
        "sum(line.size_bytes for line in fixed[:-1])",
        f"{_MEMORY_TESTS}::test_the_pool_gets_what_is_left",
    ),
    Defect(
        "loading is left out of the peak",
        f"{_MEMORY}:MemoryLedger.peak_bytes",
        " + self.loading_bytes",
        "",
        f"{_MEMORY_TESTS}::test_the_peak_is_the_full_batch_or_the_loading_whichever_is_higher",
    ),
    Defect(
        "a start that cannot fit does not say what would",
        f"{_MEMORY}:_refusal",
        "; {fix}",
        "",
        f"{_MEMORY_TESTS}::test_a_start_that_cannot_fit_is_refused_with_the_ledger[no-memory]",
    ),
    Defect(
        "a block wastes as much as it holds",
        "ridgeline_roofline.plan.topics.blocks:_answer",
        "chosen - 1, Unit.TOKENS",
        "chosen, Unit.TOKENS",
        "tests/roofline/test_plan_memory.py::test_a_block_wastes_less_than_itself",
    ),
    Defect(
        "copies of KV heads are not counted",
        "ridgeline_roofline.step.layout:kv_share",
        "return",
        "return 1 / tp if True else",
        "tests/roofline/test_plan_memory.py::test_tp_past_the_kv_heads_does_not_shrink_a_gpus_kv",
    ),
    Defect(
        "windows save nothing",
        "ridgeline_roofline.catalogue.mixers:Attention.seen_tokens",
        "return",
        "return tokens if True else",
        "tests/roofline/test_plan_memory.py::test_windows_save_by_the_share_of_their_layers",
    ),
)
