"""Sampling parameters as every component knows them; the wire form is in `wire`."""

import math
from dataclasses import dataclass, field

from ridgeline_contracts.errors import InvalidRequest

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS_ENTRIES = 1024
LEAST_TEMPERATURE = 1e-6
"""What lies between 0 and it counts as it: logits are divided in float32, where less would soon be a 0."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. Temperature 0 is exact argmax (lowest id wins a tie).

    Order: penalties, logit bias, token mask, min_tokens, temperature, top-k, top-p, min-p. `seed` None means: draw
    by a hash of the request id. Stop strings are the gateway's: the engine sees ids only.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    """None: no logprobs. k: the chosen token's and those of the k most likely."""
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    @property
    def divisor(self) -> float:
        """What logits are divided by. Only for a temperature above 0."""
        return max(self.temperature, LEAST_TEMPERATURE)

    def check(self, *, vocab_tokens: int) -> None:
        """Raises InvalidRequest that names the field, its value and the range it must lie in."""
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise InvalidRequest(f"{name}={value} is out of range: give {low:g} to {high:g}", param=name)
        if self.top_p == 0.0:
            raise InvalidRequest(
                "top_p=0 keeps no token: give more than 0, or temperature 0 for argmax", param="top_p"
            )
        if self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}", param="min_tokens"
            )
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise InvalidRequest(
                f"logprobs={self.logprobs} is out of range: give 0 to {MAX_LOGPROBS}", param="logprobs"
            )
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise InvalidRequest(f"seed={self.seed} is out of range: give 0 to 2^64-1", param="seed")
        self._check_ids(vocab_tokens)

    def _check_ids(self, vocab_tokens: int) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
            raise InvalidRequest(
                f"logit_bias has {len(self.logit_bias)} entries; at most {MAX_LOGIT_BIAS_ENTRIES}",
                param="logit_bias",
            )
        for token, bias in self.logit_bias:
            if not (math.isfinite(bias) and -100 <= bias <= 100):
                raise InvalidRequest(
                    f"logit_bias of token {token} is {bias}: give -100 to 100", param="logit_bias"
                )
        named = [("logit_bias", token) for token, _ in self.logit_bias]
        named += [("stop_token_ids", token) for token in self.stop_token_ids]
        for name, token in named:
            if not 0 <= token < vocab_tokens:
                raise InvalidRequest(
                    f"{name} names token {token}; the vocabulary has {vocab_tokens}", param=name
                )


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 1, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("temperature", 0.0, 2.0),
    ("top_k", 0, 2**31 - 1),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.01, 10.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability before temperature and truncation."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = field(default=())
    """The most likely (token, logprob), best first, as many as were asked for."""
