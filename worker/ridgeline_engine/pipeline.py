"""Launches between hand-over and completion: two at most, completed in their order.

While launch n runs, n + 1 is planned and handed over; its rows name tokens that n still samples (TokenRef). A row
that needs a mask is sampled once n is committed, since the mask depends on n's token; all others at once.
"""

from collections import deque
from dataclasses import dataclass

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvariantError, Unsupported
from ridgeline_contracts.step import StepModel

from ridgeline_engine.drafting import OpenLaunch, StepDraft
from ridgeline_engine.masks import MaskSource, fill_masks, needs_masks
from ridgeline_engine.seam import Executor, LaunchId, RepeatingExecutor, SlotId, StepResult
from ridgeline_engine.sequence import Sequence

MAX_OPEN_LAUNCHES = 2
"""What the seam allows."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The oldest launch with what the executor gave for it, in the order of its rows."""

    opened: OpenLaunch
    result: StepResult
    completed_ms: float


class Pipeline:
    """Hands plans to the executor and takes results. It knows no queue and ends no sequence."""

    def __init__(self, executor: Executor, clock: Clock, masks: MaskSource | None) -> None:
        self._executor, self._clock, self._masks = executor, clock, masks
        self._open: deque[OpenLaunch] = deque()
        self._unsampled: deque[OpenLaunch] = deque()
        self._last_launch = LaunchId(0)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def fence(self) -> LaunchId | None:
        """The newest open launch: what it may touch is given back when it completes."""
        return self._open[-1].plan.launch if self._open else None

    @property
    def next_launch(self) -> LaunchId:
        return LaunchId(self._last_launch + 1)

    def start(
        self, draft: StepDraft, model: StepModel, *, release: tuple[SlotId, ...], started_ms: float
    ) -> tuple[tuple[Sequence, Exception], ...]:
        """Launches a draft that has rows. Returns the sequences whose mask could not be made."""
        opened = self._opened(draft, model, release=release, started_ms=started_ms)
        plan = opened.plan
        self._executor.launch(plan)
        if self._open and needs_masks(self._masks, opened):
            self._open.append(opened)
            self._unsampled.append(opened)
            return ()
        filled = fill_masks(self._masks, opened)
        self._executor.sample(plan.launch, filled.by_slot)
        self._open.append(opened)
        return filled.failed

    def complete(self) -> Completion | None:
        """Waits for the oldest launch; None where none is open.

        Raises DeviceFault from the executor, InvariantError where it answered for another launch: that leaves
        the open one open.
        """
        if not self._open:
            return None
        opened = self._open[0]
        result = self._executor.complete(opened.plan.launch)
        completed_ms = self._clock.monotonic_ms()
        if result.launch != opened.plan.launch or len(result.rows) != len(opened.plan.rows):
            raise InvariantError(
                f"launch {opened.plan.launch} was completed as {result.launch}, or rows are lacking"
            )
        self._open.popleft()
        return Completion(opened, result, completed_ms)

    @property
    def only_open(self) -> OpenLaunch | None:
        """The launch that is open alone; None where none is, or two are."""
        return self._open[0] if len(self._open) == 1 else None

    def again(self, draft: StepDraft, model: StepModel, *, started_ms: float) -> Completion:
        """Runs and completes a draft whose rows are those of the launch completed last, a token further.

        Raises Unsupported where the executor cannot repeat a step.
        """
        if not isinstance(self._executor, RepeatingExecutor):
            raise Unsupported("this executor cannot repeat a step: complete each with Engine.complete")
        opened = self._opened(draft, model, release=(), started_ms=started_ms)
        result = self._executor.again(opened.plan.launch, opened.plan.appends)
        return Completion(opened, result, self._clock.monotonic_ms())

    def sample_next(self) -> tuple[tuple[Sequence, Exception], ...]:
        """After a commit: samples the launch that waited for it, if one did. Returns as `start` does."""
        if not self._unsampled:
            return ()
        opened = self._unsampled.popleft()
        filled = fill_masks(self._masks, opened)
        self._executor.sample(opened.plan.launch, filled.by_slot)
        return filled.failed

    def _opened(
        self, draft: StepDraft, model: StepModel, *, release: tuple[SlotId, ...], started_ms: float
    ) -> OpenLaunch:
        shape = draft.shape
        opened = OpenLaunch(
            plan=draft.plan(release=release),
            sequences=tuple(draft.sequences),
            shape=shape,
            cached_tokens=draft.cached_tokens,
            predicted_ms=model.predict_ms(shape),
            started_ms=started_ms,
            host_ms=self._clock.monotonic_ms() - started_ms,
        )
        self._last_launch = opened.plan.launch
        return opened

    def close(self) -> None:
        """Closes the executor; open launches come to nothing."""
        self._executor.close()
