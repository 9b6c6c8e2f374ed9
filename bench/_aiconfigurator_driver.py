"""aiconfigurator's side of `aiconfigurator_check.py`: run by the Python of its own virtual environment.

Reads one JSON object from stdin: `{"model", "points": [{"phase", "system", "tp", "batch", "tokens"}, ...],
"workload": {"systems", "gpus", "prompt", "output", "ttft_s", "tpot_s"} | null}`, and answers on stdout with
`{"version", "backend", "estimates": [{..., "seconds", "terms": {name: seconds}}, ...], "tokens_per_s_a_gpu":
{system: rate}}`.
"""

import json
import os
import sys
import warnings
from importlib.metadata import version
from typing import Any

BACKEND = "trtllm"


def estimate(api: Any, model: str, point: dict[str, Any]) -> dict[str, Any]:
    """One prompt of `tokens` (phase prefill), or the first decode step behind `tokens` (phase decode)."""
    decodes = point["phase"] == "decode"
    found = api.cli_estimate(
        model,
        point["system"],
        mode="static_gen" if decodes else "static_ctx",
        backend_name=BACKEND,
        isl=point["tokens"],
        osl=2,
        batch_size=point["batch"],
        tp_size=point["tp"],
        gemm_quant_mode="bfloat16",
        kvcache_quant_mode="bfloat16",
        fmha_quant_mode="bfloat16",
    )
    summary = found.summary
    terms = summary.get_generation_latency_dict() if decodes else summary.get_context_latency_dict()
    milliseconds = found.tpot if decodes else found.ttft
    return {
        **point,
        "seconds": milliseconds / 1e3,
        "terms": {name.partition("_")[2]: float(value) / 1e3 for name, value in terms.items() if value > 0},
    }


def throughput(api: Any, model: str, workload: dict[str, Any], system: str) -> float:
    """Output tokens/s a GPU of its best deployment within both targets."""
    found = api.cli_default(
        model,
        workload["gpus"],
        system,
        backend=BACKEND,
        isl=workload["prompt"],
        osl=workload["output"],
        ttft=workload["ttft_s"] * 1e3,
        tpot=workload["tpot_s"] * 1e3,
    )
    return float(found.best_throughputs[found.chosen_exp])


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    # Whatever the tool prints is no answer.
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    from aiconfigurator.cli import api  # type: ignore[import-not-found]

    asked = json.load(sys.stdin)
    workload = asked["workload"]
    answer = {
        "version": version("aiconfigurator"),
        "backend": BACKEND,
        "estimates": [estimate(api, asked["model"], point) for point in asked["points"]],
        "tokens_per_s_a_gpu": {}
        if workload is None
        else {system: throughput(api, asked["model"], workload, system) for system in workload["systems"]},
    }
    json.dump(answer, answers)
    answers.close()


if __name__ == "__main__":
    main()
