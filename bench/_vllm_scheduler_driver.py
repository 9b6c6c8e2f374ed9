"""vLLM's side of `engine_host.py`, run by the Python of vLLM's own environment.

vLLM's own scheduler class, as its engine builds it from default arguments, with prefix caching; a step is
`schedule()` and `update_from_output()` over made-up model output, in the order that its engine core calls them.
Frames, KV events and statistics are off: it does less than our side. Nothing is computed and no weight is read.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from host_cases import (
    BLOCK_TOKENS,
    BLOCKS,
    CONTEXT_TOKENS,
    EOS_TOKEN_ID,
    MAX_BATCH,
    STEP_TOKENS,
    VOCABULARY_TOKENS,
    Case,
    Traffic,
    Watch,
)

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": VOCABULARY_TOKENS,
    "max_position_embeddings": CONTEXT_TOKENS,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": EOS_TOKEN_ID,
    "torch_dtype": "bfloat16",
}


def take_stdout() -> TextIO:
    """The real stdout for answers; file descriptor 1 is pointed at stderr for everybody else."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def engine_config(folder: Path, *, asynchronous: bool) -> Any:
    """vLLM's whole configuration, for a model that is only described."""
    from vllm.engine.arg_utils import EngineArgs

    (folder / "config.json").write_text(json.dumps(_CONFIG))
    config = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        load_format="dummy",
        max_model_len=CONTEXT_TOKENS,
        max_num_seqs=MAX_BATCH,
        max_num_batched_tokens=STEP_TOKENS,
        block_size=BLOCK_TOKENS,
        enable_prefix_caching=True,
    ).create_engine_config()
    if asynchronous:
        # On a CPU vLLM takes it back: its executor there cannot. The scheduler alone can.
        config.scheduler_config.async_scheduling = True
    return config


@dataclass(slots=True)
class Peer:
    """Makes a new scheduler for each case."""

    config: Any

    @property
    def scheduler_class(self) -> Any:
        return self.config.scheduler_config.get_scheduler_cls()

    @property
    def launches(self) -> int:
        """Steps that may be planned before the first of them is committed."""
        return int(self.config.max_concurrent_batches)

    def scheduler(self) -> Any:
        import torch
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=3, head_size=64, dtype=torch.bfloat16)
        layers = [f"layer{index}" for index in range(30)]
        cache = KVCacheConfig(
            num_blocks=BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(layers, spec)],
            hash_block_size=BLOCK_TOKENS,
            cache_hit_alignment_tokens=BLOCK_TOKENS,
        )
        self.config.cache_config.num_gpu_blocks = BLOCKS
        return self.scheduler_class(
            vllm_config=self.config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            log_stats=False,
        )

    def hasher(self) -> Any:
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        hash_function = get_hash_fn_by_name(self.config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        return get_request_block_hasher(BLOCK_TOKENS, hash_function)


@dataclass(slots=True)
class Loop:
    """One case: the engine core's loop without an engine core."""

    scheduler: Any
    hasher: Any
    launches: int
    traffic: Traffic
    watch: Watch
    _open: deque[tuple[Any, Any]] = field(default_factory=deque)
    _begun: set[str] = field(default_factory=set)

    def run(self) -> None:
        while self.watch.before_step(decoding=len(self._begun) >= self.traffic.case.sequences):
            self._submit()
            while len(self._open) < self.launches:
                if not self._schedule():
                    break
            self._update()

    def _submit(self) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        with self.watch.stopped():
            due = [
                (name, prompt, SamplingParams(max_tokens=output_tokens, ignore_eos=True, detokenize=False))
                for name, prompt, output_tokens in self.traffic.due()
            ]
        for name, prompt, sampling in due:
            self.scheduler.add_request(
                Request(
                    name, prompt, sampling, pooling_params=None, cache_salt="salt", block_hasher=self.hasher
                )
            )

    def _schedule(self) -> bool:
        output = self.scheduler.schedule()
        with self.watch.stopped():
            if not output.total_num_scheduled_tokens:
                return False
            self._open.append((output, self._made_up(output)))
        return True

    def _made_up(self, output: Any) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        tokens = []
        for index, name in enumerate(names):
            request = self.scheduler.requests[name]
            position = request.num_computed_tokens
            tokens.append([] if request.is_prefill_chunk else [100 + (index * 7919 + position * 31) % 40_000])
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=tokens,
        )

    def _update(self) -> None:
        given = self.scheduler.update_from_output(*self._open.popleft())
        with self.watch.stopped():
            for each in given.values():
                if self.watch.prefilling:
                    self._begun.update(row.request_id for row in each.outputs)
                self.watch.tokens += sum(len(row.new_token_ids) for row in each.outputs)
                self.traffic.ended(sum(row.finish_reason is not None for row in each.outputs))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=("default", "asynchronous"), default="default")
    options = parser.parse_args()
    answers = take_stdout()
    with tempfile.TemporaryDirectory(prefix="engine-host-") as folder:
        import vllm
        from vllm.config import set_current_vllm_config

        peer = Peer(engine_config(Path(folder), asynchronous=options.mode == "asynchronous"))
        with set_current_vllm_config(peer.config):
            hasher = peer.hasher()
            name = f"{vllm.__version__} {peer.scheduler_class.__name__}, {peer.launches} open"
            print(json.dumps({"ready": True, "version": name}), file=answers)
            try:
                for line in sys.stdin:
                    case = Case.read(json.loads(line))
                    watch = Watch(case)
                    loop = Loop(peer.scheduler(), hasher, peer.launches, Traffic(case), watch)
                    gc.collect()
                    # As vLLM's engine core does before it starts.
                    gc.freeze()
                    loop.run()
                    print(json.dumps(watch.answer()), file=answers)
            except KeyboardInterrupt:
                pass


if __name__ == "__main__":
    main()
