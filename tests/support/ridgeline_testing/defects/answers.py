"""Which token is drawn, and how it can be drawn again."""

from ridgeline_testing.planting import Defect

_ORACLE = "ridgeline_engine.sampler_oracle"
_ORACLE_TESTS = "tests/engine/test_sampler_oracle.py"
_RANDOM_TESTS = "tests/engine/test_random_bits.py"
_KEPT = f"{_ORACLE_TESTS}::test_truncation_keeps"

ANSWERS: tuple[Defect, ...] = (
    Defect(
        "top-p cuts a tie",
        f"{_ORACLE}:kept_weights",
        "np.where(scaled >= boundary",
        "np.where(scaled > boundary",
        f"{_KEPT}[ties-at-the-boundary-are-kept-whole]",
    ),
    Defect(
        "top-k cuts a tie by the order of a sort",
        f"{_ORACLE}:kept_weights",
        "kept &= scaled >= np.partition(scaled, -sampling.top_k)[-sampling.top_k]",
        "kept &= np.isin(np.arange(len(scaled)), np.argsort(-scaled)[: sampling.top_k])",
        f"{_KEPT}[ties-at-the-k-th-value-are-kept-whole]",
    ),
    Defect(
        "top-p counts what top-k has cut",
        f"{_ORACLE}:kept_weights",
        "sampling.top_p * weights.sum()",
        "sampling.top_p * np.exp(scaled.astype(np.float64)).sum()",
        f"{_KEPT}[top-p-counts-what-top-k-kept-and-nothing-else]",
    ),
    Defect(
        "a nucleus of all tokens leaves some out",
        f"{_ORACLE}:kept_weights",
        "boundary = scaled[order[int(np.argmax(reached))]] if reached.any() else -np.inf",
        "boundary = scaled[order[max(0, len(order) - 2)]]",
        f"{_KEPT}[top-p-near-one]",
    ),
    Defect(
        "min-p is not relative to the best",
        f"{_ORACLE}:kept_weights",
        "np.where(weights >= sampling.min_p, weights, 0.0)",
        "np.where(weights / weights.sum() >= sampling.min_p, weights, 0.0)",
        f"{_KEPT}[min-p-is-relative-to-the-best]",
    ),
    Defect(
        "temperature 0 takes the last of a tie",
        f"{_ORACLE}:sample_row",
        "token = int(np.argmax(adjusted))",
        "token = len(adjusted) - 1 - int(np.argmax(adjusted[::-1]))",
        f"{_ORACLE_TESTS}::test_temperature_zero_is_argmax[ties-go-to-the-lowest-id]",
    ),
    Defect(
        "repetition is punished in the output alone",
        f"{_ORACLE}:adjusted_logits",
        "seen[np.asarray(row.prompt, dtype=np.int64)] = True",
        "pass",
        f"{_ORACLE_TESTS}::test_penalties_and_bias[repetition-over-prompt-and-output]",
    ),
    Defect(
        "presence counts how often",
        f"{_ORACLE}:adjusted_logits",
        "(counts > 0).astype(np.float32)",
        "counts.astype(np.float32)",
        f"{_ORACLE_TESTS}::test_penalties_and_bias[presence-over-output-once]",
    ),
    Defect(
        "min_tokens lets an end token through",
        f"{_ORACLE}:adjusted_logits",
        "if len(row.output) < sampling.min_tokens:",
        "if len(row.output) + 1 < sampling.min_tokens:",
        f"{_ORACLE_TESTS}::test_end_and_stop_tokens_are_masked_until_min_tokens_came",
    ),
    Defect(
        "logprobs are those of the logits after penalties",
        f"{_ORACLE}:sample_row",
        "token_logprob(logits, token",
        "token_logprob(adjusted, token",
        f"{_ORACLE_TESTS}::test_logprobs_are_of_the_raw_logits",
    ),
    Defect(
        "a draw depends on how many came before in the batch",
        f"{_ORACLE}:sample_row",
        "uniforms(row.seed, row.choice, len(row.output), draw=DRAW_TOKEN)",
        "uniforms(row.seed, row.choice, 0, draw=DRAW_TOKEN)",
        "tests/engine/test_sampler_oracle.py::test_each_position_of_an_output_draws_anew",
    ),
    Defect(
        "choices of one request draw the same",
        "ridgeline_engine.step_planner:StepPlanner._slot_admit",
        "choice=sequence.choice",
        "choice=0",
        "tests/engine/test_choices.py::test_each_choice_is_what_it_would_be_alone[16-with-cache]",
    ),
    Defect(
        "a retry starts its random numbers again",
        "ridgeline_engine.step_planner:StepPlanner._slot_admit",
        "output=tuple(sequence.tokens[sequence.prompt_tokens :])",
        "output=()",
        "tests/engine/test_engine.py::test_a_retry_goes_on_at_its_offset_and_with_its_random_numbers",
    ),
    Defect(
        "a request without a seed has another one each time",
        "ridgeline_engine.random_bits:request_seed",
        "blake2b(request_id.encode(), digest_size=8).digest()",
        "blake2b(str(object()).encode(), digest_size=8).digest()",
        f"{_RANDOM_TESTS}::test_a_request_without_a_seed_keeps_its_own_across_attempts",
    ),
    Defect(
        "drawing and accepting share a random number",
        "ridgeline_engine.random_bits:random_words",
        "np.asarray(draw, dtype=np.uint64)",
        "np.asarray(0, dtype=np.uint64)",
        f"{_RANDOM_TESTS}::test_each_draw_at_a_position_has_its_own_number",
    ),
    Defect(
        "a temperature that float32 cannot hold divides by zero",
        f"{_ORACLE}:kept_weights",
        "np.float32(sampling.divisor)",
        "np.float32(sampling.temperature)",
        f"{_ORACLE_TESTS}::test_a_tiny_temperature_neither_overflows_nor_loses_the_best[1e-300]",
    ),
    Defect(
        "the executor's rows are drawn with the first row's parameters",
        "ridgeline_engine.executors.torch_executor.sampler:Sampler._draw_columns",
        "top_p=columns.top_p[slots]",
        "top_p=columns.top_p[slots[:1].repeat(len(slots))]",
        "tests/executor/test_mixed_batch.py::test_a_mixed_batch_draws_each_row_by_its_own_parameters[in-torch]",
    ),
)
