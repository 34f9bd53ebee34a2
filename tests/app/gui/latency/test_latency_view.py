"""The latency view with the timings of a conversation."""

from __future__ import annotations

import dataclasses
import html
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QRect
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication, QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.themes import DARK, LIGHT, Theme, mix
from app.gui.common.turn_times import LOCAL_STAGES, LatencyStage
from app.gui.latency.definitions import define, number, percentiles, short_name, stage_name, tooltip
from app.gui.latency.latency_view import FigureTile, LatencyView, SpeculationLine
from app.gui.latency.metrics import MAX_LEVELS, SHOWN_TURNS, Metric
from app.gui.latency.plots import LivePlot, turn_window, with_gaps
from app.gui.latency.waterfall import axis_marks, place_labels
from app.session.events import SpeculationMeasured, SpeculationStats
from engine_runtime.timing import TimingEvent
from tests.doubles.scripted_session import all_timings
from tests.tools.colour_vision import VISION, contrast, lab, linear
from tests.tools.widgets import content_of


def test_it_says_what_was_used_and_what_was_discarded(qtbot: QtBot) -> None:
    line = SpeculationLine()
    qtbot.addWidget(line)
    assert line.text() == ""
    line.show_speculation(SpeculationMeasured(SpeculationStats(None, 12, 9, 3, 245.3, 1.62, 40, 31.0)))
    assert "12, used: 9" in line.text()
    assert "245 ms of engine time, 1.6 s of speech" in line.text()
    assert " off" not in line.text()


def test_it_says_why_there_are_none(qtbot: QtBot) -> None:
    line = SpeculationLine()
    qtbot.addWidget(line)
    line.show_speculation(SpeculationMeasured(SpeculationStats("slow_engine")))
    assert " off: the engine is slower" in line.text()
    line.show_speculation(SpeculationMeasured(SpeculationStats("setting")))
    assert line.text() == ""
    line.show_speculation(
        SpeculationMeasured(SpeculationStats("slow_roll_back", 4, 1, 3, 900.0, 0.0, 9, 150.0))
    )
    assert "discarded: 900 ms" in line.text().lower()
    assert " off: the engine takes too long" in line.text()


@pytest.fixture
def view(qtbot: QtBot, theme: Theme) -> LatencyView:
    view = LatencyView(theme)
    qtbot.addWidget(view)
    view.resize(960, 780)
    view.show()
    return view


def tile(view: LatencyView, metric: Metric) -> FigureTile:
    return next(tile for tile in view.tiles if tile.figure is metric)


def figure_of(tile: FigureTile) -> str:
    """The figure in large type."""
    (shown,) = [label for label in tile.findChildren(QLabel) if label.property("role") == "figure"]
    return shown.text()


def texts_of(widget: QWidget) -> list[str]:
    return [label.text() for label in widget.findChildren(QLabel)]


def columns_of(widgets: Iterable[QWidget]) -> int:
    """How many stand side by side."""
    return max(Counter(widget.y() for widget in widgets).values())


@pytest.mark.slow
def test_tiles_show_last_value_and_percentiles(view: LatencyView) -> None:
    view.add_events(all_timings())
    view.redraw()
    for metric in (each.figure for each in view.tiles):
        summary = view.metrics.summary(metric)
        assert summary is not None
        shown = tile(view, metric)
        unit = define(metric).unit
        assert figure_of(shown) == number(summary.last, unit)
        assert percentiles(summary, unit) in texts_of(shown)


def test_a_tile_without_a_value_reads_its_definition_alone(view: LatencyView) -> None:
    for each in view.tiles:
        assert each.accessibleDescription() == define(each.figure).text


def test_every_tile_explains_its_figure(view: LatencyView) -> None:
    view.add_events(all_timings())
    view.redraw()
    for each in view.tiles:
        definition = define(each.figure)
        assert definition.text in each.toolTip()
        assert definition.text in each.accessibleDescription()


def test_the_figures_asked_for_are_all_there(view: LatencyView) -> None:
    shown = {tile.figure for tile in view.tiles}
    shown |= {curve.metric for plot in view.plots.values() for curve in plot.style_of_plot.curves}
    assert shown >= {
        Metric.PREFILL_AT_COMMIT,
        Metric.PREFILL_SPEAKING,
        Metric.TOKENS_AT_COMMIT,
        Metric.TOKEN2MEL,
        Metric.VOCODER,
        Metric.RTF_TOTAL,
        Metric.RTF_STEADY,
        Metric.TTFA,
        Metric.VOICE_TO_VOICE,
        Metric.PLAYBACK,
        Metric.MEMORY,
    }


def ranges(plot: LivePlot) -> tuple[list[float], list[float]]:
    """The ranges of x and y on show."""
    x, y = plot.plot.getPlotItem().getViewBox().viewRange()
    return x, y


def test_curves_hold_the_series(view: LatencyView) -> None:
    view.add_events(all_timings())
    view.redraw()
    response = view.plots["response"]
    x, y = response.curves[Metric.TTFA].line.getData()
    points = view.metrics.series[Metric.TTFA].points()
    np.testing.assert_array_equal(x, points.turns)
    np.testing.assert_array_equal(y, points.medians)
    assert ranges(response)[1][1] >= view.metrics.series[Metric.VOICE_TO_VOICE].points().highest.max()


@pytest.mark.parametrize(
    ("upper_ms", "labels"),
    [
        (4.3, ["0", "0.8", "1.6", "2.4", "3.2", "4.0"]),
        (6.9, ["0", "1.5", "3.0", "4.5", "6.0"]),
        (1.0, ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (1000.0, ["0", "200", "400", "600", "800", "1000"]),
    ],
)
def test_the_marks_of_the_waterfall_differ_in_their_labels(upper_ms: float, labels: list[str]) -> None:
    marks = axis_marks(upper_ms)
    assert [label for _, label in marks] == labels
    assert [value for value, _ in marks] == pytest.approx([float(label) for label in labels])


def test_the_plots_share_one_axis_of_turns(view: LatencyView) -> None:
    view.add_events(all_timings(rounds=9))  # 72 turns
    view.redraw()
    low, high = turn_window(1, 72)
    for name, plot in view.plots.items():
        if name == "playback":
            continue
        assert ranges(plot)[0] == pytest.approx([low, high])
        for metric, curve in plot.curves.items():
            x, y = curve.line.getData()
            assert low <= x.min() <= x.max() <= high
            shown = [each for each in view.tiles if each.figure is metric]
            for each in shown:
                assert figure_of(each) == number(y[-1], define(metric).unit)
    typed = [turn for turn in range(33, 73) if (turn - 1) % 8 in (3, 5)]
    spoken = view.plots["response"].curves[Metric.VOICE_TO_VOICE].line.getData()[0]
    assert sorted([*spoken, *typed]) == list(range(33, 73))


@pytest.mark.parametrize(
    ("first", "newest", "window"),
    [(1, 1, (0.5, 20.5)), (1, 20, (0.5, 20.5)), (1, 21, (0.5, 40.5)), (57, 99, (59.5, 99.5))],
)
def test_the_axis_of_turns(first: int, newest: int, window: tuple[float, float]) -> None:
    assert turn_window(first, newest) == window


def test_an_outlier_is_marked_and_does_not_change_the_scale(view: LatencyView) -> None:
    times_ms = [300.0] * 6 + [30_000.0] + [310.0] * 3
    view.add_events(
        TimingEvent("first_audio", turn, turn, int(ms * 1e6), "engine") for turn, ms in enumerate(times_ms, 1)
    )
    view.redraw()
    plot = view.plots["response"]
    upper = ranges(plot)[1][1]
    assert 310 <= upper <= 500
    x, y = plot.curves[Metric.TTFA].edge.getData()
    assert x.tolist() == [7.0]
    assert 0.9 * upper < y[0] < upper


def test_never_more_points_than_agreed(view: LatencyView) -> None:
    view.add_events(TimingEvent("step", 1 + index // 50, index, 1_000_000, "engine") for index in range(5000))
    view.add_events(
        TimingEvent("playback_buffer", 1, index * 50_000_000, 0, "dialog", {"level_ms": 100.0})
        for index in range(5000)
    )
    view.redraw()
    for name, plot in view.plots.items():
        for curve in plot.curves.values():
            x, _ = curve.line.getData()
            assert x is None or len(x) <= (MAX_LEVELS if name == "playback" else SHOWN_TURNS)


def test_curves_are_cheap_to_draw(view: LatencyView) -> None:
    view.add_events(all_timings())
    view.redraw()
    for plot in view.plots.values():
        for curve in plot.curves.values():
            assert curve.line.opts["antialias"] is False
            assert curve.line.opts["skipFiniteCheck"] is True
            assert curve.line.opts["pen"].width() <= 1
        assert plot.plot.getPlotItem().getViewBox().autoRangeEnabled() == [False, False]


@pytest.mark.slow
def test_nothing_is_drawn_while_hidden(qtbot: QtBot, view: LatencyView) -> None:
    view.hide()
    view.add_events(all_timings())
    qtbot.wait(250)
    assert figure_of(tile(view, Metric.TTFA)) == "–"
    view.show()
    qtbot.waitUntil(lambda: figure_of(tile(view, Metric.TTFA)) != "–")


def test_waterfall_and_its_sum(view: LatencyView) -> None:
    assert "no spoken reply yet" in texts_of(view)
    view.add_events(all_timings())
    view.redraw()
    waterfall = view.metrics.waterfall()
    assert waterfall is not None
    total = f"<b>{number(waterfall.end_ms, 'ms')} ms</b>"
    assert [text for text in texts_of(view) if total in text]
    assert "no spoken reply yet" not in texts_of(view)
    described = view.waterfall.accessibleDescription()
    for stage in LOCAL_STAGES:
        assert f"{stage_name(stage)} {number(waterfall.total_ms(stage), 'ms')} ms" in described


@pytest.mark.slow
def test_the_answers_of_the_detector_are_marks_with_a_definition(view: LatencyView, theme: Theme) -> None:
    assert "perhaps finished" not in view.waterfall.row_text(LatencyStage.ENDPOINTING)
    view.add_events(all_timings())
    view.redraw()
    text = view.waterfall.row_text(LatencyStage.ENDPOINTING)
    assert "from Smart Turn, pitch and level" in text
    assert "0.86 after 224 ms: perhaps finished" in text
    assert "Smart Turn" not in view.waterfall.row_text(LatencyStage.VOCODER)
    assert "End of turn: 0.86 after 224 ms" in view.waterfall.accessibleDescription()
    marked = view.waterfall.grab().toImage()
    waterfall = view.metrics.waterfall()
    assert waterfall is not None
    view.waterfall.show_waterfall(dataclasses.replace(waterfall, ratings=()))
    plain = view.waterfall.grab().toImage()
    changed = {
        marked.pixelColor(x, y).name()
        for x in range(marked.width())
        for y in range(marked.height())
        if marked.pixel(x, y) != plain.pixel(x, y)
    }
    assert QColor(theme.text).name() in changed


@pytest.mark.slow
def test_waterfall_is_painted_in_the_colours_of_its_stages(view: LatencyView, theme: Theme) -> None:
    view.add_events(all_timings())
    view.redraw()
    QApplication.processEvents()
    picture = view.waterfall.grab().toImage()
    colours = {
        picture.pixelColor(x, y).name() for x in range(picture.width()) for y in range(picture.height())
    }
    assert {theme.stages[stage] for stage in LOCAL_STAGES} <= colours


def test_interruptions_are_marked_on_the_playback(view: LatencyView) -> None:
    view.add_events(all_timings())
    newest = float(view.metrics.playback.x[-1])
    origin_ns = all_timings()[0].start_ns
    seconds = [newest - 31, newest - 5, newest - 4, newest - 2]  # the first is no longer on show
    view.add_events(
        TimingEvent("decision", 24, origin_ns + int(second * 1e9), 0, "dialog", {"kind": kind})
        for second, kind in zip(seconds, ("cut", "interrupt", "resume", "cut"), strict=True)
    )
    view.redraw()
    marks = view.plots["playback"].marks
    assert marks is not None
    x, y = marks.item.getData()
    assert x.tolist() == pytest.approx(seconds[1:])
    assert (y < ranges(view.plots["playback"])[1][1]).all()
    assert [spot.symbol() for spot in marks.item.points()] == ["t", "t1", "x"]
    view.clear()
    assert len(marks.item.points()) == 0


def test_nothing_is_drawn_outside_the_range(view: LatencyView) -> None:
    view.add_events(all_timings())
    view.add_events([TimingEvent("first_audio", 24, 0, 30_000_000_000, "engine")])
    view.add_events([TimingEvent("vocoder", 24, 0, 9_000_000_000, "engine", {"chunk": 9})])
    view.redraw()
    for plot in view.plots.values():
        (left, right), (bottom, top) = ranges(plot)
        for curve in plot.curves.values():
            upper = top if not curve.style.on_right else np.inf
            x, y = curve.line.getData()
            assert left <= x.min() <= x.max() <= right
            assert bottom <= y.min() <= y.max() <= upper
            if len(curve.bars.opts["x"]):
                assert (curve.bars.opts["y"] + curve.bars.opts["top"]).max() <= upper


@pytest.mark.slow
def test_lighter_bars_are_work_before_the_turn_was_sure(view: LatencyView, theme: Theme) -> None:
    view.add_events(all_timings())
    view.redraw()
    waterfall = view.metrics.waterfall()
    assert waterfall is not None
    assert "Lighter" not in view.waterfall.row_text(LatencyStage.STEP)
    bars = tuple(
        dataclasses.replace(bar, is_speculative=bar.stage is LatencyStage.TOKEN2MEL) for bar in waterfall.bars
    )
    view.waterfall.show_waterfall(dataclasses.replace(waterfall, bars=bars))
    assert "Lighter bars" in view.waterfall.row_text(LatencyStage.STEP)
    assert "Lighter bars" in view.waterfall.accessibleDescription()
    picture = view.waterfall.grab().toImage()
    colours = {
        picture.pixelColor(x, y).name() for x in range(picture.width()) for y in range(picture.height())
    }
    assert mix(theme.stages[LatencyStage.TOKEN2MEL], theme.surface, 0.5) in colours


def test_clear_starts_over(view: LatencyView) -> None:
    view.add_events(all_timings())
    view.redraw()
    view.add_events([TimingEvent("first_audio", 99, 0, 30_000_000_000, "engine")] * 3)
    view.redraw()
    view.clear()
    assert figure_of(tile(view, Metric.TTFA)) == "–"
    assert ranges(view.plots["response"]) == ([0.5, 20.5], [0.0, 200.0])
    view.add_events([TimingEvent("first_audio", 1, 0, 250_000_000, "engine")])
    view.redraw()
    assert figure_of(tile(view, Metric.TTFA)) == "250"


@pytest.mark.slow
def test_theme_and_columns_change_with_curves_in_place(view: LatencyView) -> None:
    view.add_events(all_timings())
    view.redraw()
    view.set_theme(DARK)
    view.resize(600, 780)
    QApplication.processEvents()
    assert (columns_of(view.tiles), columns_of(view.plots.values())) == (3, 2)
    pen = view.plots["vocoder"].curves[Metric.TOKEN2MEL].line.opts["pen"]
    assert pen.color().name() == DARK.stages[LatencyStage.TOKEN2MEL]


@pytest.mark.parametrize(("width", "columns"), [(960, 6), (600, 3), (400, 2)])
def test_no_tile_is_left_over(view: LatencyView, width: int, columns: int) -> None:
    view.resize(width, 780)
    QApplication.processEvents()
    assert columns_of(view.tiles) == columns
    rows: dict[int, list[QRect]] = defaultdict(list)
    for each in view.tiles:
        rows[each.y()].append(each.geometry())
    edges = {(row[0].left(), row[-1].right()) for row in rows.values()}
    assert len(edges) == 1, "every row is as wide"
    gaps = {right.left() - left.right() for row in rows.values() for left, right in itertools.pairwise(row)}
    assert len(gaps) == 1, "and full"


def test_a_line_of_text_does_not_stretch_the_plots(view: LatencyView) -> None:
    before = content_of(view).height()
    view.speculation.show_speculation(SpeculationMeasured(SpeculationStats(speculated=7, confirmed=5)))
    QApplication.processEvents()
    assert content_of(view).height() <= before + 40


def test_gaps_of_a_time_series_drop_to_zero() -> None:
    x, y = np.array([0.0, 0.1, 5.0, 5.1]), np.array([50.0, 60.0, 70.0, 80.0])
    drawn_x, drawn_y = with_gaps(x, y)
    assert drawn_y.tolist() == [50.0, 60.0, 0.0, 0.0, 70.0, 80.0]
    assert (np.diff(drawn_x) > 0).all()
    same_x, _ = with_gaps(x[:2], y[:2])
    assert same_x is not drawn_x
    assert same_x.tolist() == [0.0, 0.1]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1234.5, "ms", "1234"), (12.34, "ms", "12.3"), (0.318, "", "0.32"), (13.24, "GB", "13.2")],
)
def test_numbers_are_short(value: float, unit: str, text: str) -> None:
    assert number(value, unit) == text


@pytest.mark.parametrize("metric", list(Metric))
def test_every_metric_is_defined(metric: Metric) -> None:
    definition = define(metric)
    assert definition.name
    assert definition.text.endswith((".", "starves.", "chunk."))
    assert definition.name in tooltip(metric, None)


def test_outages_are_said_beside_the_figures_that_leave_them_out(qtbot: QtBot, theme: Theme) -> None:
    view = LatencyView(theme)
    qtbot.addWidget(view)
    view.show()
    view.redraw()
    assert not view.outages.isVisible()
    view.add_events([TimingEvent("outage", 1, 0, 13_000_000_000, "remote", {"reason": "connection"})])
    view.redraw()
    assert view.outages.isVisible()
    assert view.outages.text() == "┊ outages, not counted: 1"
    view.clear()
    assert not view.outages.isVisible()


def test_a_turn_with_an_outage_is_marked_in_every_plot(view: LatencyView) -> None:
    view.add_events(all_timings())
    view.redraw()
    assert all(plot.outage_marks.item.getData()[0] is None for plot in view.plots.values())
    origin_s = all_timings()[0].start_ns / 1e9
    second = round(float(view.metrics.playback.x[-1]) + origin_s) - 5
    view.add_events([TimingEvent("outage", 24, second * 10**9, 10**9, "remote", {"reason": "connection"})])
    view.redraw()
    for name, plot in view.plots.items():
        x, y = plot.outage_marks.item.getData()
        place = second - origin_s if name == "playback" else 24.0
        assert x.tolist() == pytest.approx([place, place])
        assert y.tolist() == [0.0, ranges(plot)[1][1]]
    view.clear()
    assert all(plot.outage_marks.item.getData()[0] is None for plot in view.plots.values())


def test_every_plot_has_a_title_units_and_a_legend(view: LatencyView) -> None:
    view.add_events(all_timings())
    view.redraw()
    units = {
        "prefill": ("ms", "tokens"),
        "vocoder": ("ms", None),
        "rtf": ("ratio", None),
        "response": ("ms", None),
        "steps": ("ms", "GB"),
        "playback": ("ms", None),
    }
    for name, plot in view.plots.items():
        assert plot.title.text() == plot.accessibleName() != ""
        axes = {side: plot.plot.getPlotItem().getAxis(side) for side in ("left", "right", "bottom")}
        assert axes["left"].labelText == units[name][0]
        assert (axes["right"].labelText if axes["right"].isVisible() else None) == units[name][1]
        assert axes["bottom"].labelText == ("s" if name == "playback" else "turn")
        legend = html.unescape(plot.legend.text()).replace("\xa0", " ")
        for metric in plot.curves:
            assert short_name(metric) in legend
    assert "real time" in view.plots["rtf"].legend.text().replace("&nbsp;", " ")
    assert "p95" in view.plots["response"].legend.text()


def test_the_three_main_plots_show_their_newest_value_in_large_type(view: LatencyView) -> None:
    main = {"prefill": Metric.PREFILL_AT_COMMIT, "vocoder": Metric.VOCODER, "rtf": Metric.RTF_TOTAL}
    assert [name for name, plot in view.plots.items() if plot.value.isVisible()] == list(main)
    assert {view.plots[name].value.text() for name in main} == {"–"}
    view.add_events(all_timings())
    view.redraw()
    for name, metric in main.items():
        plot = view.plots[name]
        assert plot.value.text() == figure_of(tile(view, metric))
        assert plot.unit.text() == define(metric).unit
        assert f"{short_name(metric)}".lower() in html.unescape(plot.legend.text()).replace("\xa0", " ")
        assert f"{plot.value.text()} {plot.unit.text()}".rstrip() in plot.accessibleDescription()


@pytest.mark.parametrize("width", [380, 540, 960, 1800])
def test_no_entry_of_a_legend_is_cut(view: LatencyView, width: int) -> None:
    view.resize(width, 900)
    view.add_events(all_timings())
    view.redraw()
    QApplication.processEvents()
    for plot in view.plots.values():
        assert plot.legend.sizeHint().width() <= plot.legend.width()
        assert plot.legend.sizeHint().height() <= plot.legend.height()


MARKS = st.lists(st.tuples(st.floats(0, 500), st.floats(5, 60), st.booleans()), max_size=8)


@given(MARKS)
def test_labels_of_marks_cover_neither_each_other_nor_a_mark(marks: list[tuple[float, float, bool]]) -> None:
    edges = place_labels(marks, 0.0, 500.0, 4.0, 6.0)
    shown = [(left, left + marks[index][1]) for index, left in enumerate(edges) if left is not None]
    for left, right in shown:
        assert left >= 0
        assert right <= 500
        assert all(right + 6 <= place - 4 + 1e-6 or place + 4 + 6 <= left + 1e-6 for place, _, _ in marks)
    for (_, right), (left, _) in itertools.pairwise(sorted(shown)):
        assert right + 6 <= left + 1e-6


def test_a_label_stands_at_its_side_if_there_is_room() -> None:
    assert place_labels([(100, 30, True), (120, 30, False)], 0, 500, 4, 6) == [60, 130]
    assert place_labels([(10, 30, True)], 0, 500, 4, 6) == [20]
    assert place_labels([(10, 30, True), (30, 30, True)], 0, 500, 4, 6) == [None, 40]


def test_the_marks_of_the_waterfall_are_in_its_legend(view: LatencyView) -> None:
    assert not view.waterfall.legend
    view.add_events(all_timings())
    view.redraw()
    assert [text[0] for text in view.waterfall.legend] == ["◆"]
    waterfall = view.metrics.waterfall()
    assert waterfall is not None
    bars = tuple(dataclasses.replace(bar, is_speculative=True) for bar in waterfall.bars)
    view.waterfall.show_waterfall(dataclasses.replace(waterfall, bars=bars, ratings=()))
    assert view.waterfall.legend == ("Lighter bars: before the end of your turn was confirmed.",)


def test_the_curves_of_a_plot_stay_apart(view: LatencyView) -> None:
    for plot, theme, vision in itertools.product(view.plots.values(), (LIGHT, DARK), VISION.values()):
        colours = [theme.ink(curve.style.ink) for curve in plot.curves.values()]
        assert all(contrast(colour, theme.surface) >= 3 for colour in colours)
        seen = [lab(vision @ linear(colour)) for colour in colours]
        assert all(np.linalg.norm(first - second) > 18 for first, second in itertools.combinations(seen, 2))
