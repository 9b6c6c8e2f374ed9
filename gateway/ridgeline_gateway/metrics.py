"""Prometheus metrics of a gateway. Labels are bounded: tenants and models that exist, codes of the error tree."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from ridgeline_gateway.quota.limits import MICRO
from ridgeline_gateway.run import Bill, RunFacts

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class _ReadCounter(Collector):
    """A counter that is read when it is scraped."""

    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self._name = name
        self._help = help_text
        self._read = read

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(self._name, self._help, value=self._read())


class GatewayMetrics:
    """Holds its own registry."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._requests = Counter(
            "ridgeline_gateway_requests",
            "Requests to generate, by how they ended: ok or a code of the error tree.",
            ("tenant", "model", "outcome"),
            registry=registry,
        )
        self._http = Counter(
            "ridgeline_gateway_http_responses", "HTTP responses by status.", ("status",), registry=registry
        )
        self._tokens = Counter(
            "ridgeline_gateway_tokens",
            "Tokens that tenants were charged for: prompt, cached (part of prompt), output.",
            ("tenant", "model", "kind"),
            registry=registry,
        )
        self._charged = Counter(
            "ridgeline_gateway_charged_resource_tokens",
            "Resource tokens that tenants were charged.",
            ("tenant", "model"),
            registry=registry,
        )
        self._retries = Counter(
            "ridgeline_gateway_retries",
            "Further attempts after a worker was lost.",
            ("model",),
            registry=registry,
        )
        self._ttft = Histogram(
            "ridgeline_gateway_ttft_seconds",
            "From a request's arrival to its first token here, on the gateway's clock.",
            ("model",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._total = Histogram(
            "ridgeline_gateway_request_seconds",
            "From a request's arrival to its settlement, on the gateway's clock.",
            ("model",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._cut = Counter(
            "ridgeline_gateway_slow_readers_cut",
            "Streams that were ended because their client took nothing for too long.",
            registry=registry,
        )
        self._running = Gauge(
            "ridgeline_gateway_requests_in_flight", "Requests that are generating now.", registry=registry
        )

    def slow_reader_cut(self) -> None:
        self._cut.inc()

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A gauge that is read when it is scraped."""
        Gauge(f"ridgeline_gateway_{name}", help_text, registry=self.registry).set_function(read)

    def watch_total(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A counter that another object counts."""
        self.registry.register(_ReadCounter(f"ridgeline_gateway_{name}", help_text, read))

    def http_response(self, status: int) -> None:
        self._http.labels(str(status)).inc()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with self._running.track_inprogress():
            yield

    def run_ended(self, facts: RunFacts, bill: Bill, outcome: str) -> None:
        tenant, model, used = facts.tenant.tenant_id, facts.model, bill.used
        self._requests.labels(tenant, model, outcome).inc()
        self._tokens.labels(tenant, model, "prompt").inc(used.prompt_tokens)
        self._tokens.labels(tenant, model, "cached").inc(used.cached_tokens)
        self._tokens.labels(tenant, model, "output").inc(used.output_tokens)
        self._charged.labels(tenant, model).inc(bill.receipt.charged_micro / MICRO)
        self._retries.labels(model).inc(bill.attempts - 1)
        if bill.clocks.gateway_ttft_ms is not None:
            self._ttft.labels(model).observe(bill.clocks.gateway_ttft_ms / 1000)
        if bill.clocks.gateway_total_ms is not None:
            self._total.labels(model).observe(bill.clocks.gateway_total_ms / 1000)

    def exposition(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)
