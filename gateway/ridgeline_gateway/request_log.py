"""One line a request. Never a prompt, an output or a key."""

import logging

from ridgeline_gateway.run import Bill, RunFacts

_log = logging.getLogger(__name__)


def log_run(facts: RunFacts, bill: Bill, outcome: str) -> None:
    """`outcome` is "ok" or a code of the error tree."""
    clocks = bill.clocks
    ttft_ms = "-" if clocks.gateway_ttft_ms is None else f"{clocks.gateway_ttft_ms:.1f}"
    _log.info(
        "request.done request_id=%s tenant=%s model=%s outcome=%s prompt_tokens=%d cached_tokens=%d output_tokens=%d "
        "attempts=%d gateway_ttft_ms=%s gateway_total_ms=%.1f charged_micro=%d",
        facts.request_id,
        facts.tenant.tenant_id,
        facts.model,
        outcome,
        bill.used.prompt_tokens,
        bill.used.cached_tokens,
        bill.used.output_tokens,
        bill.attempts,
        ttft_ms,
        clocks.gateway_total_ms or 0.0,
        bill.receipt.charged_micro,
    )
