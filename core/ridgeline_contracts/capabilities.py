"""What a worker can do. The gateway answers 400 for what a pool lacks, instead of ignoring it."""

from dataclasses import dataclass

from ridgeline_contracts.kv import KVGroup


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Published in the worker's Hello; it does not change during one incarnation."""

    executor: str
    """torch, vllm or twin."""
    device: str
    weights_dtype: str
    vocab_tokens: int
    max_context_tokens: int
    max_batch: int
    kv_groups: tuple[KVGroup, ...]
    kinds: frozenset[str] = frozenset({"generate"})
    """Of generate, embed."""
    constraints: frozenset[str] = frozenset()
    """Of json_schema, regex, grammar."""
    max_choices: int = 1
    logprobs: bool = False
    penalties: bool = False
    seed: bool = False
    adapters: bool = False
    media: bool = False
    deterministic: bool = False
    kv_transfer: frozenset[str] = frozenset()
    """Back ends by which KV can be sent or fetched: nixl, shm, tcp."""
