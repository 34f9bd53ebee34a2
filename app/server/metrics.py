"""Metrics for Prometheus.

In: timings of the engine (any thread), what happens to sessions and responses (event loop). Out: the text
that /metrics serves. Definitions of the latencies are those of app/MANUAL.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from app.session.engine_host import EngineHost
from engine_runtime.timing import TimingBus, TimingEvent

_SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)


class Metrics:
    """Those of one process."""

    def __init__(self, host: EngineHost) -> None:
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
        taken.set_function(lambda: host.conversations)
        capacity = Gauge("moss_voice_conversation_limit", "Conversations that fit.", registry=registry)
        capacity.set_function(lambda: host.capacity)
        blocks = Gauge("moss_voice_kv_blocks", "Blocks of the KV cache.", ["state"], registry=registry)
        blocks.labels("used").set_function(lambda: host.stats.used if host.stats is not None else 0)
        registry.register(_EngineTime(host))
        blocks.labels("free").set_function(lambda: host.stats.free if host.stats is not None else 0)

    def watch(self, timing: TimingBus) -> None:
        """Observe the durations of an engine."""
        timing.subscribe(self._note)

    def _note(self, event: TimingEvent) -> None:
        """Any thread: durations of a speculative reply come when it is confirmed."""
        if event.name == "first_audio":
            self._ttfa.observe(event.duration_ns / 1e9)
        elif event.name == "reply" and "rtf_total" in event.attributes:
            self._rtf.observe(float(event.attributes["rtf_total"]))

    def render(self) -> bytes:
        """In the text format of Prometheus."""
        return generate_latest(self._registry)


class _EngineTime(Collector):
    """How long the engine has computed, for all conversations."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    def collect(self) -> list[Metric]:
        times = self._host.scheduler.times.summary().values()
        seconds = sum(time.total_ns for time in times) / 1e9
        what = "Time that the engine computed: its rate is the share of the GPU in use."
        return [CounterMetricFamily("moss_voice_engine_busy_seconds", what, value=seconds)]


class _Families(Collector):
    """Metrics that were read, as prometheus_client collects them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> list[Metric]:
        return self._families


def merged(texts: Mapping[str, bytes]) -> bytes:
    """The metrics of several replicas in one text, each sample labelled with its replica; those of a single
    unnamed one as they are."""
    if list(texts) == [""]:
        return texts[""]
    families: dict[str, Metric] = {}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text.decode()):
            into = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                into.samples.append(sample._replace(labels=sample.labels | {"replica": replica}))
    registry = CollectorRegistry()
    registry.register(_Families(families.values()))
    return generate_latest(registry)
