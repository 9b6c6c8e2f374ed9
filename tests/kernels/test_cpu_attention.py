"""Attention over the paged cache, against a plain softmax in double precision."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ridgeline_contracts.errors import InvariantError
from ridgeline_kernels.cpu import CpuOps
from torch import Tensor

Lengths = list[tuple[int, int]]
"""(queries, context) of each sequence."""


def paged_case(
    lengths: Lengths, *, heads: tuple[int, int, int], block_tokens: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """A batch whose blocks lie scattered, with NaN wherever no token was stored."""
    query_heads, kv_heads, head_dim = heads
    needed = [-(-context // block_tokens) for _, context in lengths]
    blocks = sum(needed) + 3
    kv_layer = torch.randn(blocks, kv_heads, 2, block_tokens, head_dim).to(dtype)
    order = torch.randperm(blocks)
    unused = order[sum(needed) :]
    kv_layer[unused] = float("nan")
    tables = torch.full((len(lengths), max([1, *needed])), int(unused[0]), dtype=torch.int32)
    taken = 0
    for index, (_, context) in enumerate(lengths):
        own = order[taken : taken + needed[index]]
        taken += needed[index]
        tables[index, : len(own)] = own.int()
        if context % block_tokens:
            kv_layer[own[-1], :, :, context % block_tokens :] = float("nan")
    starts = torch.tensor([0, *(queries for queries, _ in lengths)]).cumsum(0).int()
    return {
        "q": torch.randn(int(starts[-1]), query_heads, head_dim),
        "kv_layer": kv_layer,
        "block_tables": tables,
        "query_start": starts,
        "context_lens": torch.tensor([context for _, context in lengths], dtype=torch.int32),
    }


def plain_attention(case: dict[str, Tensor], *, scale: float, window: int | None) -> Tensor:
    """One query and head at a time, in double precision."""
    q, cache = case["q"].double(), case["kv_layer"].double()
    block_tokens = cache.shape[3]
    group = q.shape[1] // cache.shape[1]
    out = torch.zeros_like(q)
    for sequence, context in enumerate(case["context_lens"].tolist()):
        begin, end = case["query_start"][sequence : sequence + 2].tolist()
        token = torch.arange(context)
        block = case["block_tables"][sequence][token // block_tokens].long()
        for row in range(begin, end):
            last = context - (end - row)
            first = 0 if window is None else max(0, last - window + 1)
            seen = (block[first : last + 1], token[first : last + 1] % block_tokens)
            for head in range(q.shape[1]):
                keys = cache[seen[0], head // group, 0, seen[1]]
                values = cache[seen[0], head // group, 1, seen[1]]
                out[row, head] = (keys @ q[row, head] * scale).softmax(0) @ values
    return out.float()


def check(ops: CpuOps, case: dict[str, Tensor], *, window: int | None = None) -> None:
    scale = 1 / math.sqrt(case["q"].shape[2])
    found = ops.paged_attention(**case, scale=scale, window=window)
    torch.testing.assert_close(found, plain_attention(case, scale=scale, window=window), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 16), (8, 1, 128), (14, 2, 80), (4, 2, 12)], ids=str)
@pytest.mark.parametrize("window", [None, 1, 7, 70])
def test_decode_rows_and_prefill_chunks_mix_in_one_batch(
    ops: CpuOps, dtype: torch.dtype, heads: tuple[int, int, int], window: int | None
) -> None:
    lengths = [(1, 1), (1, 130), (5, 5), (40, 40), (6, 33), (0, 9), (3, 131)]
    check(ops, paged_case(lengths, heads=heads, block_tokens=16, dtype=dtype), window=window)


@pytest.mark.parametrize("queries", [1, 5, 6, 20])
@pytest.mark.parametrize("context", [31, 32, 33, 63, 64, 65])
def test_contexts_around_a_block_edge(ops: CpuOps, queries: int, context: int) -> None:
    case = paged_case([(queries, context)], heads=(6, 2, 32), block_tokens=32, dtype=torch.bfloat16)
    check(ops, case)


@pytest.mark.parametrize("context", [511, 512, 513, 1024, 1500])
@pytest.mark.parametrize("window", [None, 3, 600])
def test_long_contexts_are_split_and_merged(ops: CpuOps, context: int, window: int | None) -> None:
    lengths = [(1, context), (2, context), (1, 3)]
    check(ops, paged_case(lengths, heads=(3, 1, 16), block_tokens=24, dtype=torch.float32), window=window)


def test_a_prefill_longer_than_a_tile_and_a_chunk_of_keys(ops: CpuOps) -> None:
    check(ops, paged_case([(150, 290)], heads=(3, 1, 16), block_tokens=16, dtype=torch.float32))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 80)).map(lambda pair: (pair[0], sum(pair))),
        min_size=1,
        max_size=6,
    ),
    heads=st.sampled_from([(2, 1, 16), (3, 3, 32), (20, 1, 16)]),
    block_tokens=st.sampled_from([1, 5, 16]),
    window=st.none() | st.integers(1, 90),
)
def test_any_batch_equals_the_plain_softmax(
    best_ops: CpuOps, lengths: Lengths, heads: tuple[int, int, int], block_tokens: int, window: int | None
) -> None:
    torch.manual_seed(1)
    case = paged_case(lengths, heads=heads, block_tokens=block_tokens, dtype=torch.float32)
    check(best_ops, case, window=window)


def test_a_sequence_gives_the_same_bits_alone_and_in_a_batch(ops: CpuOps) -> None:
    if not ops.native:
        assert "reference" in ops.description  # torch's products make no such promise
        return
    lengths = [(1, 700), (30, 90), (4, 60), (1, 5)]
    case = paged_case(lengths, heads=(6, 2, 32), block_tokens=16, dtype=torch.bfloat16)
    together = ops.paged_attention(**case, scale=0.2)
    for index, (queries, _) in enumerate(lengths):
        begin = int(case["query_start"][index])
        alone = ops.paged_attention(
            case["q"][begin : begin + queries],
            case["kv_layer"],
            case["block_tables"][index : index + 1],
            torch.tensor([0, queries], dtype=torch.int32),
            case["context_lens"][index : index + 1],
            scale=0.2,
        )
        assert torch.equal(alone, together[begin : begin + queries]), index


def test_queries_are_read_in_place_from_a_wider_row(ops: CpuOps) -> None:
    case = paged_case([(3, 20), (1, 7)], heads=(4, 2, 16), block_tokens=16, dtype=torch.float32)
    qkv = torch.randn(4, (4 + 2 + 2) * 16)
    strided = qkv[:, : 4 * 16].unflatten(1, (4, 16))
    out = torch.empty(4, 4, 16)
    found = ops.paged_attention(**(case | {"q": strided}), scale=0.25, out=out)
    assert found is out
    dense = ops.paged_attention(**(case | {"q": strided.contiguous()}), scale=0.25)
    assert torch.equal(found, dense)


def test_scores_far_apart_stay_finite(ops: CpuOps) -> None:
    case = paged_case([(1, 40), (20, 40)], heads=(2, 1, 16), block_tokens=16, dtype=torch.float32)
    case["q"] *= 300
    check(ops, case)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"query_start": [0, 1, 3]}, "do not fit", id="rows-left-over"),
        pytest.param({"context_lens": [1, 20]}, "do not fit", id="fewer-tokens-than-queries"),
        pytest.param({"context_lens": [9, 999]}, "do not fit", id="context-past-the-block-table"),
        pytest.param({"block_tables": [[0, 0], [77, 0]]}, "outside the cache", id="block-outside-the-cache"),
        pytest.param({"block_tables": [[0, 0], [-1, 0]]}, "outside the cache", id="negative-block"),
    ],
)
def test_a_batch_that_does_not_fit_together_is_refused(
    ops: CpuOps, change: dict[str, list[int]], message: str
) -> None:
    case = paged_case([(2, 9), (2, 20)], heads=(4, 2, 16), block_tokens=16, dtype=torch.float32)
    case |= {name: torch.tensor(value, dtype=torch.int32) for name, value in change.items()}
    with pytest.raises(InvariantError, match=message):
        ops.paged_attention(**case, scale=0.25)


def test_heads_and_windows_that_make_no_sense_are_refused(ops: CpuOps) -> None:
    case = paged_case([(2, 9)], heads=(4, 2, 16), block_tokens=16, dtype=torch.float32)
    with pytest.raises(InvariantError, match="window must be at least 1"):
        ops.paged_attention(**case, scale=0.25, window=0)
    with pytest.raises(InvariantError, match="do not share"):
        ops.paged_attention(**(case | {"q": torch.zeros(2, 3, 16)}), scale=0.25)


def test_an_empty_batch_gives_no_rows(ops: CpuOps) -> None:
    case = paged_case([(0, 9)], heads=(4, 2, 16), block_tokens=16, dtype=torch.float32)
    assert ops.paged_attention(**case, scale=0.25).shape == (0, 4, 16)
    nothing = {"block_tables": case["block_tables"][:0], "query_start": case["query_start"][:1]}
    nothing["context_lens"] = case["context_lens"][:0]
    assert ops.paged_attention(**(case | nothing), scale=0.25).shape == (0, 4, 16)


@pytest.mark.parametrize(("queries", "context"), [(1, 40), (1, 900), (30, 40)])
def test_what_is_not_a_number_stays_visible_and_in_its_row(ops: CpuOps, queries: int, context: int) -> None:
    lengths = [(queries, context), (1, 9)]
    case = paged_case(lengths, heads=(4, 2, 16), block_tokens=16, dtype=torch.float32)
    case["q"][0, 1] = float("nan")
    found = ops.paged_attention(**case, scale=0.25)
    assert found[0, 1].isnan().all()
    assert found.isnan().sum() == 16
