"""Rows of the executor's batch, and how often each changed hands."""

from dataclasses import dataclass

from ridgeline_contracts.errors import InvariantError

from ridgeline_engine.seam import Generation, LaunchId, SlotId


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot together with the count of its owners: the pair never comes again."""

    slot: SlotId
    generation: Generation


class Slots:
    """A slot is free, leased, or waits for the launch that may still write its state."""

    def __init__(self, count: int) -> None:
        self._free = [SlotId(slot) for slot in reversed(range(count))]
        self._generations = [Generation(0)] * count
        self._leased: set[SlotId] = set()
        self._waiting: dict[SlotId, LaunchId] = {}
        self._to_tell: list[SlotId] = []
        self.total = count

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> Lease:
        """Raises InvariantError where none is free: ask `free` before."""
        if not self._free:
            raise InvariantError("a slot was taken, but none is free")
        slot = self._free.pop()
        self._leased.add(slot)
        self._generations[slot] = Generation(self._generations[slot] + 1)
        return Lease(slot, self._generations[slot])

    def give_back(self, slot: SlotId, *, fence: LaunchId | None) -> None:
        """Ends a lease. `fence` is the newest launch that may still touch the slot."""
        if slot not in self._leased:
            raise InvariantError(f"slot {slot} was given back twice")
        self._leased.remove(slot)
        self._to_tell.append(slot)
        if fence is None:
            self._free.append(slot)
        else:
            self._waiting[slot] = fence

    def retire(self, launch: LaunchId) -> None:
        """Launches up to and including `launch` have completed."""
        for slot in [slot for slot, fence in self._waiting.items() if fence <= launch]:
            del self._waiting[slot]
            self._free.append(slot)

    def drain_releases(self) -> tuple[SlotId, ...]:
        """Slots given back since the last plan: the executor hears of them once."""
        told, self._to_tell = tuple(self._to_tell), []
        return told

    def check(self) -> None:
        """Raises InvariantError unless every slot is in exactly one place."""
        if sorted([*self._free, *self._leased, *self._waiting]) != list(range(len(self._generations))):
            raise InvariantError(
                f"slots lost: free {self._free}, leased {self._leased}, waiting {self._waiting}"
            )
