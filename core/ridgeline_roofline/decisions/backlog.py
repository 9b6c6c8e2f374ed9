"""Prompt tokens that may wait and still start in time: from a TPOT target to admission."""

from dataclasses import dataclass

from ridgeline_contracts.step import StepModel, StepShape

from ridgeline_roofline.decisions.chunk_budget import ChunkFacts, chunk_budget_tokens
from ridgeline_roofline.decisions.decision import Decision


@dataclass(frozen=True, slots=True)
class BacklogFacts:
    chunk: ChunkFacts
    """The step as it is now: its chunk sets the rate."""
    ttft_target_ms: float


@dataclass(frozen=True, slots=True)
class Backlog:
    tokens: int
    """May wait, the newcomer's own included."""
    tokens_per_ms: float
    """Prefill rate at the present load."""

    def drain_ms(self, tokens: int) -> float:
        """Until so many waiting tokens have been computed."""
        return tokens / self.tokens_per_ms


def backlog_tokens(model: StepModel, facts: BacklogFacts) -> Decision[Backlog]:
    """TPOT target -> chunk a step -> tokens a millisecond -> tokens within the TTFT target.

    A chunk of c tokens in steps of t ms computes c / t; over the target that is c / t x target.
    """
    chunk = max(1, chunk_budget_tokens(model, facts.chunk).value)
    depth = facts.chunk.chunk_context_tokens
    step_ms = model.predict_ms(
        StepShape(
            facts.chunk.decode_rows, facts.chunk.context_tokens, chunk, chunk * depth + chunk * chunk // 2
        )
    )
    rate = chunk / max(step_ms, 1e-6)
    tokens = int(rate * facts.ttft_target_ms)
    return Decision(
        Backlog(tokens, rate),
        f"backlog = {tokens} tokens: chunks of {chunk} in steps of {step_ms:.2f} ms compute {rate:.2f} tokens "
        f"a ms, over the TTFT target {facts.ttft_target_ms:.0f} ms",
    )
