"""The body of POST /v1/completions."""

from typing import TypeAlias

from pydantic import Field
from ridgeline_contracts.errors import InvalidRequest, Unsupported

from ridgeline_gateway.api_common import GenerationBody, TokenId, check_logprobs, check_stream_options

DEFAULT_OUTPUT_TOKENS = 16
"""OpenAI's default for this endpoint."""
Prompt: TypeAlias = str | list[int]


class CompletionBody(GenerationBody):
    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = Field(default=None, ge=1)
    suffix: str | None = None

    def check(self) -> None:
        """What types alone cannot say. Raises InvalidRequest or Unsupported."""
        check_stream_options(self)
        check_logprobs(self.logprobs, param="logprobs")
        if self.echo:
            raise Unsupported(
                "echo is not supported: put the prompt before the completion yourself", param="echo"
            )
        if self.suffix:
            raise Unsupported("suffix is not supported by this model", param="suffix")
        if self.best_of is not None and self.best_of != self.choices:
            raise Unsupported("best_of other than n is not supported: ask for n choices", param="best_of")
        if not all(self.prompts()):
            raise InvalidRequest("prompt holds an empty prompt: give it text or token ids", param="prompt")

    def prompts(self) -> list[Prompt]:
        """One entry a prompt. An empty list is one empty prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [part for part in self.prompt if isinstance(part, int)]
        several = [part for part in self.prompt if not isinstance(part, int)]
        return [ids] if ids or not several else [*several]
