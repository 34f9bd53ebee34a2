"""Names and definitions of all metrics, in the language of the window.

Tiles, plots and waterfall show the same definition in their tooltips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import QCoreApplication

from app.gui.common.turn_times import LatencyStage, Rating
from app.gui.latency.metrics import SHOWN_TURNS, Metric, SeriesSummary

translate = QCoreApplication.translate
PlotName = Literal["prefill", "vocoder", "rtf", "response", "steps", "playback"]


@dataclass(frozen=True, slots=True)
class Definition:
    """Name, unit ("ms" or nothing) and definition of a figure."""

    name: str
    unit: str
    text: str


def define(metric: Metric) -> Definition:
    """The definition of a figure in the current language."""
    return Definition(_name(metric), _UNITS.get(metric, "ms"), _text(metric))


def short_name(metric: Metric) -> str:
    """The name of a figure in the legend of a plot whose title says the rest."""
    names = {
        Metric.PREFILL_SPEAKING: translate("Definitions", "while speaking"),
        Metric.PREFILL_AT_COMMIT: translate("Definitions", "at commit"),
        Metric.TOKENS_AT_COMMIT: translate("Definitions", "tokens at commit"),
        Metric.TOKEN2MEL: "token2mel",
        Metric.VOCODER: translate("Definitions", "vocoder"),
        Metric.RTF_TOTAL: translate("Definitions", "total"),
        Metric.RTF_STEADY: translate("Definitions", "steady"),
    }
    return names.get(metric) or _name(metric)


def unit_name(unit: str, value: float) -> str:
    """The unit of a value in the current language."""
    if unit != "tokens":
        return unit
    return translate("Definitions", "token") if round(value) == 1 else translate("Definitions", "tokens")


def plot_title(plot: PlotName) -> str:
    """The title of a plot in the current language."""
    titles: dict[PlotName, str] = {
        "prefill": translate("Definitions", "Prefill"),
        "vocoder": translate("Definitions", "Vocoder per chunk"),
        "rtf": translate("Definitions", "RTF, real-time factor"),
        "response": translate("Definitions", "Response time"),
        "steps": translate("Definitions", "Decode step and memory"),
        "playback": translate("Definitions", "Playback buffer"),
    }
    return titles[plot]


def plot_text(plot: PlotName) -> str:
    """What a plot shows, and how to read it."""
    outside = " " + translate("Definitions", "Triangles at the upper edge mark values off the scale.")
    spread = " " + translate("Definitions", "Bars reach from the smallest to the largest.") + outside
    texts: dict[PlotName, str] = {
        "prefill": translate(
            "Definitions",
            "Per turn, in ms: at the commit, and the median of the calls while you speak; tokens at commit "
            "on the right.",
        )
        + spread,
        "vocoder": translate("Definitions", "Per turn, median of its chunks in ms: vocoder and token2mel.")
        + spread,
        "rtf": translate(
            "Definitions",
            "Per turn. Dashed line: real time; below it a reply is generated faster than it is played.",
        )
        + outside,
        "response": translate("Definitions", "Per turn, in ms; dashed p50, dotted p95.") + outside,
        "steps": translate(
            "Definitions",
            "Per turn: median decode step of the language model in ms on the left, memory in use in GB on "
            "the right.",
        )
        + spread,
        "playback": translate(
            "Definitions", "Generated audio not yet played, in ms, over the last 30 seconds."
        )
        + " "
        + translate("Definitions", "▼ interrupted, ▲ resumed, ✕ cut."),
    }
    return texts[plot]


def turn_axis_name() -> str:
    """The title of an axis of turns."""
    return translate("Definitions", "turn")


def time_axis_name() -> str:
    """The title of an axis of milliseconds."""
    return translate("Definitions", "time in ms")


def ratio_name() -> str:
    """The title of an axis without a unit."""
    return translate("Definitions", "ratio")


def real_time_name() -> str:
    """The name of the line at a real-time factor of 1."""
    return translate("Definitions", "real time")


def stage_name(stage: LatencyStage) -> str:
    """The name of a stage in the current language."""
    names = {
        LatencyStage.ENDPOINTING: translate("Definitions", "Endpointing"),
        LatencyStage.PREFILL: translate("Definitions", "Prefill at commit"),
        LatencyStage.STEP: translate("Definitions", "Decode, first chunk"),
        LatencyStage.TOKEN2MEL: translate("Definitions", "token2mel, first chunk"),
        LatencyStage.VOCODER: translate("Definitions", "Vocoder, first chunk"),
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
        LatencyStage.PREFILL: _text(Metric.PREFILL_AT_COMMIT),
        LatencyStage.STEP: translate(
            "Definitions", "Decode steps until the speech codes of the first chunk are complete."
        ),
        LatencyStage.TOKEN2MEL: translate(
            "Definitions", "Flow matching: speech codes of the first chunk to mel frames."
        ),
        LatencyStage.VOCODER: translate("Definitions", "Mel frames of the first chunk to samples."),
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


def stage_sentence(stage: LatencyStage) -> str:
    """What happens in a stage, in one sentence for people who see it for the first time."""
    texts = {
        LatencyStage.ENDPOINTING: translate(
            "Definitions", "Waits in the silence until it is sure that you have finished."
        ),
        LatencyStage.PREFILL: translate(
            "Definitions",
            "The language model reads the end of your question; the rest it read while you spoke.",
        ),
        LatencyStage.STEP: translate(
            "Definitions", "The language model writes the first speech codes, one per step."
        ),
        LatencyStage.TOKEN2MEL: translate(
            "Definitions", "Flow matching turns these codes into a mel spectrogram."
        ),
        LatencyStage.VOCODER: translate("Definitions", "The vocoder turns the mel spectrogram into sound."),
        LatencyStage.SERVER: translate("Definitions", "The server makes the first sound of the reply."),
        LatencyStage.NETWORK: translate("Definitions", "Question and reply travel to the server and back."),
        LatencyStage.HOLD: translate(
            "Definitions", "Holds the first sound back for a moment, so that the reply does not stutter."
        ),
        LatencyStage.DEVICE: translate("Definitions", "The sound card plays its next block."),
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


def rating_legend() -> str:
    """What a mark on the bar of the endpointing is."""
    return translate("Definitions", "Probability at a pause that you have finished.")


def speculation_text() -> str:
    """Explains the lighter bars of a waterfall."""
    return translate("Definitions", "Lighter bars: before the end of your turn was confirmed.")


def glossary() -> list[tuple[str, str]]:
    """Names and definitions of the figures and stages of a picture, each once."""
    figures = [define(metric) for metric in Metric if metric is not Metric.CHUNK_AUDIO]
    entries = {figure.name: figure.text for figure in figures}
    for stage in LatencyStage:
        entries.setdefault(stage_name(stage), stage_text(stage))
    entries[f"◆ {rating_name()}"] = rating_definition()
    return list(entries.items())


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
    Metric.TOKENS_AT_COMMIT: "tokens",
    Metric.RTF_TOTAL: "",
    Metric.RTF_STEADY: "",
    Metric.FIRST_CHUNK_RATIO: "",
    Metric.MEMORY: "GB",
}


def _name(metric: Metric) -> str:
    names = {
        Metric.PREFILL_SPEAKING: translate("Definitions", "Prefill while speaking"),
        Metric.PREFILL_AT_COMMIT: translate("Definitions", "Prefill at commit"),
        Metric.TOKENS_AT_COMMIT: translate("Definitions", "Tokens at commit"),
        Metric.STEP: translate("Definitions", "Decode step"),
        Metric.TOKEN2MEL: translate("Definitions", "token2mel per chunk"),
        Metric.VOCODER: translate("Definitions", "Vocoder per chunk"),
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
        Metric.PREFILL_SPEAKING: translate(
            "Definitions",
            "One prefill call of the language model while you speak; it delays no reply.",
        ),
        Metric.PREFILL_AT_COMMIT: translate(
            "Definitions",
            "Prefill of the tokens that were left when the turn was committed, as in the waterfall.",
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
