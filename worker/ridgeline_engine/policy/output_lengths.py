"""How long outputs turn out to be: for guesses of when a running sequence ends."""

from dataclasses import dataclass


@dataclass(slots=True)
class OutputLengths:
    """A running mean over the outputs that ended."""

    outputs: int = 0
    tokens: int = 0

    def add(self, output_tokens: int) -> None:
        self.outputs += 1
        self.tokens += output_tokens

    @property
    def mean_tokens(self) -> float | None:
        """None before anything ended."""
        return self.tokens / self.outputs if self.outputs else None

    def remaining_tokens(self, output_tokens: int, max_output_tokens: int) -> int:
        """Expected rest of an output of `output_tokens` so far; at least 1, at most its limit.

        Up to the mean it is what the mean leaves. Past it the length says nothing about the end, as for an
        exponential spread: the rest is the mean again. Before anything ended it is the limit.
        """
        limit = max(1, max_output_tokens - output_tokens)
        if self.outputs == 0:
            return limit
        mean = self.tokens // self.outputs
        return max(1, min(limit, mean - output_tokens if output_tokens < mean else mean))
