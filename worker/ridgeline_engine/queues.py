"""Who waits, who runs, and what they hold: the state that scheduling changes."""

from bisect import bisect_left, insort

from ridgeline_contracts.errors import InvariantError

from ridgeline_engine.kv_manager import KVManager
from ridgeline_engine.policy.accounts import TenantAccounts
from ridgeline_engine.policy.output_lengths import OutputLengths
from ridgeline_engine.policy.preemption_log import PreemptionLog
from ridgeline_engine.policy.ranks import Rank
from ridgeline_engine.policy.waiting import WaitingQueue
from ridgeline_engine.seam import LaunchId, SlotId
from ridgeline_engine.sequence import Sequence, SequenceState
from ridgeline_engine.slots import Slots


def _rank(sequence: Sequence) -> Rank:
    return sequence.rank


class Queues:
    """A sequence that waits holds nothing; one that runs holds a slot and blocks."""

    def __init__(self, kv: KVManager, slots: Slots, *, fair: bool) -> None:
        self.kv = kv
        self.slots = slots
        self.waiting = WaitingQueue(fair=fair)
        self.running: list[Sequence] = []
        """In the order of rank."""
        self.accounts = TenantAccounts()
        self.output_lengths = OutputLengths()
        self.log = PreemptionLog()

    def start(self, sequence: Sequence) -> SlotId:
        """From waiting to running, with a slot. Blocks are the caller's affair."""
        self.waiting.remove(sequence)
        lease = self.slots.take()
        sequence.slot, sequence.generation = lease.slot, lease.generation
        sequence.state = SequenceState.RUNNING
        insort(self.running, sequence, key=_rank)
        return lease.slot

    def stop(self, sequence: Sequence, *, fence: LaunchId | None) -> None:
        """Out of the running queue, without its slot. Raises InvariantError where it does not run."""
        index = bisect_left(self.running, sequence.rank, key=_rank)
        if index == len(self.running) or self.running[index] is not sequence or sequence.slot is None:
            raise InvariantError("a sequence that does not run was taken out of the running queue")
        del self.running[index]
        self.slots.give_back(sequence.slot, fence=fence)
        sequence.slot = sequence.generation = None
        sequence.forget_pending()

    def check(self) -> None:
        """Raises InvariantError unless queues, slots, blocks, caches and accounts are consistent."""
        self.waiting.check()
        if [each.rank for each in self.running] != sorted(each.rank for each in self.running):
            raise InvariantError("the running queue is out of order")
        if any(each.state is not SequenceState.RUNNING for each in self.running):
            raise InvariantError("the running queue holds a sequence that is not running")
        for sequence in self.running:
            if not sequence.computed_tokens <= sequence.planned_tokens <= sequence.context_tokens:
                raise InvariantError("a sequence computed more than was planned, or planned more than it has")
            if sequence.pending_tokens and sequence.context_tokens - sequence.planned_tokens != 1:
                raise InvariantError("a sequence waits for a token and has others to run")
        live = len(self.running) + len(self.waiting)
        if sum(each.sequences for each in self.accounts.active()) != live:
            raise InvariantError("the tenants' accounts count other sequences than the queues hold")
        self.slots.check()
        self.kv.check(self.running)
