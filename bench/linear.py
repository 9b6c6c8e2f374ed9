"""All linear layers of one step of a small Llama (SmolLM2-135M), ours against the best form torch offers here.

    python bench/linear.py [--json] [--quick] [--threads N] [--cache DIR]

Weights are random: only shapes matter. Every form runs the whole set of matrices, so that weights come from memory as
in a real step, and forms take turns within each repeat. The peer of a row is the library form with the lowest median;
ratio > 1 means that ours is faster.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from bench_report import Compared, interleaved, report_text, table
from ridgeline_doctor.machine_probe import probe_machine
from ridgeline_kernels.cpu import CpuOps, load_cpu_ops
from torch import Tensor
from torch.nn import functional

OURS = "ours"
LAYER_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD_SHAPE = (49152, 576)
HEAD_ROWS = 32
"""Only rows that are sampled go through the output matrix; a prefill has few of them."""


@dataclass(frozen=True, slots=True)
class Sizes:
    layers: int
    head: tuple[int, int]
    rows: tuple[int, ...]
    repeats: int


FULL = Sizes(layers=30, head=HEAD_SHAPE, rows=(1, 8, 32, 128, 800), repeats=5)
QUICK = Sizes(layers=2, head=(4096, 576), rows=(1, 8, 32), repeats=2)

Matrix = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to hold all matrices of the model."""

    name: str
    activations: torch.dtype
    layers: list[list[tuple[int, Matrix]]]
    head: Matrix
    most_rows: int = 1 << 30

    def step_ms(self, inputs: dict[int, Tensor]) -> float:
        begin = time.perf_counter()
        for layer in self.layers:
            for features, matrix in layer:
                matrix(inputs[features])
        self.head(inputs[HEAD_SHAPE[1]][:HEAD_ROWS])
        return (time.perf_counter() - begin) * 1e3


def contender(
    name: str, sizes: Sizes, make: Callable[[Tensor], Matrix], dtype: torch.dtype, activations: torch.dtype
) -> Contender:
    def random(shape: tuple[int, int]) -> Tensor:
        return torch.randn(shape).div_(math.sqrt(shape[1])).to(dtype)

    layers = [[(shape[1], make(random(shape))) for shape in LAYER_SHAPES] for _ in range(sizes.layers)]
    slow = (
        dtype == torch.bfloat16 and activations == dtype and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
    return Contender(name, activations, layers, make(random(sizes.head)), most_rows=8 if slow else 1 << 30)


def ours(ops: CpuOps, sizes: Sizes, dtype: torch.dtype) -> Contender:
    outs: dict[tuple[int, int], Tensor] = {}

    def make(weight: Tensor) -> Matrix:
        linear = ops.pack_linear(weight)

        def run(x: Tensor) -> Tensor:
            shape = (len(x), linear.out_features)
            if shape not in outs:
                outs[shape] = torch.empty(shape)
            return linear(x, outs[shape])

        return run

    return contender(OURS, sizes, make, dtype, torch.float32)


def torch_linear(sizes: Sizes, dtype: torch.dtype) -> Contender:
    def make(weight: Tensor) -> Matrix:
        def run(x: Tensor) -> Tensor:
            return functional.linear(x, weight)

        return run

    return contender(f"torch F.linear {dtype}".replace("torch.", ""), sizes, make, dtype, dtype)


def onednn_packed(sizes: Sizes, rows: int) -> Contender:
    def make(weight: Tensor) -> Matrix:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)

        def run(x: Tensor) -> Tensor:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
            return y

        return run

    return contender("oneDNN packed bfloat16", sizes, make, torch.bfloat16, torch.bfloat16)


def peers(sizes: Sizes, dtype: torch.dtype) -> list[Contender]:
    """What the library offers for these weights; fp32 also stands in for bf16 at twice the memory."""
    found = [torch_linear(sizes, torch.float32)]
    if dtype == torch.bfloat16:
        found.append(torch_linear(sizes, torch.bfloat16))
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            found.append(onednn_packed(sizes, 32))
    return found


def compare(dtype: torch.dtype, sizes: Sizes, ops: CpuOps) -> list[Compared]:
    mine, others = ours(ops, sizes, dtype), peers(sizes, dtype)
    found = []
    for count in sizes.rows:
        running = [mine, *(peer for peer in others if count <= peer.most_rows)]
        inputs = {
            each.name: {size: torch.randn(count, size).to(each.activations) for _, size in LAYER_SHAPES}
            for each in running
        }
        for each in running:
            each.step_ms(inputs[each.name])
        taken: dict[str, list[float]] = {each.name: [] for each in running}
        for _, each in interleaved(running, repeats=sizes.repeats):
            taken[each.name].append(each.step_ms(inputs[each.name]))
        found.append(compared(f"{dtype} weights, {count} rows".replace("torch.", ""), taken))
    return found


def compared(case: str, taken: dict[str, list[float]]) -> Compared:
    """Ours against the library form with the lowest median."""
    peer = min((name for name in taken if name != OURS), key=lambda name: statistics.median(taken[name]))
    return Compared(case, "ms/step", peer, tuple(taken[OURS]), tuple(taken[peer]), higher_is_better=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="a smoke run: two layers, few repeats")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cache", type=Path, help="where the compiled library is kept (a temporary folder)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    sizes = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as scratch:
        ops = load_cpu_ops(options.cache or Path(scratch), options.threads)
        rows = [found for dtype in (torch.bfloat16, torch.float32) for found in compare(dtype, sizes, ops)]
    facts = {"kernels": ops.description, "torch": torch.__version__}
    if options.json:
        print(report_text("linear", probe_machine(), rows, **facts))
    else:
        print(ops.description)
        print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
