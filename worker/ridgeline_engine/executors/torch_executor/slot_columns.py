"""How each slot samples, as columns: what a step needs of its rows is then a few look-ups, however many they are."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ridgeline_engine.seam import SlotAdmit

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Entries:
    """What some rows have in their lists, one row behind the other."""

    rows: Index
    """Position in the rows that were asked about."""
    tokens: Index
    values: npt.NDArray[np.float32]


class SlotLists:
    """A list of token ids for each slot, and a number with each of them."""

    def __init__(self, slots: int) -> None:
        self._lengths = np.zeros(slots, dtype=np.int64)
        self._tokens = np.zeros((slots, 0), dtype=np.int64)
        self._values = np.zeros((slots, 0), dtype=np.float32)

    def put(self, slot: int, tokens: tuple[int, ...], values: tuple[float, ...] | None = None) -> None:
        """Replaces the slot's list."""
        missing = len(tokens) - self._tokens.shape[1]
        if missing > 0:
            self._tokens = np.pad(self._tokens, ((0, 0), (0, missing)))
            self._values = np.pad(self._values, ((0, 0), (0, missing)))
        self._lengths[slot] = len(tokens)
        self._tokens[slot, : len(tokens)] = tokens
        self._values[slot, : len(tokens)] = 0.0 if values is None else values

    def of(self, slots: Index) -> Entries:
        """The lists of these slots, in their order."""
        lengths = self._lengths[slots]
        held = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
        rows, places = np.nonzero(held)
        owners = slots[rows]
        return Entries(rows, self._tokens[owners, places], self._values[owners, places])


class SlotColumns:
    """Arrays by slot. A slot that nobody holds keeps its last owner's numbers."""

    def __init__(self, slots: int) -> None:
        self.temperature = np.zeros(slots, dtype=np.float32)
        self.top_k = np.zeros(slots, dtype=np.int64)
        self.top_p = np.zeros(slots, dtype=np.float64)
        self.min_p = np.zeros(slots, dtype=np.float64)
        self.seed = np.zeros(slots, dtype=np.uint64)
        self.choice = np.zeros(slots, dtype=np.int64)
        self.min_tokens = np.zeros(slots, dtype=np.int64)
        self.has_logprobs = np.zeros(slots, dtype=np.bool_)
        self.logprobs = np.zeros(slots, dtype=np.int64)
        """How many of the most likely tokens, where a slot has logprobs."""
        self.is_penalised = np.zeros(slots, dtype=np.bool_)
        self.is_adjusted = np.zeros(slots, dtype=np.bool_)
        """Whether a slot may change logits: by penalties, bias or min_tokens."""
        self.bias = SlotLists(slots)
        self.ends = SlotLists(slots)
        """What may not come before min_tokens have."""

    def put(self, admit: SlotAdmit, *, is_penalised: bool) -> None:
        slot, sampling = admit.slot, admit.sampling
        # Float32 would make a 0 of what is less than the divisor.
        self.temperature[slot] = sampling.divisor if sampling.temperature > 0.0 else 0.0
        self.top_k[slot] = sampling.top_k
        self.top_p[slot] = sampling.top_p
        self.min_p[slot] = sampling.min_p
        self.seed[slot] = admit.seed
        self.choice[slot] = admit.choice
        self.min_tokens[slot] = sampling.min_tokens
        self.has_logprobs[slot] = sampling.logprobs is not None
        self.logprobs[slot] = sampling.logprobs or 0
        self.is_penalised[slot] = is_penalised
        self.is_adjusted[slot] = is_penalised or bool(sampling.logit_bias) or sampling.min_tokens > 0
        self.bias.put(
            slot,
            tuple(token for token, _ in sampling.logit_bias),
            tuple(bias for _, bias in sampling.logit_bias),
        )
        self.ends.put(slot, (*admit.eos_token_ids, *sampling.stop_token_ids))
