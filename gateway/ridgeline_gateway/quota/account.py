"""One tenant's account: two buckets, the leases on them, and what was settled lately. Pure: time is an argument.

The Lua scripts in `lua/` do the same steps on Redis; a property test holds the two together.

A lease is a request's reservation. It reserves the most that the request can use; settling it charges what was used
and gives back the rest, but only as much as the bucket would hold now had it never been reserved: what has been
refilled above that meanwhile is not given twice. So, for each bucket, at all times

    level + what leases can still give back <= burst

and a bucket refills at its full rate while a long request runs. Over any interval of t seconds the requests
admitted in it are charged at most burst + rate x t + the debt cap.

reserve   takes an amount that the bucket holds; repeated, it changes nothing
renew     keeps the lease alive and raises it to a total, into debt up to the cap; a lease that the store does not know
          (it was restored, or the lease ran out) is taken again whatever the level
settle    ends the lease; repeated, it answers the same; without a lease the charge is taken now, as debt if need be
A lease that nobody renews runs out: what it holds goes back.

A store may start again and have forgotten its last steps (`run` names a life of it). Gateways remember what they saw:
each tells `restore` the level and its time, then renews its leases and repeats its last settlements as `recovered`. The
newest level counts, plus what has happened in the new life; recovered steps are in it already and move nothing.
"""

from dataclasses import dataclass, field
from typing import NewType

from ridgeline_contracts.errors import InvariantError

from ridgeline_gateway.quota.limits import NOTHING, Amounts, BucketLimits, QuotaLimits
from ridgeline_gateway.quota.steps import Status, StepResult

LeaseId = NewType("LeaseId", str)
"""Made by the server; a client's own request id is never used here."""
_BOTH = (0, 1)
_RESTORE_US = 60_000_000
"""How long after a new life's beginning levels may still be restored."""


@dataclass(slots=True)
class Bucket:
    limits: BucketLimits | None = None
    level: int = 0
    carry: int = 0
    refundable: int = 0
    """What leases can still give back, summed."""
    held: int = 0
    """What leases hold, summed."""


@dataclass(slots=True)
class Lease:
    reserved: list[int]
    refundable: list[int | None]
    """None: the resource had no limit when the lease began."""
    expires_us: int
    order: int
    grants: list[tuple[int, int]]
    """When which amounts of micro-tokens were taken, for the ledger."""


@dataclass(frozen=True, slots=True)
class Settlement:
    reserved: Amounts
    charged: Amounts
    refunded: Amounts
    grants: tuple[tuple[int, int], ...]
    late: bool
    """The lease was gone: the charge was taken at the settlement."""
    settled_us: int


@dataclass(slots=True)
class Account:
    """`leases` must be in the order of their `order`. `settled` may hold only the lease at hand."""

    updated_us: int = 0
    next_order: int = 0
    buckets: tuple[Bucket, Bucket] = field(default_factory=lambda: (Bucket(), Bucket()))
    leases: dict[LeaseId, Lease] = field(default_factory=dict)
    settled: dict[LeaseId, Settlement] = field(default_factory=dict)
    run: str = ""
    """The life of the store in which the account was last used."""
    run_began_us: int = 0
    known_us: int = 0
    """Steps up to here are in the levels: what the store remembered, or what was restored."""
    moved: list[int] = field(default_factory=lambda: [0, 0])
    """How far steps of this life have moved the levels, refill apart, while they may still be restored."""
    touched: set[LeaseId] = field(default_factory=set)
    """Leases that changed or went: what a store must write."""

    def standing(self, limits: QuotaLimits, *, now_us: int, run: str = "") -> StepResult:
        self._begin(limits, now_us, run)
        return self._result(Status.DONE)

    def restore(
        self, seen: Amounts, seen_us: int, limits: QuotaLimits, *, now_us: int, run: str = ""
    ) -> StepResult:
        """Takes the levels that a gateway saw at `seen_us`, if nothing newer is known."""
        now_us = self._begin(limits, now_us, run)
        if seen_us > self.known_us and now_us - self.run_began_us < _RESTORE_US:
            self.known_us = seen_us
            for index in _BOTH:
                bucket = self.buckets[index]
                if bucket.limits is not None:
                    level, _ = bucket.limits.refilled(seen[index], 0, elapsed_us=max(0, now_us - seen_us))
                    bucket.level = min(bucket.limits.burst_micro, level + self.moved[index])
                    bucket.carry = 0
                    self._shrink(index)
        return self._result(Status.DONE)

    def reserve(
        self,
        lease_id: LeaseId,
        wanted: Amounts,
        limits: QuotaLimits,
        *,
        lease_us: int,
        now_us: int,
        run: str = "",
    ) -> StepResult:
        """Takes `wanted` if both buckets hold it and the tenant has room for one more request."""
        now_us = self._begin(limits, now_us, run)
        if lease_id in self.settled:
            return self._repeated(lease_id)
        known = self.leases.get(lease_id)
        if known is not None:
            return self._result(Status.DONE, reserved=known.reserved)
        if limits.max_concurrent is not None and len(self.leases) >= limits.max_concurrent:
            return self._result(Status.CROWDED)
        limited = [index for index in _BOTH if limits.buckets[index] is not None]
        if any(wanted[index] > self._burst(index) for index in limited):
            return self._result(Status.NEVER)
        if any(wanted[index] > self.buckets[index].level for index in limited):
            return self._result(Status.REFUSED)
        self._take(lease_id, wanted, expires_us=now_us + lease_us, now_us=now_us)
        return self._result(Status.DONE, reserved=wanted)

    def renew(
        self,
        lease_id: LeaseId,
        totals: Amounts,
        limits: QuotaLimits,
        *,
        lease_us: int,
        now_us: int,
        run: str = "",
        recovered: bool = False,
    ) -> StepResult:
        """Keeps the lease for `lease_us` more and raises its micro-tokens to `totals`, within the debt cap.

        REFUSED leaves the amount as it was. KV is reserved once; what it lacks in the end becomes debt.
        """
        now_us = self._begin(limits, now_us, run)
        if lease_id in self.settled:
            return self._repeated(lease_id)
        lease = self.leases.get(lease_id)
        if lease is None:
            self._take(lease_id, totals, expires_us=now_us + lease_us, now_us=now_us, moves=not recovered)
            return self._result(Status.DONE, reserved=totals)
        lease.expires_us = now_us + lease_us
        self.touched.add(lease_id)
        extra, bucket = totals.tokens_micro - lease.reserved[0], self.buckets[0]
        if extra > 0:
            short = bucket.limits is not None and bucket.level - extra < -limits.debt_cap_micro
            if short and not recovered:
                return self._result(Status.REFUSED, reserved=lease.reserved)
            lease.grants.append((now_us, extra))
            self._hold(lease, 0, extra, moves=not recovered)
            # A recovered raise takes nothing from the level: it may be able to give back less than it holds.
            self._shrink(0)
        return self._result(Status.DONE, reserved=lease.reserved)

    def settle(
        self,
        lease_id: LeaseId,
        charged: Amounts,
        limits: QuotaLimits,
        *,
        now_us: int,
        run: str = "",
        recovered: bool = False,
    ) -> StepResult:
        """Charges and gives the rest back. A charge above what is held becomes debt."""
        if min(charged) < 0:
            raise InvariantError(f"cannot charge {charged} to {lease_id}: negative")
        now_us = self._begin(limits, now_us, run)
        if lease_id in self.settled:
            return self._repeated(lease_id)
        lease = self.leases.get(lease_id)
        grants: tuple[tuple[int, int], ...] = ((now_us, charged.tokens_micro),)
        if lease is None:
            for index in _BOTH:
                if self.buckets[index].limits is not None and not recovered:
                    self._move(index, -charged[index])
            reserved, refunded = charged, NOTHING
        else:
            refunded = self._give_back(lease_id, lease, charged, moves=not recovered)
            grants, reserved = tuple(lease.grants), Amounts(*lease.reserved)
        self.settled[lease_id] = Settlement(reserved, charged, refunded, grants, lease is None, now_us)
        return self._result(Status.DONE, reserved, charged, refunded)

    def check(self) -> None:
        """Raises InvariantError if the books do not agree."""
        for index in _BOTH:
            bucket = self.buckets[index]
            refundable = sum(lease.refundable[index] or 0 for lease in self.leases.values())
            held = sum(lease.reserved[index] for lease in self.leases.values())
            over = bucket.limits is not None and bucket.level + refundable > bucket.limits.burst_micro
            if (refundable, held) != (bucket.refundable, bucket.held) or over:
                raise InvariantError(f"bucket {index}: {bucket}, leases give back {refundable} of {held}")

    def _begin(self, limits: QuotaLimits, now_us: int, run: str) -> int:
        """Refills, takes new limits, lets leases run out. Returns the time to count with: it never goes back."""
        elapsed_us = max(0, now_us - self.updated_us)
        if run != self.run:
            self.run, self.run_began_us, self.known_us = run, max(now_us, self.updated_us), self.updated_us
            self.moved = [0, 0]
        self.updated_us = now_us = max(now_us, self.updated_us)
        for index in _BOTH:
            bucket, wanted = self.buckets[index], limits.buckets[index]
            if bucket.limits is not None:
                bucket.level, bucket.carry = bucket.limits.refilled(
                    bucket.level, bucket.carry, elapsed_us=elapsed_us
                )
            if wanted != bucket.limits:
                begins = bucket.limits is None
                bucket.limits, bucket.carry = wanted, 0
                if wanted is not None:
                    bucket.level = wanted.burst_micro if begins else min(bucket.level, wanted.burst_micro)
            self._shrink(index)
        gone = [lease_id for lease_id, lease in self.leases.items() if lease.expires_us <= now_us]
        for lease_id in gone:
            self._give_back(lease_id, self.leases[lease_id], NOTHING, moves=True)
        return now_us

    def _move(self, index: int, by: int) -> None:
        self.buckets[index].level += by
        if self.updated_us - self.run_began_us < _RESTORE_US:
            self.moved[index] += by

    def _shrink(self, index: int) -> None:
        """Takes from the oldest leases what they can no longer give back."""
        bucket = self.buckets[index]
        if bucket.limits is None:
            return
        excess = bucket.level + bucket.refundable - bucket.limits.burst_micro
        for lease_id, lease in self.leases.items():
            if excess <= 0:
                return
            taken = min(excess, lease.refundable[index] or 0)
            if taken:
                lease.refundable[index] = (lease.refundable[index] or 0) - taken
                self.touched.add(lease_id)
                bucket.refundable -= taken
                excess -= taken

    def _take(
        self, lease_id: LeaseId, amounts: Amounts, *, expires_us: int, now_us: int, moves: bool = True
    ) -> None:
        unlimited = [bucket.limits is None for bucket in self.buckets]
        lease = Lease(
            reserved=[0, 0],
            refundable=[None if free else 0 for free in unlimited],
            expires_us=expires_us,
            order=self.next_order,
            grants=[(now_us, amounts.tokens_micro)],
        )
        self.next_order += 1
        self.leases[lease_id] = lease
        self.touched.add(lease_id)
        for index in _BOTH:
            self._hold(lease, index, amounts[index], moves=moves)
            self._shrink(index)

    def _hold(self, lease: Lease, index: int, amount: int, *, moves: bool) -> None:
        bucket, refundable = self.buckets[index], lease.refundable[index]
        lease.reserved[index] += amount
        bucket.held += amount
        if refundable is not None:
            lease.refundable[index] = refundable + amount
            bucket.refundable += amount
            if moves:
                self._move(index, -amount)

    def _give_back(self, lease_id: LeaseId, lease: Lease, charged: Amounts, *, moves: bool) -> Amounts:
        del self.leases[lease_id]
        self.touched.add(lease_id)
        refunded = []
        for index in _BOTH:
            bucket, refundable, reserved = self.buckets[index], lease.refundable[index], lease.reserved[index]
            bucket.held -= reserved
            rest = reserved - charged[index]
            if refundable is not None:
                bucket.refundable -= refundable
                rest = min(rest, refundable)
                if moves:
                    self._move(index, rest)
            refunded.append(max(0, rest))
        return Amounts(*refunded)

    def _repeated(self, lease_id: LeaseId) -> StepResult:
        known = self.settled[lease_id]
        return self._result(Status.SETTLED, known.reserved, known.charged, known.refunded)

    def _burst(self, index: int) -> int:
        limits = self.buckets[index].limits
        assert limits is not None
        return limits.burst_micro

    def _result(
        self,
        status: Status,
        reserved: Amounts | list[int] = NOTHING,
        charged: Amounts = NOTHING,
        refunded: Amounts = NOTHING,
    ) -> StepResult:
        first, second = self.buckets
        limited = [bucket.limits is not None for bucket in self.buckets]
        return StepResult(
            status=status,
            reserved=Amounts(*reserved),
            charged=charged,
            refunded=refunded,
            level=Amounts(
                *(
                    bucket.level if is_limited else 0
                    for bucket, is_limited in zip(self.buckets, limited, strict=True)
                )
            ),
            carry=Amounts(first.carry, second.carry),
            held=Amounts(first.held, second.held),
            open_leases=len(self.leases),
            now_us=self.updated_us,
        )
