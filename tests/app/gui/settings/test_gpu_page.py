from __future__ import annotations

import sys
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from app.gui.common.preferences import Preferences
from app.gui.settings import gpu_page
from app.gui.settings.gpu_page import GpuInstaller, GpuPage
from app.gui.settings.settings_dialog import SettingsDialog

FOUND: dict[str, Any] = {
    "state": "ready",
    "folder": "/data/torch",
    "torch": "2.13.0+cu130 (CUDA 13.0)",
    "devices": ["cuda:0 Test GPU"],
    "no_triton": "",
    "failure": "",
    "size": 4_770_000_000,
    "download": 2_740_000_000,
    "unpacked": 4_770_000_000,
}


class ScriptedInstaller(GpuInstaller):
    """Starts nothing; notes what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.is_busy = False

    @property
    def is_installing(self) -> bool:
        return self.is_busy

    def _start(self, part: str, *options: str) -> None:
        self.asked.append(part)

    def cancel_installation(self) -> None:
        self.asked.append("cancel")

    def show(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)
        self.changed.emit()


@pytest.fixture
def installer(qtbot: QtBot) -> ScriptedInstaller:
    return ScriptedInstaller()


@pytest.fixture
def page(qtbot: QtBot, installer: ScriptedInstaller) -> GpuPage:
    page = GpuPage(installer)
    qtbot.addWidget(page)
    page.show()
    return page


def test_it_looks_when_it_is_shown(page: GpuPage, installer: ScriptedInstaller) -> None:
    assert installer.asked == ["status"]
    assert page.state.text() == "Checking …"
    assert not page.install_button.isEnabled()


@pytest.mark.parametrize(
    ("changes", "text", "button"),
    [
        (
            {"state": "absent", "size": 0},
            "Not installed. Download: 2.55 GiB; on disk: 4.44 GiB.",
            "Install",
        ),
        ({"state": "ready"}, "2.13.0+cu130 (CUDA 13.0) is installed. Restart the program", "Check and"),
        ({"state": "active", "folder": "in use"}, "2.13.0+cu130 (CUDA 13.0) is in use.", "Check and"),
        (
            {"state": "failed", "failure": "its test ended with SIGSEGV"},
            "Not used: its test ended",
            "Install",
        ),
        ({"state": "untested"}, "Installed, but not tested successfully.", "Install"),
    ],
)
def test_every_state_is_shown_with_what_can_be_done(
    page: GpuPage,
    installer: ScriptedInstaller,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    text: str,
    button: str,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, "in use"])
    installer.show(status=FOUND | changes)
    assert page.state.text().startswith(text)
    assert page.install_button.text().startswith(button)
    assert page.install_button.isEnabled()
    assert page.remove_button.isEnabled() == bool((FOUND | changes)["size"])
    assert not page.progress.isVisible()
    assert not page.cancel_button.isVisible()


def test_what_the_test_found(page: GpuPage, installer: ScriptedInstaller) -> None:
    installer.show(status=FOUND)
    assert page.note.text() == "cuda:0 Test GPU"
    installer.show(status=FOUND | {"devices": [], "no_triton": "no C compiler"})
    assert page.note.text() == "No GPU was found.\nSlower without Triton: no C compiler."


def test_progress_is_shown_and_can_be_cancelled(page: GpuPage, installer: ScriptedInstaller) -> None:
    installer.show(status=FOUND | {"state": "absent"})
    page.install_button.click()
    installer.show(is_busy=True, part="install", step="download", done=1_370_000_000, total=2_740_000_000)
    assert page.state.text() == "Downloading … 1.28 GiB of 2.55 GiB"
    assert (page.progress.value(), page.progress.maximum()) == (500, 1000)
    assert not page.install_button.isEnabled()
    page.cancel_button.click()
    assert installer.asked == ["status", "install", "cancel"]
    installer.show(step="test", done=0, total=0)
    assert page.state.text() == "Testing …"
    assert page.progress.maximum() == 0  # busy, without an end in sight
    installer.show(part="remove")
    assert page.state.text() == "Removing …"
    assert not page.cancel_button.isVisible()


def test_an_error_is_shown_in_sentences(page: GpuPage, installer: ScriptedInstaller) -> None:
    installer.show(status=FOUND | {"state": "absent"}, error="The disk of / is full. Free some space.")
    assert page.note.text() == "The disk of / is full. Free some space."


def test_removing_is_confirmed(
    page: GpuPage, installer: ScriptedInstaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    installer.show(status=FOUND)
    monkeypatch.setattr(gpu_page, "is_confirmed", lambda *_: False)
    page.remove_button.click()
    assert installer.asked == ["status"]
    monkeypatch.setattr(gpu_page, "is_confirmed", lambda *_: True)
    page.remove_button.click()
    assert installer.asked == ["status", "remove"]


@pytest.mark.slow
def test_the_settings_have_the_page_where_there_is_an_installer(
    qtbot: QtBot, installer: ScriptedInstaller
) -> None:
    def names(dialog: SettingsDialog) -> list[str]:
        qtbot.addWidget(dialog)
        return [dialog.tabs.tabText(index) for index in range(dialog.tabs.count())]

    dialog = SettingsDialog(Preferences(seed=3), None, gpu=installer)
    assert "GPU" in names(dialog)
    assert dialog.preferences() == Preferences(seed=3)
    assert "GPU" not in names(SettingsDialog(Preferences(), None))
