"""PNG of the latency view without a window."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication

from app.gui.common.themes import DARK, LIGHT, Theme
from app.gui.common.turn_times import LOCAL_STAGES
from app.gui.latency.snapshot import SIZE, save_latency_png
from engine_runtime.errors import ExportError
from tests.doubles.scripted_session import all_timings


@pytest.mark.slow
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_the_picture_holds_the_stages(qapp: QApplication, tmp_path: Path, theme: Theme) -> None:
    path = tmp_path / "latency.png"
    save_latency_png(path, all_timings(), theme)
    image = QImage(str(path))
    assert (image.width(), image.height()) == (SIZE.width(), SIZE.height())
    colours = {
        image.pixelColor(x, y).name() for x in range(image.width()) for y in range(0, image.height(), 2)
    }
    assert {theme.stages[stage] for stage in LOCAL_STAGES} <= colours


def test_no_events_yield_an_empty_view(qapp: QApplication, tmp_path: Path) -> None:
    save_latency_png(tmp_path / "empty.png", [])
    assert not QImage(str(tmp_path / "empty.png")).isNull()


@pytest.mark.slow
def test_a_folder_that_is_not_there_is_explained(qapp: QApplication, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="gone"):
        save_latency_png(tmp_path / "gone" / "a.png", [])


@pytest.mark.slow
def test_it_works_in_a_process_without_a_display(tmp_path: Path, repository: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from app.gui.latency.snapshot import save_latency_png; "
        "from tests.doubles.scripted_session import all_timings; "
        "save_latency_png(Path(sys.argv[1]), all_timings())"
    )
    environment = {
        key: value for key, value in os.environ.items() if key not in ("DISPLAY", "QT_QPA_PLATFORM")
    }
    path = tmp_path / "a.png"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, cwd=repository, env=environment)
    assert path.stat().st_size > 10_000


@pytest.mark.slow
def test_a_picture_needs_no_display(repository: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from app.gui.latency.snapshot import save_latency_png\n"
        "save_latency_png(Path(sys.argv[1]), [])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.png")]
    environment = {**os.environ, "QT_QPA_PLATFORM": "cinema", "DISPLAY": "nowhere:99"}
    subprocess.run(command, cwd=repository, env=environment, check=True)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
