"""One choice of one request, as the engine sees it between steps."""

from dataclasses import dataclass, field
from enum import StrEnum

from ridgeline_contracts.blockhash import HashScope, extend_hashes, root_hash
from ridgeline_contracts.ids import BlockHash
from ridgeline_contracts.kv import GroupId

from ridgeline_engine.cached_block import TOKEN_BYTES, pack_tokens
from ridgeline_engine.kv_tables import GroupTable
from ridgeline_engine.policy.accounts import TenantAccount
from ridgeline_engine.policy.ranks import Rank
from ridgeline_engine.request import Counts, EngineClocks, Request
from ridgeline_engine.seam import Generation, LaunchId, SlotId


class SequenceState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class Progress:
    """Counts and clocks of one choice. They outlive preemption."""

    received_ms: float
    first_launch_ms: float | None = None
    first_token_ms: float | None = None
    cached_tokens: int = 0
    """Prompt tokens that were not computed at the first admission."""
    computed_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0
    preemptions: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """`tokens` is the prompt and everything after it; positions below `computed_tokens` have KV in
    `tables`."""

    family: "Family"
    request: Request
    """The family's."""
    prompt_tokens: int
    choice: int
    rank: Rank
    seed: int
    max_output_tokens: int
    """Earlier attempts' tokens included, clipped to the context."""
    scope: HashScope
    end_token_ids: frozenset[int]
    """Any of these ends the sequence."""
    progress: Progress
    tokens: list[int]
    state: SequenceState = SequenceState.WAITING
    slot: SlotId | None = None
    generation: Generation | None = None
    computed_tokens: int = 0
    """Positions whose KV is there, by the launches that completed."""
    planned_tokens: int = 0
    """The same, once the open launches complete."""
    pending_tokens: int = 0
    """Tokens that open launches sample for it: its text goes on behind them, but nobody knows them yet."""
    newest_pending: tuple[LaunchId, int] | None = None
    """Launch and row that sample the last of them: a `TokenRef` in the making, which few rows need."""
    delivered_tokens: int = 0
    """Of its output, what rows were given for, earlier attempts' included."""
    tables: dict[GroupId, GroupTable] = field(default_factory=dict)
    capacity_tokens: int = 0
    """Positions that the tables have blocks for, in every group."""
    kv_border_tokens: float = 0.0
    """Before so many tokens are computed there is nothing to store and nothing leaves a window."""
    awaited_block: BlockHash | None = None
    """While it waits: the last block of a prefix that a sequence ahead of it was computing."""
    account: TenantAccount | None = None
    """Its tenant's, while it waits or runs."""
    charged_tokens: int = 0
    """Positions that its tenant was charged for: a recomputation is free."""
    _hashes: dict[int, list[BlockHash]] = field(default_factory=dict)
    _packed: bytes = b""

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def context_tokens(self) -> int:
        """The text, pending tokens included."""
        return len(self.tokens) + self.pending_tokens

    @property
    def uncomputed_tokens(self) -> int:
        """Tokens that some launch has still to run: 1 in decode, more in a prefill, 0 while its last one is
        sampled."""
        pending = self.pending_tokens
        if pending and self.output_tokens + pending >= self.max_output_tokens:
            return 0
        return len(self.tokens) + pending - self.planned_tokens

    @property
    def decoding(self) -> bool:
        """Whether only the last sampled token is to be run. A prompt's last token alone is still a
        prefill."""
        return self.uncomputed_tokens == 1 and self.context_tokens > self.prompt_tokens

    def forget_pending(self) -> None:
        """Its open rows come to nothing: what they sample is another owner's, or nobody's."""
        self.pending_tokens, self.newest_pending = 0, None

    def block_hashes(self, block_tokens: int, *, tokens: int) -> list[BlockHash]:
        """Hashes of the whole blocks within the first `tokens` tokens; kept, and extended as the text
        grows."""
        known = self._hashes.setdefault(block_tokens, [])
        whole = tokens // block_tokens
        if whole > len(known):
            parent = known[-1] if known else root_hash(self.scope)
            ahead = self.tokens[len(known) * block_tokens : whole * block_tokens]
            known += extend_hashes(parent, ahead, block_tokens=block_tokens)
        return known[:whole]

    def packed_tokens(self, tokens: int) -> bytes:
        """At least the first `tokens` tokens as the prefix cache compares them; kept, and extended as the text
        grows."""
        known = len(self._packed) // TOKEN_BYTES
        if tokens > known:
            self._packed += pack_tokens(self.tokens[known:])
        return self._packed

    def counts(self) -> Counts:
        return Counts(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.progress.cached_tokens,
            computed_tokens=self.progress.computed_tokens,
            accepted_tokens=self.progress.accepted_tokens,
            emitted_tokens=self.progress.emitted_tokens,
        )

    def clocks(self, now_ms: float) -> EngineClocks:
        progress = self.progress

        def since(moment_ms: float | None) -> float | None:
            return None if moment_ms is None else moment_ms - progress.received_ms

        return EngineClocks(
            engine_queue_ms=since(progress.first_launch_ms),
            engine_ttft_ms=since(progress.first_token_ms),
            engine_total_ms=now_ms - progress.received_ms,
            preemptions=progress.preemptions,
        )


@dataclass(slots=True, eq=False)
class Family:
    """The choices of one request that have not ended, by choice index."""

    request: Request
    choices: dict[int, Sequence] = field(default_factory=dict)
    admitted: bool = False
    """Once one choice has run, the request is finished whatever its deadline says."""
