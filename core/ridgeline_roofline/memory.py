"""Where a worker's memory goes, line by line, and how many KV blocks are left to have.

A worker draws up the ledger before it loads anything: it sizes the KV pool by it, and refuses a start that
cannot work, with the ledger as the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.kv import GroupId, KVGroup

from ridgeline_roofline.shapes import ModelShape, kv_token_bytes

_SAMPLER_COPIES = 4
"""Logits, adjusted logits, weights and sort keys live at once: float32 [batch, vocab] each."""


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """What a worker wants to hold, and in what."""

    limit_bytes: int
    """All that this worker may use, of the device that holds weights and KV."""
    weights_bytes: int
    runtime_bytes: int
    """Interpreter, libraries, device context."""
    model: ModelShape
    groups: Sequence[KVGroup]
    activation_bytes_per_element: int
    max_step_tokens: int
    max_batch: int
    max_context_tokens: int
    kv_limit_bytes: int | None = None
    """A cap on the KV pool by setting; None: all that is left, but not more than the batch could ever
    fill."""
    margin_ratio: float = 0.05
    """Share of the limit that is left alone: allocators round up, and fragment."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    name: str
    size_bytes: int
    derivation: str


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """`lines` add up to at most `limit_bytes`; the KV pool is the last of them."""

    limit_bytes: int
    lines: tuple[LedgerLine, ...]
    kv_blocks: Mapping[GroupId, int]
    kv_tokens: int
    """Tokens that the pool holds, of all sequences together."""

    @property
    def used_bytes(self) -> int:
        return sum(line.size_bytes for line in self.lines)

    def text(self) -> str:
        """One line an entry, for a log or an error."""
        return _table(self.lines, self.limit_bytes)


def activation_bytes(facts: MemoryFacts) -> int:
    """The largest step's working memory: residual, norm, q/k/v, attention out, gate, up and product a
    token."""
    model = facts.model
    per_token = 4 * model.hidden + (2 * model.heads + 2 * model.kv_heads) * model.head_dim + 3 * model.ffn
    return facts.max_step_tokens * per_token * facts.activation_bytes_per_element


def sampler_bytes(facts: MemoryFacts) -> int:
    """Working memory of sampling a full batch at once."""
    return _SAMPLER_COPIES * 4 * facts.max_batch * facts.model.vocab_tokens


def memory_ledger(facts: MemoryFacts, *, min_kv_tokens: int) -> MemoryLedger:
    """Divides the memory up. Raises SettingsError, with the ledger, where fewer than `min_kv_tokens` would
    fit.

    Every group gets blocks for the same number of tokens.
    """
    fixed = _fixed_lines(facts)
    left = facts.limit_bytes - sum(line.size_bytes for line in fixed)
    token_bytes = kv_token_bytes(facts.groups)
    fillable = facts.max_batch * facts.max_context_tokens
    capped = left if facts.kv_limit_bytes is None else min(left, facts.kv_limit_bytes)
    tokens = min(fillable, int(max(0, capped) // token_bytes))
    blocks = {group.group: tokens // group.block_tokens for group in facts.groups}
    held = min(blocks[group.group] * group.block_tokens for group in facts.groups)
    if held < min_kv_tokens:
        raise SettingsError(_refusal(facts, fixed, left=left, min_kv_tokens=min_kv_tokens), param="memory")
    size = sum(blocks[group.group] * group.block_bytes for group in facts.groups)
    why = "all that a full batch can fill" if tokens == fillable else "what is left"
    if facts.kv_limit_bytes is not None and tokens < fillable and capped == facts.kv_limit_bytes:
        why = "the set limit"
    line = LedgerLine("KV pool", size, f"{held} tokens of {token_bytes:.0f} bytes: {why}")
    return MemoryLedger(facts.limit_bytes, (*fixed, line), blocks, held)


def _fixed_lines(facts: MemoryFacts) -> tuple[LedgerLine, ...]:
    margin = int(facts.limit_bytes * facts.margin_ratio)
    return (
        LedgerLine("weights", facts.weights_bytes, f"{facts.model.parameters / 1e6:.0f} M parameters"),
        LedgerLine("runtime", facts.runtime_bytes, "interpreter, libraries, device context"),
        LedgerLine("activations", activation_bytes(facts), f"a step of {facts.max_step_tokens} tokens"),
        LedgerLine(
            "sampling", sampler_bytes(facts), f"{facts.max_batch} rows of {facts.model.vocab_tokens} logits"
        ),
        LedgerLine("margin", margin, f"{facts.margin_ratio:.0%} of the limit"),
    )


def _refusal(facts: MemoryFacts, fixed: tuple[LedgerLine, ...], *, left: int, min_kv_tokens: int) -> str:
    needed = int(min_kv_tokens * kv_token_bytes(facts.groups))
    room = max(0, left)
    fix = f"give the worker {(needed - left) / 1e6:.0f} MB more, or a smaller max_batch or max_step_tokens"
    if facts.kv_limit_bytes is not None and facts.kv_limit_bytes < needed <= left:
        room = facts.kv_limit_bytes
        fix = f"allow the KV pool at least {needed / 1e6:.0f} MB"
    return (
        f"too little memory: {min_kv_tokens} tokens of KV need {needed / 1e6:.0f} MB "
        f"and {room / 1e6:.0f} MB are left for them; {fix}\n{_table(fixed, facts.limit_bytes)}"
    )


def _table(lines: Sequence[LedgerLine], limit_bytes: int) -> str:
    rows = [f"{line.name:<12} {line.size_bytes / 1e6:>10.1f} MB  {line.derivation}" for line in lines]
    return "\n".join([*rows, f"{'limit':<12} {limit_bytes / 1e6:>10.1f} MB"])
