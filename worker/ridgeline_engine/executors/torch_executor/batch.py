"""From a plan's rows to the tensors of a flattened batch. Work is a few numpy calls and a short loop over
rows."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from ridgeline_contracts.errors import InvariantError
from torch import Tensor

from ridgeline_engine.executors.torch_executor.ops import DecoderBatch, GroupBatch
from ridgeline_engine.executors.torch_executor.slots import SlotTable
from ridgeline_engine.seam import InputToken, LaunchId, RowPlan, TokenRef


class BatchBuilder:
    """Builds batches for one device from the slots' tables."""

    def __init__(self, slots: SlotTable, device: torch.device) -> None:
        self._slots = slots
        self._device = device

    def build(self, rows: Sequence[RowPlan], sampled: Mapping[LaunchId, Tensor]) -> DecoderBatch:
        """The batch of `rows`, in their order.

        `sampled` holds what earlier launches drew, int64 [their rows] on the device: references are filled in
        there, without waiting for the device. Raises InvariantError for a reference to a launch that is gone.
        """
        facts = np.array(
            [(row.slot, row.start, len(row.tokens), row.logits) for row in rows], dtype=np.int32
        ).reshape(-1, 4)
        slots, starts, counts, wanted = facts.T
        query_start = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(counts, out=query_start[1:])
        total = int(query_start[-1])
        context_lens = starts + counts
        if total == len(rows):  # decode: each row is one token
            owners, positions = slots, starts
        else:
            owners = np.repeat(slots, counts)
            positions = np.repeat(starts - query_start[:-1], counts) + np.arange(total, dtype=np.int32)
        groups = [
            self._group(index, slots, owners, positions, query_start, context_lens)
            for index in range(len(self._slots.groups))
        ]
        return DecoderBatch(
            ids=self._ids(rows, query_start, sampled),
            positions=self._move(positions),
            groups=groups,
            logit_rows=self._move(_logit_rows(wanted, query_start)),
        )

    def _group(
        self,
        index: int,
        slots: npt.NDArray[np.int32],
        owners: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        query_start: npt.NDArray[np.int32],
        context_lens: npt.NDArray[np.int32],
    ) -> GroupBatch:
        group, table = self._slots.groups[index], self._slots.block_tables[index]
        size = group.block_tokens
        blocks = table[owners, positions // size].astype(np.int64)
        widest = group.blocks_for(int(context_lens.max(initial=1)))
        return GroupBatch(
            slot_mapping=self._move(blocks * size + positions % size),
            block_tables=self._move(table[slots, :widest]),
            query_start=self._move(query_start),
            context_lens=self._move(context_lens),
            host_query_start=query_start,
            host_context_lens=context_lens,
            block_tokens=size,
            window_tokens=group.window_tokens,
        )

    def _ids(
        self, rows: Sequence[RowPlan], query_start: npt.NDArray[np.int32], sampled: Mapping[LaunchId, Tensor]
    ) -> Tensor:
        if len(rows) == int(query_start[-1]):
            # Decode: one token a row, known all together or drawn all together, as a rule.
            firsts = [row.tokens[0] for row in rows]
            launches = {token.launch for token in firsts if isinstance(token, TokenRef)}
            sources = [token.row for token in firsts if isinstance(token, TokenRef)]
            if not sources:
                return self._move(np.array(firsts, dtype=np.int64))
            if len(sources) == len(rows) and len(launches) == 1:
                (launch,) = launches
                return _drawn(sampled, launch, sources)[self._move(np.array(sources, dtype=np.int64))]
        host = np.zeros(int(query_start[-1]), dtype=np.int64)
        references: dict[LaunchId, list[tuple[int, int]]] = {}
        for row, start in zip(rows, query_start.tolist(), strict=False):
            refs = _fill(host[start : start + len(row.tokens)], row.tokens)
            for offset, ref in refs:
                references.setdefault(ref.launch, []).append((start + offset, ref.row))
        ids = self._move(host)
        for launch, pairs in references.items():
            drawn = _drawn(sampled, launch, [source for _, source in pairs])
            targets, places = self._move(np.array(pairs, dtype=np.int64).T)
            ids[targets] = drawn[places]
        return ids

    def _move(self, array: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def _drawn(sampled: Mapping[LaunchId, Tensor], launch: LaunchId, rows: Sequence[int]) -> Tensor:
    """What a launch drew, by row. Raises InvariantError where it is gone or has no such rows."""
    if launch not in sampled:
        raise InvariantError(f"an input token refers to launch {launch}, of which nothing is kept")
    drawn = sampled[launch]
    if not (min(rows) >= 0 and max(rows) < len(drawn)):
        raise InvariantError(
            f"an input token refers to a row of launch {launch} past its {len(drawn)}: {sorted(rows)}"
        )
    return drawn


def _fill(target: npt.NDArray[np.int64], tokens: Sequence[InputToken]) -> list[tuple[int, TokenRef]]:
    """Writes the known ids into `target`; returns the references with their offsets."""
    if len(tokens) > 1:
        try:
            target[:] = np.array(tokens, dtype=np.int64)
        except TypeError:
            pass  # a reference among them: drafts behind a token that is still open
        else:
            return []
    refs = []
    for offset, token in enumerate(tokens):
        if isinstance(token, TokenRef):
            refs.append((offset, token))
        else:
            target[offset] = token
    return refs


def _logit_rows(wanted: npt.NDArray[np.int32], query_start: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Indices of the tokens that want logits: the last `wanted` ones of each row, in the rows' order."""
    ends = query_start[1:].astype(np.int64)
    if (wanted == 1).all():
        return ends - 1
    before = np.cumsum(wanted) - wanted
    return np.repeat(ends - wanted - before, wanted) + np.arange(int(wanted.sum()))
