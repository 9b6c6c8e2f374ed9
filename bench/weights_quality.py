"""What int8 and int4 weights cost: how far the next-token distributions move from those of bf16 weights.

    python bench/weights_quality.py [--json] [--quick] [--model FOLDER] [--text FILE]

Every token of a fixed text is predicted from all tokens before it, once with each format. Printed for each:
the mean and the largest Kullback-Leibler divergence of a token's distribution from that of bf16, in nats, how often
the most likely token is the same, and the perplexity of the text over that with bf16.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from bench_report import machine_facts
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.kv import BlockId, GroupId
from ridgeline_contracts.model_folder import ModelFolder, load_model_folder
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_doctor.machine_probe import probe_machine
from ridgeline_engine.executors.sizes import WeightsSetting
from ridgeline_engine.executors.torch_executor.batch import BatchBuilder
from ridgeline_engine.executors.torch_executor.loading import load_model
from ridgeline_engine.executors.torch_executor.native_ops import NativeOps
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_engine.executors.torch_executor.slots import SlotTable
from ridgeline_engine.seam import BlockAppend, Generation, RowPlan, SlotAdmit, SlotId
from ridgeline_transfer.allocator import PrivateAllocator
from tokenizers import Tokenizer
from torch import Tensor

TEXT = Path(__file__).parent / "quality_text.txt"
FORMATS: tuple[WeightsSetting, ...] = ("int8", "int4")
BLOCK_TOKENS = 16
CHUNK_TOKENS = 128
QUICK_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Quality:
    weights: str
    tokens: int
    mean_kl_nats: float
    max_kl_nats: float
    same_top_ratio: float
    """Of tokens whose most likely successor is the same."""
    perplexity_ratio: float
    rounding_error_ratio: float
    """Root mean square of what rounding changed, over that of the weights."""


def log_probabilities(
    folder: ModelFolder, ids: Sequence[int], weights: WeightsSetting, *, cache_dir: Path, threads: int
) -> tuple[Tensor, float]:
    """(fp32 [tokens, vocabulary], rounding error of the weights): what follows each token of `ids`."""
    blocks = -(-len(ids) // BLOCK_TOKENS)
    settings = TorchSettings(
        kv_blocks=blocks,
        cache_dir=cache_dir,
        dtype="bf16",
        weights=weights,
        device="cpu",
        threads=threads,
        block_tokens=BLOCK_TOKENS,
        max_batch=1,
    )
    model = load_model(folder, settings, allocator=PrivateAllocator(), clock=SystemClock())
    slots = SlotTable(model.groups, max_batch=1, max_context_tokens=model.max_context_tokens)
    slots.admit(SlotAdmit(SlotId(0), Generation(1), SamplingParams(max_tokens=1), 0, 0, tuple(ids)))
    for group in range(len(model.groups)):
        slots.append(BlockAppend(SlotId(0), GroupId(group), tuple(map(BlockId, range(blocks)))))
    builder, found = BatchBuilder(slots, model.device), []
    for start in range(0, len(ids), CHUNK_TOKENS):
        chunk = tuple(ids[start : start + CHUNK_TOKENS])
        row = RowPlan(SlotId(0), Generation(1), chunk, start, len(chunk), 0)
        found.append(model.decoder.forward(builder.build([row], {})).log_softmax(dim=-1))
    rounding = model.ops.rounding if isinstance(model.ops, NativeOps) else {}
    return torch.cat(found), max((error.ratio for error in rounding.values()), default=0.0)


def quality(weights: str, base: Tensor, found: Tensor, ids: Sequence[int], *, error_ratio: float) -> Quality:
    """Compares log probabilities [tokens, vocabulary] of what follows each of `ids`."""
    kl = torch.nn.functional.kl_div(found, base, reduction="none", log_target=True).sum(dim=-1)
    following = torch.tensor(ids[1:]).unsqueeze(1)
    lost = base[:-1].gather(1, following) - found[:-1].gather(1, following)
    return Quality(
        weights=weights,
        tokens=len(ids),
        mean_kl_nats=float(kl.mean()),
        max_kl_nats=float(kl.max()),
        same_top_ratio=float((base.argmax(dim=-1) == found.argmax(dim=-1)).double().mean()),
        perplexity_ratio=float(lost.double().mean().exp()),
        rounding_error_ratio=error_ratio,
    )


def measure(
    folder: ModelFolder,
    ids: Sequence[int],
    formats: Sequence[WeightsSetting],
    *,
    cache_dir: Path,
    threads: int,
) -> list[Quality]:
    base, _ = log_probabilities(folder, ids, "auto", cache_dir=cache_dir, threads=threads)
    found = []
    for weights in formats:
        other, error_ratio = log_probabilities(folder, ids, weights, cache_dir=cache_dir, threads=threads)
        found.append(quality(weights, base, other, ids, error_ratio=error_ratio))
    return found


def table(found: Sequence[Quality]) -> str:
    lines = [
        "weights  tokens  mean KL (nats)  max KL (nats)  same top token  perplexity / bf16  rounding error",
    ]
    for one in found:
        lines.append(
            f"{one.weights:<7}  {one.tokens:>6}  {one.mean_kl_nats:>14.5f}  {one.max_kl_nats:>13.4f}  "
            f"{one.same_top_ratio:>14.1%}  {one.perplexity_ratio:>17.4f}  {one.rounding_error_ratio:>14.2%}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    home = Path(os.environ.get("RIDGELINE_HOME", Path.home() / ".cache" / "ridgeline"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=home / "models" / "smollm2-135m-instruct")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK_TOKENS} tokens only")
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args(arguments)
    if not (options.model / "config.json").is_file():
        print(
            f"error: no model in {options.model}: run `ridgeline model fetch`, or give --model",
            file=sys.stderr,
        )
        return 2
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    ids = tokenizer.encode(options.text.read_text(), add_special_tokens=False).ids
    found = measure(
        load_model_folder(options.model),
        ids[:QUICK_TOKENS] if options.quick else ids,
        FORMATS,
        cache_dir=home / "kernels",
        threads=options.threads,
    )
    if options.json:
        rows = [asdict(one) for one in found]
        facts = machine_facts(probe_machine())
        print(json.dumps({"bench": "weights_quality", "machine": facts, "rows": rows}))
    else:
        print(table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
