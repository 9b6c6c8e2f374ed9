"""What a worker measures, for Prometheus. Labels hold classes, kinds and codes: never a tenant or a text."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from ridgeline_engine.request import PriorityClass, Request
from ridgeline_engine.snapshots import EngineCounts, LoadSnapshot, StepStats

from ridgeline_worker.messages import StepDone

_STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class WorkerMetrics:
    """One worker's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counts = EngineCounts()
        self._define_steps()
        self._define_state()
        self._define_events()

    def _define_steps(self) -> None:
        def seconds(name: str, text: str) -> Histogram:
            return Histogram(
                f"ridgeline_worker_step_{name}",
                text,
                buckets=_STEP_BUCKETS_S,
                unit="seconds",
                registry=self.registry,
            )

        self._step_measured = seconds("measured", "Time of an engine step, as measured.")
        self._step_predicted = seconds("predicted", "Time of an engine step, as the step model predicted it.")
        self._step_host = seconds("host", "Part of a step that the host spent outside the device.")
        self._step_device = seconds("device", "Part of a step that the device worked.")
        self._batch = Histogram(
            "ridgeline_worker_batch_rows", "Rows of a step.", buckets=_BATCH_BUCKETS, registry=self.registry
        )
        self._tokens = Counter(
            "ridgeline_worker_tokens",
            "Tokens by kind: prefill (computed), cached (prefix hits), decode.",
            ["kind"],
            registry=self.registry,
        )

    def _define_state(self) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"ridgeline_worker_{name}", text, labels, registry=self.registry)

        self._ready = gauge("ready", "1 when the core is ready.")
        self._running = gauge("requests_running", "Sequences in the batch.")
        self._waiting = gauge("requests_waiting", "Sequences that wait, by class.", "priority_class")
        self._waiting_tokens = gauge(
            "waiting_tokens", "Prompt tokens still to be computed, by class.", "priority_class"
        )
        self._blocks = gauge(
            "kv_blocks",
            "KV blocks: total, used, cached (free, but a prefix could hit), quarantined (an open launch may touch "
            "them), and of the host's pool for swapped sequences host and host_used.",
            "state",
        )
        self._stranded = gauge("kv_stranded_bytes", "Cached KV that no hit can reach.")
        self._sessions = gauge("sessions", "Gateways that hold a stream.")

    def _define_events(self) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ridgeline_worker_{name}", text, labels, registry=self.registry)

        self._submitted = counter(
            "requests_submitted", "Requests given to the engine, by class.", "priority_class"
        )
        self._refused = counter("requests_refused", "Requests refused, by error code.", "code")
        self._preemptions = counter(
            "preemptions",
            "Sequences that had to give way, by cause and kind: recompute and swap lost their blocks, wait paused.",
            "cause",
            "kind",
        )
        self._wasted = counter("wasted_rows", "Rows launched before the end of their text was known.")
        self._faulted = counter(
            "choices_faulted",
            "Choices that ended by a fault in their row (device) or their request (host).",
            "where",
        )
        self._deaths = counter("core_deaths", "Cores that ended unasked, by error code.", "code")
        self._lost = counter("requests_lost", "Requests that were running when a core died.")
        self._lapsed = counter("sessions_lapsed", "Sessions ended because the gateway did not read.")

    def core_ready(self, load: LoadSnapshot | None) -> None:
        """A new core counts from 0."""
        self._ready.set(1)
        self._counts = EngineCounts()
        self._set_load(load)

    def core_lost(self, code: str, *, requests: int) -> None:
        self._ready.set(0)
        self._deaths.labels(code).inc()
        self._lost.inc(requests)
        self._set_load(None)

    def step_done(self, done: StepDone) -> None:
        if done.counts is not None:
            self._count(done.counts)
        if done.load is not None:
            self._set_load(done.load)
        if done.stats is not None:
            self._observe(done.stats)

    def submitted(self, request: Request) -> None:
        self._submitted.labels(request.priority.value).inc()

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def session_lapsed(self) -> None:
        self._lapsed.inc()

    def sessions(self, count: int) -> None:
        self._sessions.set(count)

    def _observe(self, stats: StepStats) -> None:
        timed = (
            (self._step_measured, stats.step_ms),
            (self._step_predicted, stats.predicted_ms),
            (self._step_host, stats.host_ms),
            (self._step_device, stats.device_ms),
        )
        for histogram, value_ms in timed:
            histogram.observe(value_ms / 1000)
        self._batch.observe(stats.batch)
        self._tokens.labels("prefill").inc(stats.shape.prefill_tokens)
        self._tokens.labels("decode").inc(stats.shape.decode_rows)
        self._tokens.labels("cached").inc(stats.cached_tokens)

    def _count(self, now: EngineCounts) -> None:
        before, self._counts = self._counts, now
        known = {(cause, kind): count for cause, kind, count in before.preemptions}
        for cause, kind, count in now.preemptions:
            self._preemptions.labels(cause, kind).inc(count - known.get((cause, kind), 0))
        self._wasted.inc(now.wasted_rows - before.wasted_rows)
        self._faulted.labels("device").inc(now.row_faults - before.row_faults)
        self._faulted.labels("host").inc(now.host_faults - before.host_faults)

    def _set_load(self, load: LoadSnapshot | None) -> None:
        self._running.set(0 if load is None else load.running)
        blocks = dict.fromkeys(("total", "used", "cached", "quarantined", "host", "host_used"), 0)
        if load is not None:
            blocks = {
                "total": load.total_blocks,
                "used": load.total_blocks - load.free_blocks - load.quarantined_blocks,
                "cached": load.cached_blocks,
                "quarantined": load.quarantined_blocks,
                "host": load.host_blocks,
                "host_used": load.host_used_blocks,
            }
        for state, count in blocks.items():
            self._blocks.labels(state).set(count)
        self._stranded.set(0 if load is None else load.stranded_bytes)
        by_class = {} if load is None else {each.priority: each for each in load.classes}
        for priority in PriorityClass:
            found = by_class.get(priority)
            self._waiting.labels(priority.value).set(0 if found is None else found.waiting)
            self._waiting_tokens.labels(priority.value).set(0 if found is None else found.waiting_tokens)
