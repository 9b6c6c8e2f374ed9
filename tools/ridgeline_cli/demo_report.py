"""What the demo shows of its requests. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from ridgeline_cli.openai_stream import Answer

Figure = float | int | None


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """One request. Each time is named by the clock that took it; None: not told."""

    client_ttft_ms: Figure
    gateway_ttft_ms: Figure
    engine_ttft_ms: Figure
    client_total_ms: Figure
    tokens_per_s: Figure
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    quota_charged: Figure
    """Resource tokens that the request cost."""
    quota_left: Figure
    """Resource tokens in the tenant's bucket after the request; None: unlimited."""


def figures_of(answer: Answer) -> DemoFigures:
    """Takes them from an answer of a Ridgeline gateway."""
    clocks: dict[str, Any] = answer.extension.get("clocks") or {}
    quota: dict[str, Any] = answer.extension.get("quota") or {}
    return DemoFigures(
        client_ttft_ms=answer.client_ttft_ms,
        gateway_ttft_ms=clocks.get("gateway_ttft_ms"),
        engine_ttft_ms=clocks.get("engine_ttft_ms"),
        client_total_ms=answer.client_total_ms,
        tokens_per_s=answer.tokens_per_s,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        completion_tokens=answer.completion_tokens,
        quota_charged=quota.get("charged"),
        quota_left=quota.get("remaining"),
    )


def problem_with(figures: Sequence[DemoFigures]) -> str | None:
    """Why the demo did not show what it is for, or None."""
    first, *others = figures
    if any(one.completion_tokens == 0 for one in figures):
        return "an answer was empty"
    if any(one.cached_tokens == 0 for one in others):
        return f"the repeated prompt of {first.prompt_tokens} tokens found nothing in the prefix cache"
    return None


def _milliseconds(value: Figure) -> str:
    return "-" if value is None else f"{value:,.0f} ms"


def _rate(value: Figure) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _count(value: Figure) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _quota(value: Figure) -> str:
    return "unlimited" if value is None else _count(value)


_LINES: tuple[tuple[str, str, Callable[[Figure], str]], ...] = (
    ("client TTFT", "client_ttft_ms", _milliseconds),
    ("gateway TTFT", "gateway_ttft_ms", _milliseconds),
    ("engine TTFT", "engine_ttft_ms", _milliseconds),
    ("client total", "client_total_ms", _milliseconds),
    ("tokens/s (client, after the first)", "tokens_per_s", _rate),
    ("prompt tokens", "prompt_tokens", _count),
    ("  of them cached", "cached_tokens", _count),
    ("answer tokens", "completion_tokens", _count),
    ("quota charged (resource tokens)", "quota_charged", _count),
    ("quota left (resource tokens)", "quota_left", _quota),
)


def figures_table(figures: Sequence[DemoFigures], names: Sequence[str]) -> Table:
    """A line a figure, a column a request."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for label, field, write in _LINES:
        table.add_row(label, *(write(getattr(one, field)) for one in figures))
    return table
