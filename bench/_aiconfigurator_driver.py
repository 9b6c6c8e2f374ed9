"""Runs in aiconfigurator's own environment: its estimates of Qwen3 32B in BF16 as one JSON object on stdout."""

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

MODEL = "Qwen/Qwen3-32B"
BACKEND = "trtllm"
SYSTEMS = ("h100_sxm", "b200_sxm")
RANKS = (1, 2, 4)
BATCHES = (1, 8, 32, 128)
CONTEXTS = (512, 4000, 16000)
PROMPTS = (500, 2000, 4000, 16000)
TARGET = {"isl": 4000, "osl": 500, "ttft": 1000, "tpot": 30}


def session(system: str, tp: int) -> Any:
    from aiconfigurator.sdk import common, config, inference_session, models, perf_database
    from aiconfigurator.sdk.backends.factory import get_backend

    version = perf_database.get_latest_database_version(system, BACKEND)
    database = perf_database.get_database(system, BACKEND, version)
    chosen = config.ModelConfig(
        tp_size=tp,
        gemm_quant_mode=common.GEMMQuantMode.bfloat16,
        kvcache_quant_mode=common.KVCacheQuantMode.bfloat16,
        fmha_quant_mode=common.FMHAQuantMode.bfloat16,
    )
    model = models.get_model(MODEL, chosen, BACKEND)
    return inference_session.InferenceSession(model, database, get_backend(BACKEND))


def estimates(system: str, tp: int) -> Iterator[dict[str, Any]]:
    """Rows of milliseconds: decode by batch and context, prefill by prompt."""
    from aiconfigurator.sdk.config import RuntimeConfig

    opened = session(system, tp)
    for batch in BATCHES:
        for context in CONTEXTS:
            # Two output tokens: one decode step, right behind the prompt.
            found = opened.run_static(RuntimeConfig(batch_size=batch, isl=context, osl=2), mode="static_gen")
            ms = float(found.get_summary_df().iloc[0]["tpot"])
            yield {"system": system, "tp": tp, "phase": "decode", "batch": batch, "tokens": context, "ms": ms}
    for prompt in PROMPTS:
        found = opened.run_static(RuntimeConfig(batch_size=1, isl=prompt, osl=1), mode="static_ctx")
        ms = float(found.get_summary_df().iloc[0]["ttft"])
        yield {"system": system, "tp": tp, "phase": "prefill", "batch": 1, "tokens": prompt, "ms": ms}


def best(system: str) -> dict[str, Any]:
    """Most tokens/s a GPU within the targets, over the ranks."""
    from aiconfigurator.sdk.config import RuntimeConfig

    found = []
    for tp in RANKS:
        result = session(system, tp).find_best_agg_result_under_constraints(RuntimeConfig(**TARGET))
        frame = result.get_summary_df()
        if len(frame):
            found.append({"tp": tp, "tokens_per_s_gpu": float(frame.iloc[0]["tokens/s/gpu"])})
    return {"system": system, **max(found, key=lambda each: each["tokens_per_s_gpu"])}


def main() -> None:
    logging.disable(logging.CRITICAL)
    import importlib.metadata

    print(
        json.dumps(
            {
                "source": f"aiconfigurator {importlib.metadata.version('aiconfigurator')}, {BACKEND}",
                "model": MODEL,
                "dtype": "bf16",
                "target": TARGET,
                "rows": [row for system in SYSTEMS for tp in RANKS for row in estimates(system, tp)],
                "best": [best(system) for system in SYSTEMS],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
