"""Slots: each in one place, and never two owners that cannot be told apart."""

import pytest
from ridgeline_contracts.errors import InvariantError
from ridgeline_engine.seam import LaunchId, SlotId
from ridgeline_engine.slots import Lease, Slots


def test_slots_are_handed_out_from_the_lowest_and_counted() -> None:
    slots = Slots(2)
    assert (slots.total, slots.free) == (2, 2)
    assert [slots.take().slot, slots.take().slot] == [0, 1]
    assert slots.free == 0
    with pytest.raises(InvariantError, match=r"^a slot was taken, but none is free$"):
        slots.take()
    slots.check()


def test_each_owner_of_a_slot_has_a_number_of_its_own() -> None:
    slots = Slots(1)
    owners = []
    for _ in range(3):
        owners.append(slots.take())
        slots.give_back(SlotId(0), fence=None)
    assert owners == [Lease(SlotId(0), 1), Lease(SlotId(0), 2), Lease(SlotId(0), 3)]


def test_a_slot_waits_for_the_launch_that_may_still_write_it() -> None:
    slots = Slots(2)
    slots.take()
    slots.take()
    slots.give_back(SlotId(1), fence=LaunchId(4))
    slots.give_back(SlotId(0), fence=LaunchId(5))
    assert slots.free == 0
    slots.check()
    slots.retire(LaunchId(3))
    assert slots.free == 0
    slots.retire(LaunchId(4))
    assert (slots.free, slots.take().slot) == (1, 1)
    slots.retire(LaunchId(5))
    assert slots.free == 1
    slots.check()


def test_a_slot_that_no_launch_touches_is_free_at_once() -> None:
    slots = Slots(1)
    slots.take()
    slots.give_back(SlotId(0), fence=None)
    assert slots.free == 1


def test_a_slot_is_given_back_once() -> None:
    slots = Slots(1)
    slots.take()
    slots.give_back(SlotId(0), fence=LaunchId(1))
    with pytest.raises(InvariantError, match="slot 0 was given back twice"):
        slots.give_back(SlotId(0), fence=None)


def test_the_executor_hears_of_each_release_once_and_in_order() -> None:
    slots = Slots(3)
    for _ in range(3):
        slots.take()
    slots.give_back(SlotId(2), fence=LaunchId(1))
    slots.give_back(SlotId(0), fence=None)
    assert slots.drain_releases() == (2, 0)
    assert slots.drain_releases() == ()


def test_check_finds_a_slot_in_two_places() -> None:
    slots = Slots(2)
    slots.take()
    slots._free.append(SlotId(0))
    with pytest.raises(InvariantError, match="slots lost"):
        slots.check()
