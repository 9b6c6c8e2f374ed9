"""What an engine offers over an executor, and the settings that cannot be met."""

from dataclasses import replace

from ridgeline_contracts.blockhash import GRANULE_TOKENS
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.errors import SettingsError

from ridgeline_engine.seam import Executor
from ridgeline_engine.settings import EngineSettings

MAX_CHOICES = 128
"""As many as the public API knows; they need not run at once."""


def offered(found: Capabilities, settings: EngineSettings) -> Capabilities:
    """The executor's, with the engine's choices, and a batch that a step can hold."""
    batch = found.max_batch if settings.max_batch is None else min(found.max_batch, settings.max_batch)
    return replace(found, max_batch=min(batch, settings.max_step_tokens), max_choices=MAX_CHOICES)


def check_model(executor: Executor, settings: EngineSettings) -> None:
    """Raises SettingsError for KV groups that cannot be paged, and end tokens that the model does not have."""
    for group in executor.kv_groups:
        if group.block_tokens <= 0 or group.block_tokens % GRANULE_TOKENS:
            raise SettingsError(
                f"block_tokens={group.block_tokens} of KV group {group.group}: "
                f"give a multiple of {GRANULE_TOKENS}",
                param="block_tokens",
            )
        if executor.kv_blocks.get(group.group, 0) < 1:
            raise SettingsError(
                f"KV group {group.group} has no blocks: give the worker more memory", param="kv_blocks"
            )
    vocab_tokens = executor.capabilities.vocab_tokens
    for token in settings.eos_token_ids:
        if not 0 <= token < vocab_tokens:
            raise SettingsError(
                f"end token {token} is not in the vocabulary of {vocab_tokens}", param="eos_token_ids"
            )
