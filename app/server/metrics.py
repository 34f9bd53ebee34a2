"""Metrics for Prometheus.

In: timings of the engine (any thread), what happens to sessions and responses (event loop). Out: the text
that /metrics serves. Definitions of the latencies are those of app/README.md.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from app.server.engine_pool import EnginePool
from engine_runtime.timing import TimingBus, TimingEvent

_SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)


class Metrics:
    """Those of one process."""

    def __init__(self, pool: EnginePool) -> None:
        registry = self._registry = CollectorRegistry()
        self.sessions = Counter(
            "moss_voice_sessions", "Sessions by how they ended.", ["end"], registry=registry
        )
        self.refused = Counter(
            "moss_voice_refused_connections",
            "Connections refused, by HTTP status.",
            ["status"],
            registry=registry,
        )
        self.responses = Counter(
            "moss_voice_responses", "Responses by their status.", ["status"], registry=registry
        )
        self.errors = Counter(
            "moss_voice_client_errors", "Error events sent to clients, by code.", ["code"], registry=registry
        )
        self._ttfa = Histogram(
            "moss_voice_ttfa_seconds",
            "Commit of the turn to the first PCM sample.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._rtf = Histogram(
            "moss_voice_rtf_total", "Engine time of a reply / its audio.", buckets=_FACTORS, registry=registry
        )
        taken = Gauge("moss_voice_conversations", "Conversations in progress.", registry=registry)
        taken.set_function(lambda: pool.conversations)
        capacity = Gauge("moss_voice_conversation_limit", "Conversations that fit.", registry=registry)
        capacity.set_function(lambda: pool.capacity)
        blocks = Gauge("moss_voice_kv_blocks", "Blocks of the KV cache.", ["state"], registry=registry)
        blocks.labels("used").set_function(lambda: pool.stats.used if pool.stats is not None else 0)
        blocks.labels("free").set_function(lambda: pool.stats.free if pool.stats is not None else 0)

    def watch(self, timing: TimingBus) -> None:
        """Observe the durations of an engine."""
        timing.subscribe(self._note)

    def _note(self, event: TimingEvent) -> None:
        """Engine thread."""
        if event.name == "first_audio":
            self._ttfa.observe(event.duration_ns / 1e9)
        elif event.name == "reply" and "rtf_total" in event.attributes:
            self._rtf.observe(float(event.attributes["rtf_total"]))

    def render(self) -> bytes:
        """In the text format of Prometheus."""
        return generate_latest(self._registry)
