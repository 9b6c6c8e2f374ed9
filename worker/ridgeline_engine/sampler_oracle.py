"""The sampler's definition, one row at a time in NumPy. Executors sample batches on the device and agree.

Steps, in order, with the type that each is computed in:

 1. logprobs        float64  natural log-softmax of the raw logits; the most likely first, lowest id
                             first on a tie
 2. repetition      float32  tokens of prompt or output: z / r if z > 0 else z * r
 3. frequency       float32  z - frequency * (times in the output)
 4. presence        float32  z - presence * (1 if in the output)
 5. logit bias      float32  z + bias
 6. token mask      -        tokens whose bit is not set become -inf
 7. min_tokens      -        while output position < min_tokens, end and stop tokens become -inf
 8. temperature 0   -        the token is the argmax, lowest id on a tie; nothing below applies
 9. temperature     float32  z = (z - max z) / max(temperature, 1e-6), so the best token stands at exactly 0
10. top-k           -        keep z >= the k-th largest z: ties at the k-th value are kept whole
11. top-p           float64  w = exp(z) of what is kept; walking w from the largest, the boundary is the first
                             token with cumulative w >= top_p * sum w; keep z >= the boundary's z
                             (ties kept whole). 1 keeps all
12. min-p           float64  keep w >= min_p (the best token's w is 1)
13. choice          float64  c = cumulative w of what is kept in order of token id;
                             the token is the first with c > u * c[last],
                             u = uniform(seed, choice, output position, DRAW_TOKEN)

Elementwise float32 operations are correctly rounded everywhere, so 2 to 10 agree bit by bit; 11 to 13 agree
but for the last places of exp and of the sums, which move a choice about once in 10^9 tokens.

A row faults when its raw logits hold NaN or +inf, or when no token is left after step 7. -inf is a legal
logit.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ridgeline_contracts.sampling import SamplingParams, TokenLogprob

from ridgeline_engine.random_bits import DRAW_TOKEN, uniforms
from ridgeline_engine.seam import TokenMask

Floats32 = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]

FAULT_NOT_FINITE = "its logits are not finite"
FAULT_NO_TOKEN = "no token is allowed: the mask, logit_bias and min_tokens leave none"


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """All that the choice of one token depends on, besides the logits."""

    sampling: SamplingParams
    seed: int
    choice: int
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    """What this choice gave so far; its length is the output position."""
    eos_token_ids: tuple[int, ...] = ()
    mask: TokenMask | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """Exactly one of `token` and `fault` is set. `logprob` where it was asked for."""

    token: int | None
    logprob: TokenLogprob | None = None
    fault: str | None = None


def sample_row(logits: Floats32, row: SamplerRow) -> Sampled:
    """Chooses one token. `logits` is float32 [vocab] and is not mutated."""
    if np.isnan(logits).any() or np.isposinf(logits).any():
        return Sampled(None, fault=FAULT_NOT_FINITE)
    adjusted = adjusted_logits(logits, row)
    if not np.isfinite(adjusted).any():
        return Sampled(None, fault=FAULT_NO_TOKEN)
    if row.sampling.temperature == 0.0:
        token = int(np.argmax(adjusted))
    else:
        weights = kept_weights(adjusted, row.sampling)
        uniform = float(uniforms(row.seed, row.choice, len(row.output), draw=DRAW_TOKEN))
        token = choose(weights, uniform)
    wanted = row.sampling.logprobs
    return Sampled(token, None if wanted is None else token_logprob(logits, token, top=wanted))


def adjusted_logits(logits: Floats32, row: SamplerRow) -> Floats32:
    """Steps 2 to 7: float32 [vocab], -inf for what may not be chosen."""
    sampling, adjusted = row.sampling, logits.astype(np.float32, copy=True)
    counts = np.bincount(np.asarray(row.output, dtype=np.int64), minlength=len(logits))
    if sampling.repetition_penalty != 1.0:
        seen = counts > 0
        seen[np.asarray(row.prompt, dtype=np.int64)] = True
        penalty = np.float32(sampling.repetition_penalty)
        adjusted = np.where(seen, np.where(adjusted > 0, adjusted / penalty, adjusted * penalty), adjusted)
    if sampling.frequency_penalty != 0.0:
        adjusted = adjusted - np.float32(sampling.frequency_penalty) * counts.astype(np.float32)
    if sampling.presence_penalty != 0.0:
        adjusted = adjusted - np.float32(sampling.presence_penalty) * (counts > 0).astype(np.float32)
    for token, bias in sampling.logit_bias:
        adjusted[token] += np.float32(bias)
    if row.mask is not None:
        adjusted[~mask_bits(row.mask, len(logits))] = -np.inf
    if len(row.output) < sampling.min_tokens:
        adjusted[list({*row.eos_token_ids, *sampling.stop_token_ids})] = -np.inf
    return adjusted


def kept_weights(adjusted: Floats32, sampling: SamplingParams) -> Floats64:
    """Steps 9 to 12: float64 [vocab], exp of what is kept (the best is 1.0) and 0 for the rest. Temperature >
    0."""
    scaled = (adjusted - adjusted.max()) / np.float32(sampling.divisor)
    kept = np.isfinite(scaled)
    if 0 < sampling.top_k < len(scaled):
        kept &= scaled >= np.partition(scaled, -sampling.top_k)[-sampling.top_k]
    weights = np.where(kept, np.exp(scaled.astype(np.float64)), 0.0)
    if sampling.top_p < 1.0:
        order = np.argsort(-scaled, kind="stable")
        order = order[kept[order]]
        reached = np.cumsum(weights[order]) >= sampling.top_p * weights.sum()
        # Rounding may leave the last sum a hair below the total: then nothing is cut.
        boundary = scaled[order[int(np.argmax(reached))]] if reached.any() else -np.inf
        weights = np.where(scaled >= boundary, weights, 0.0)
    if sampling.min_p > 0.0:
        weights = np.where(weights >= sampling.min_p, weights, 0.0)
    return weights


def choose(weights: Floats64, uniform: float) -> int:
    """Step 13. `weights` is float64 [vocab], not all zero; 0 <= uniform < 1. A weight of 0 is never
    chosen."""
    cumulative = np.cumsum(weights)
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def token_logprob(logits: Floats32, token: int, *, top: int) -> TokenLogprob:
    """Step 1, for `token` and the `top` most likely."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    best = np.argsort(-wide, kind="stable")[:top]
    return TokenLogprob(
        token, float(logprobs[token]), tuple((int(each), float(logprobs[each])) for each in best)
    )


def mask_bits(mask: TokenMask, vocab_tokens: int) -> npt.NDArray[np.bool_]:
    """A token mask's words as bool [vocab]."""
    return np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")[:vocab_tokens].astype(np.bool_)
