"""What transformers makes of one of our model folders: the reference for exact fp32 results.

Weights are the folder's own, widened to fp32. Greedy choices need seconds of computing, so they are kept in
the user's cache folder under a key of everything that they depend on.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from ridgeline_contracts.model_folder import ModelFolder, load_model_folder

_CACHE_VERSION = 1


def greedy_texts(folder: Path, prompts: Sequence[Sequence[int]], *, output_tokens: int) -> list[str]:
    """The text of each greedy continuation up to the first end token, special tokens left out."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = set(load_model_folder(folder).eos_token_ids)
    texts = []
    for ids in greedy_continuations(folder, prompts, output_tokens=output_tokens):
        kept = next((index for index, token in enumerate(ids) if token in ends), len(ids))
        texts.append(str(tokenizer.decode(list(ids[:kept]), skip_special_tokens=True)))
    return texts


def greedy_continuations(
    folder: Path, prompts: Sequence[Sequence[int]], *, output_tokens: int = 64, cache_dir: Path | None = None
) -> list[tuple[int, ...]]:
    """By prompt: the ids that argmax chooses, end tokens included and passed over. The lowest id wins a
    tie."""
    model_folder = load_model_folder(folder)
    kept_in = cache_dir or Path.home() / ".cache" / "ridgeline" / "oracle"
    path = kept_in / f"{_cache_key(model_folder, prompts, output_tokens)}.json"
    if path.is_file():
        return [tuple(ids) for ids in json.loads(path.read_text())]
    model = reference_model(folder)
    found = [_continue(model, prompt, output_tokens) for prompt in prompts]
    _write_whole(path, json.dumps(found))
    return found


def reference_model(folder: Path) -> Any:
    """transformers' own model of the folder, in fp32 and eager attention."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    return model.eval()


@torch.inference_mode()
def reference_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """fp32 [len(ids), vocab]: what follows each prefix of `ids`."""
    logits: torch.Tensor = model(torch.tensor([list(ids)]), use_cache=False).logits[0]
    return logits


@torch.inference_mode()
def _continue(model: Any, prompt: Sequence[int], output_tokens: int) -> tuple[int, ...]:
    cache = transformers.DynamicCache()
    step = model(torch.tensor([list(prompt)]), cache=cache, logits_to_keep=1)
    ids = [int(step.logits[0, -1].argmax())]
    while len(ids) < output_tokens:
        step = model(torch.tensor([ids[-1:]]), cache=cache)
        ids.append(int(step.logits[0, -1].argmax()))
    return tuple(ids)


def _cache_key(folder: ModelFolder, prompts: Sequence[Sequence[int]], output_tokens: int) -> str:
    facts = {
        "cache": _CACHE_VERSION,
        "weights": folder.weights_revision,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "prompts": [list(prompt) for prompt in prompts],
        "output_tokens": output_tokens,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _write_whole(path: Path, text: str) -> None:
    """Under its final name only once it is complete: other test processes may look for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)
