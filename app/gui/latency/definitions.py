"""Names and definitions of all metrics, in the language of the window.

Tiles, plots and waterfall show the same definition in their tooltips.
"""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication

from app.gui.common.turn_times import LatencyStage, Rating
from app.gui.latency.metrics import SHOWN_TURNS, Metric, SeriesSummary

translate = QCoreApplication.translate


@dataclass(frozen=True, slots=True)
class Definition:
    """Name, unit ("ms" or nothing) and definition of a figure."""

    name: str
    unit: str
    text: str


def define(metric: Metric) -> Definition:
    """The definition of a figure in the current language."""
    return Definition(_name(metric), _UNITS.get(metric, "ms"), _text(metric))


def unit_name(unit: str, value: float) -> str:
    """The unit of a value in the current language."""
    if unit != "tokens":
        return unit
    return translate("Definitions", "token") if round(value) == 1 else translate("Definitions", "tokens")


def stage_name(stage: LatencyStage) -> str:
    """The name of a stage in the current language."""
    names = {
        LatencyStage.ENDPOINTING: translate("Definitions", "Endpointing"),
        LatencyStage.PREFILL: translate("Definitions", "Prefill"),
        LatencyStage.STEP: translate("Definitions", "Decode steps"),
        LatencyStage.TOKEN2MEL: translate("Definitions", "token2mel"),
        LatencyStage.VOCODER: translate("Definitions", "Vocoder"),
        LatencyStage.SERVER: translate("Definitions", "Server"),
        LatencyStage.NETWORK: translate("Definitions", "Network"),
        LatencyStage.HOLD: translate("Definitions", "Playback hold"),
        LatencyStage.DEVICE: translate("Definitions", "Device"),
    }
    return names[stage]


def stage_text(stage: LatencyStage) -> str:
    """Description of a stage between question and first sound."""
    texts = {
        LatencyStage.ENDPOINTING: _text(Metric.ENDPOINTING),
        LatencyStage.PREFILL: translate(
            "Definitions", "Tokens that were still to be prefilled when the turn was committed."
        ),
        LatencyStage.STEP: translate(
            "Definitions", "Decode steps until the first packet of speech codes is complete."
        ),
        LatencyStage.TOKEN2MEL: translate(
            "Definitions", "Flow matching: speech codes of the first packet to mel frames."
        ),
        LatencyStage.VOCODER: translate("Definitions", "Mel frames of the first packet to samples."),
        LatencyStage.SERVER: translate(
            "Definitions", "Request → first audio, without the network: the time the server took."
        ),
        LatencyStage.NETWORK: translate(
            "Definitions",
            "Request → first audio, minus the server's own time to first audio; if the server "
            "does not report that, the round trip of a ping.",
        ),
        LatencyStage.HOLD: translate(
            "Definitions",
            "First sample ready → start of playback: deliberate buffering, so that the reply does not "
            "stutter.",
        ),
        LatencyStage.DEVICE: translate(
            "Definitions",
            "Start of playback → first sample at the loudspeaker: the next block and the latency "
            "of the device.",
        ),
    }
    return texts[stage]


def rating_name() -> str:
    """The name of an answer of the end-of-turn detector."""
    return translate("Definitions", "End of turn")


def rating_definition() -> str:
    """The definition of an answer of the detector."""
    return translate(
        "Definitions",
        "Probability at a pause that you have finished: from Smart Turn, pitch and level, "
        "and from the language model where it can tell. It decides how much silence ends the "
        "turn.",
    )


def rating_text(rating: Rating) -> str:
    """Probability, time and consequence of an answer."""
    texts = {
        "likely": translate("Definitions", "%1 after %2 ms: finished"),
        "possible": translate("Definitions", "%1 after %2 ms: perhaps finished"),
        "unlikely": translate("Definitions", "%1 after %2 ms: not finished"),
        "finished": translate("Definitions", "%1 after %2 ms: finished, by the language model"),
        "unfinished": translate("Definitions", "%1 after %2 ms: not finished, by the language model"),
    }
    values = (f"{rating.probability:.2f}", f"{rating.answered_ms:.0f}")
    return texts[rating.stage].replace("%1", values[0]).replace("%2", values[1])


def speculation_text() -> str:
    """Explains the lighter bars of a waterfall."""
    return translate("Definitions", "Lighter bars: done before the end of your turn was confirmed.")


def number(value: float, unit: str) -> str:
    """A value rounded to about three digits, without its unit."""
    if unit == "ms":
        return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}"
    if unit == "GB":
        return f"{value:.1f}"
    return f"{value:.0f}" if unit == "tokens" else f"{value:.2f}"


def percentiles(summary: SeriesSummary, unit: str) -> str:
    """Both percentiles in short."""
    return f"p50 {number(summary.p50, unit)}  p95 {number(summary.p95, unit)}"


def tooltip(metric: Metric, summary: SeriesSummary | None) -> str:
    """Definition and statistics of a figure, as rich text."""
    definition = define(metric)
    lines = [f"<b>{definition.name}</b>", definition.text]
    if summary is not None:
        values = translate("Definitions", "last %1, mean %2, p50 %3, p95 %4, maximum %5").replace("%", "\0")
        numbers = (summary.last, summary.mean, summary.p50, summary.p95, summary.maximum)
        for index, value in enumerate(numbers, start=1):
            unit = unit_name(definition.unit, value)
            values = values.replace(f"\0{index}", f"{number(value, definition.unit)} {unit}".rstrip())
        lines.append(values)
        lines.append(
            translate("Definitions", "over the last 30 seconds")
            if metric is Metric.PLAYBACK
            else translate("Definitions", "values in the last %2 turns: %1")
            .replace("%1", str(summary.count))
            .replace("%2", str(SHOWN_TURNS))
        )
    return "<qt>" + "<br>".join(lines) + "</qt>"


_UNITS = {
    Metric.PREFILL_TOKENS: "tokens",
    Metric.TOKENS_AT_COMMIT: "tokens",
    Metric.RTF_TOTAL: "",
    Metric.RTF_STEADY: "",
    Metric.FIRST_CHUNK_RATIO: "",
    Metric.MEMORY: "GB",
}


def _name(metric: Metric) -> str:
    names = {
        Metric.PREFILL: translate("Definitions", "Prefill"),
        Metric.PREFILL_TOKENS: translate("Definitions", "Prefill tokens"),
        Metric.TOKENS_AT_COMMIT: translate("Definitions", "Tokens at commit"),
        Metric.STEP: translate("Definitions", "Decode step"),
        Metric.TOKEN2MEL: translate("Definitions", "token2mel"),
        Metric.VOCODER: translate("Definitions", "Vocoder"),
        Metric.CHUNK_AUDIO: translate("Definitions", "Audio per chunk"),
        Metric.TTFA: translate("Definitions", "TTFA"),
        Metric.CONFIRM_TO_SOUND: translate("Definitions", "Confirmed to sound"),
        Metric.ENDPOINTING: translate("Definitions", "Endpointing"),
        Metric.VOICE_TO_VOICE: translate("Definitions", "Voice to voice"),
        Metric.RTF_TOTAL: translate("Definitions", "RTF total"),
        Metric.RTF_STEADY: translate("Definitions", "RTF steady"),
        Metric.FIRST_CHUNK_RATIO: translate("Definitions", "First-chunk ratio"),
        Metric.MEMORY: translate("Definitions", "Memory"),
        Metric.PLAYBACK: translate("Definitions", "Playback buffer"),
    }
    return names[metric]


def _text(metric: Metric) -> str:
    texts = {
        Metric.PREFILL: translate(
            "Definitions",
            "One prefill call of the language model, while you speak and at the commit of the turn.",
        ),
        Metric.PREFILL_TOKENS: translate(
            "Definitions", "Tokens of a prefill call, each a speech code or a text token."
        ),
        Metric.TOKENS_AT_COMMIT: translate(
            "Definitions",
            "Tokens left to prefill when the turn is committed; the others were prefilled while you spoke.",
        ),
        Metric.STEP: translate(
            "Definitions", "One decode step of the language model: one position of text or speech."
        ),
        Metric.TOKEN2MEL: translate("Definitions", "Flow matching, speech codes to mel frames, per chunk."),
        Metric.VOCODER: translate("Definitions", "Mel frames to samples, per chunk."),
        Metric.CHUNK_AUDIO: translate("Definitions", "Length of the audio in a chunk."),
        Metric.TTFA: translate(
            "Definitions", "Time to first audio: commit of the turn → first sample of the reply is ready."
        ),
        Metric.CONFIRM_TO_SOUND: translate(
            "Definitions",
            "End of turn confirmed → first sample of the reply is handed to the device. A "
            "reply that was ready takes no time.",
        ),
        Metric.ENDPOINTING: translate("Definitions", "Last sample of your speech → commit of the turn."),
        Metric.VOICE_TO_VOICE: translate(
            "Definitions",
            "Last sample of your speech → first sample of the reply at the device, its latency included.",
        ),
        Metric.RTF_TOTAL: translate(
            "Definitions",
            "Real-time factor of a complete reply: its wall time / its audio. "
            "Below 1 is faster than real time.",
        ),
        Metric.RTF_STEADY: translate(
            "Definitions",
            "Wall time per chunk after the first / audio of the chunk. Below 1, playback never runs dry.",
        ),
        Metric.FIRST_CHUNK_RATIO: translate(
            "Definitions",
            "TTFA / audio of the first chunk. Not a real-time factor: it includes the wait for that chunk.",
        ),
        Metric.MEMORY: translate(
            "Definitions",
            "Memory in use at the end of a reply: GPU memory of all programs, as the driver "
            "counts it; without a GPU, the main memory of the engine process.",
        ),
        Metric.PLAYBACK: translate("Definitions", "Generated reply audio that is not yet played."),
    }
    return texts[metric]
