"""What requests that state no max_tokens will probably use: learnt a tenant and model on this gateway. Pure."""

import math
from collections import OrderedDict, deque

from ridgeline_contracts.ids import ModelName, TenantId

_QUANTILE = 0.9
_SAMPLES = 128
_ENOUGH = 16
_FIRST_GUESS_TOKENS = 256
_MOST_KEPT = 10_000
_FIRST_GUESS_TOKEN_MS = 30.0
_NEW_SHARE = 0.1


class OutputEstimator:
    """Quantiles of output lengths. Remembers the tenants that asked last."""

    def __init__(self) -> None:
        self._lengths: OrderedDict[tuple[TenantId, ModelName], deque[int]] = OrderedDict()

    def tokens(self, tenant_id: TenantId, model: ModelName, *, most: int) -> int:
        """To reserve a choice: what nine in ten of its latest replies needed, at most `most`."""
        lengths = self._lengths.get((tenant_id, model))
        if lengths is None or len(lengths) < _ENOUGH:
            return min(most, _FIRST_GUESS_TOKENS)
        ordered = sorted(lengths)
        return min(most, max(1, ordered[math.ceil(_QUANTILE * len(ordered)) - 1]))

    def learn(self, tenant_id: TenantId, model: ModelName, output_tokens: int) -> None:
        """Of a choice that ended by itself."""
        key = (tenant_id, model)
        lengths = self._lengths.setdefault(key, deque(maxlen=_SAMPLES))
        self._lengths.move_to_end(key)
        lengths.append(output_tokens)
        if len(self._lengths) > _MOST_KEPT:
            self._lengths.popitem(last=False)


class KvEstimator:
    """How long an output token holds its sequence's KV, a model: a running mean over requests."""

    def __init__(self) -> None:
        self._token_ms: dict[ModelName, float] = {}

    def kv_micro(self, model: ModelName, *, prompt_tokens: int, output_tokens: int) -> int:
        """Micro KV-token-seconds that a reply of so many tokens will hold."""
        held_ms = output_tokens * self._token_ms.get(model, _FIRST_GUESS_TOKEN_MS)
        return kv_held_micro(prompt_tokens=prompt_tokens, output_tokens=output_tokens, held_ms=held_ms)

    def learn(self, model: ModelName, *, output_tokens: int, held_ms: float) -> None:
        if output_tokens <= 0 or held_ms <= 0:
            return
        found = held_ms / output_tokens
        before = self._token_ms.get(model, found)
        self._token_ms[model] = before + _NEW_SHARE * (found - before)


def kv_held_micro(*, prompt_tokens: int, output_tokens: int, held_ms: float) -> int:
    """The prompt all the time, the output growing from nothing: on average half of it. Micro token-seconds."""
    return round((prompt_tokens + output_tokens / 2) * held_ms * 1000)
