"""Where a worker's memory goes, line by line, and how many KV blocks are left to have.

A worker draws up the ledger before it loads anything: it sizes the KV pool by it, and refuses a start that
cannot work, with the ledger as the reason. Lines stand in the order in which the memory is taken. They are guesses
until the model is loaded; then `with_measured` puts in what it took.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.kv import GroupId, KVGroup

from ridgeline_roofline.shapes import ModelShape, kv_token_bytes

_SAMPLER_COPIES = 8
"""float32 [batch, vocab] that live at once: logits, what penalties count, the copy for logprobs, and what drawing
takes in float64."""
_TYPICAL_SEQUENCE_TOKENS = 1024
"""Of prompt and output, for the count of sequences that fit."""


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
    swapped_kv_bytes: int = 0
    """For blocks of sequences that are swapped out; 0 where they go to other memory than weights and KV do."""
    loading_bytes: int = 0
    """On top of runtime and weights while the model loads, given back before the first step: the files as they are
    read, and the largest matrix once more."""
    margin_ratio: float = 0.05
    """Share of the limit that is left alone: allocators round up, and fragment."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    name: str
    size_bytes: int
    derivation: str
    measured: bool = False
    """Else it is a guess."""


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """`lines`, in the order in which the memory is taken, add up to at most `limit_bytes`."""

    limit_bytes: int
    lines: tuple[LedgerLine, ...]
    kv_blocks: Mapping[GroupId, int]
    kv_tokens: int
    """Tokens that the pool holds, of all sequences together."""
    loading_bytes: int
    max_batch: int
    max_context_tokens: int

    @property
    def used_bytes(self) -> int:
        """With the margin."""
        return sum(line.size_bytes for line in self.lines)

    @property
    def peak_bytes(self) -> int:
        """The most that will be in use at once: of a full batch over a full pool, or while the model loads."""
        sizes = {line.name: line.size_bytes for line in self.lines}
        return max(
            self.used_bytes - sizes["margin"], sizes["runtime"] + sizes["weights"] + self.loading_bytes
        )

    def sequences(self, tokens: int) -> int:
        """How many sequences of so many tokens run at once, at most: prefixes that are shared, and blocks that are
        filled in part, change it."""
        return min(self.max_batch, self.kv_tokens // max(1, tokens))

    def with_measured(self, sizes: Mapping[str, int]) -> "MemoryLedger":
        """What lines took, by their names, in the place of the guesses."""
        lines = tuple(
            replace(line, size_bytes=sizes[line.name], measured=True) if line.name in sizes else line
            for line in self.lines
        )
        return replace(self, lines=lines)

    def text(self) -> str:
        """One line an entry, for a log or an error."""
        typical = min(_TYPICAL_SEQUENCE_TOKENS, self.max_context_tokens)
        fitting = ", ".join(
            f"{self.sequences(tokens)} of {tokens} tokens"
            for tokens in {self.max_context_tokens: 0, typical: 0}
        )
        return "\n".join(
            [
                _table(self.lines, self.limit_bytes),
                f"{'peak':<12} {self.peak_bytes / 1e6:>10.1f} MB  a full batch over a full pool, or while loading",
                f"sequences at once, at most: {fitting}",
            ]
        )


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
    return MemoryLedger(
        facts.limit_bytes,
        (fixed[0], line, *fixed[1:]),
        blocks,
        held,
        loading_bytes=facts.loading_bytes,
        max_batch=facts.max_batch,
        max_context_tokens=facts.max_context_tokens,
    )


def _fixed_lines(facts: MemoryFacts) -> tuple[LedgerLine, ...]:
    margin = int(facts.limit_bytes * facts.margin_ratio)
    return (
        LedgerLine("runtime", facts.runtime_bytes, "interpreter, libraries, device context"),
        *_swapped_kv(facts),
        LedgerLine("weights", facts.weights_bytes, f"{facts.model.parameters / 1e6:.0f} M parameters"),
        LedgerLine("activations", activation_bytes(facts), f"a step of {facts.max_step_tokens} tokens"),
        LedgerLine(
            "sampling", sampler_bytes(facts), f"{facts.max_batch} rows of {facts.model.vocab_tokens} logits"
        ),
        LedgerLine("margin", margin, f"{facts.margin_ratio:.0%} of the limit"),
    )


def _swapped_kv(facts: MemoryFacts) -> tuple[LedgerLine, ...]:
    """A line where there is such memory."""
    if facts.swapped_kv_bytes == 0:
        return ()
    return (LedgerLine("swapped KV", facts.swapped_kv_bytes, "blocks of sequences that wait, taken as used"),)


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
    rows = [
        f"{line.name:<12} {line.size_bytes / 1e6:>10.1f} MB  {'measured' if line.measured else 'guessed':<8}  "
        f"{line.derivation}"
        for line in lines
    ]
    return "\n".join([*rows, f"{'limit':<12} {limit_bytes / 1e6:>10.1f} MB"])
