"""vLLM's side of `engine_vs_vllm.py`, run by the Python of vLLM's own environment.

One JSON object a line on stdin, one answer a line on stdout; everything that vLLM prints goes to stderr.
`{"prompts": [[id, ...], ...], "output_tokens": n}` is answered by `{"seconds": s, "output_tokens": n}`. The
process stays alive and blocked on stdin between runs. VLLM_ENABLE_V1_MULTIPROCESSING=0 keeps the engine in
this process.
"""

import argparse
import json
import os
import sys
import time
from typing import Any, TextIO


def take_stdout() -> TextIO:
    """The real stdout for answers; file descriptor 1 is pointed at stderr for everybody else."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def build_llm(options: argparse.Namespace) -> Any:
    from vllm import LLM

    return LLM(
        model=options.model,
        dtype=options.dtype,
        enforce_eager=options.mode == "eager",
        enable_prefix_caching=False,
        max_model_len=options.context_tokens,
        max_num_seqs=options.max_batch,
        disable_log_stats=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--mode", choices=["eager", "compiled"], required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context-tokens", type=int, default=1024)
    parser.add_argument("--max-batch", type=int, default=32)
    options = parser.parse_args()
    answers = take_stdout()
    llm = build_llm(options)

    import vllm
    from vllm import SamplingParams

    print(json.dumps({"ready": True, "version": vllm.__version__}), file=answers)
    for line in sys.stdin:
        work = json.loads(line)
        params = SamplingParams(
            temperature=0.0, max_tokens=work["output_tokens"], ignore_eos=True, detokenize=False
        )
        prompts = [{"prompt_token_ids": ids} for ids in work["prompts"]]
        started = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        made = sum(len(output.outputs[0].token_ids) for output in outputs)
        print(json.dumps({"seconds": seconds, "output_tokens": made}), file=answers)


if __name__ == "__main__":
    main()
