"""What both generation endpoints take: sampling options, their ranges, and what may be ignored."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from ridgeline_contracts.errors import InvalidRequest, Unsupported
from ridgeline_contracts.sampling import MAX_LOGPROBS, SamplingParams

from ridgeline_gateway.choice_stream import TextRules
from ridgeline_gateway.served_models import ServedModel
from ridgeline_gateway.settings import LimitSettings

TokenId = Annotated[int, Field(ge=0, lt=2**32)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Padding against traffic analysis; not done."""


class GenerationBody(BaseModel):
    """Fields of both endpoints. Unknown ones are refused: they might change the output."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(min_length=1, max_length=256)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    """Ignored: tenants are known by their keys."""
    metadata: dict[str, Any] | None = None
    """Ignored, as are the other fields that do not change the output."""
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    # Beyond OpenAI's: what the engine can do and other servers call by the same names.
    top_k: int | None = Field(default=None, ge=0, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=10)
    min_tokens: int | None = Field(default=None, ge=0, lt=2**31)
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = None

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def choices(self) -> int:
        return self.n or 1


def check_stream_options(body: GenerationBody) -> None:
    """Raises InvalidRequest for stream options without a stream."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")


def text_rules(body: GenerationBody, *, logprobs: bool, limits: LimitSettings) -> TextRules:
    """Raises InvalidRequest for stop strings that are empty, too many or too long."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > limits.max_stop_strings:
        raise InvalidRequest(
            f"stop has {len(stops)} strings; at most {limits.max_stop_strings}", param="stop"
        )
    if not all(stops):
        raise InvalidRequest("stop holds an empty string: leave it out", param="stop")
    if any(len(stop) > limits.max_stop_characters for stop in stops):
        raise InvalidRequest(
            f"a stop string has more than {limits.max_stop_characters} characters", param="stop"
        )
    return TextRules(tuple(stops), logprobs)


def sampling_params(
    body: GenerationBody, model: ServedModel, *, max_tokens: int, logprobs: int | None
) -> SamplingParams:
    """Checked against ranges and against what the pool can do. Raises InvalidRequest or Unsupported."""
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias or {}),
        logprobs=logprobs,
        # A negative seed is as good as any; the engine's are unsigned.
        seed=None if body.seed is None else body.seed % 2**64,
        stop_token_ids=tuple(dict.fromkeys(body.stop_token_ids or ())),
        ignore_eos=bool(body.ignore_eos),
    )
    params.check(vocab_tokens=model.capabilities.vocab_tokens)
    _check_capabilities(params, body.choices, model)
    return params


def check_logprobs(top: int | None, *, param: str) -> None:
    """Raises InvalidRequest unless 0 to 20 alternatives are asked for."""
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(f"{param}={top} is out of range: give 0 to {MAX_LOGPROBS}", param=param)


def _check_capabilities(params: SamplingParams, choices: int, model: ServedModel) -> None:
    can = model.capabilities
    penalised = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
    lacking = {
        "n": choices > can.max_choices,
        "logprobs": params.logprobs is not None and not can.logprobs,
        "presence_penalty": bool(penalised) and not can.penalties,
        "seed": params.seed is not None and not can.seed,
    }
    for param, lacks in lacking.items():
        if lacks:
            limit = f" (at most {can.max_choices})" if param == "n" else ""
            raise Unsupported(
                f"model {model.name!r} cannot do what {param} asks for here{limit}", param=param
            )


def _logit_bias(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    if not all(name.isascii() and name.isdigit() for name in given):
        raise InvalidRequest("logit_bias maps token ids, as decimal strings, to numbers", param="logit_bias")
    return tuple(sorted((int(name), float(bias)) for name, bias in given.items()))
