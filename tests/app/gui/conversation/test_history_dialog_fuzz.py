"""The window with kept conversations of any content: it starts, lists and shows what can be read."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from app import paths
from app.gui.common.icons import Icons
from app.gui.common.preferences import PreferenceStore
from app.gui.common.themes import Theme
from app.gui.conversation.history_dialog import HistoryDialog
from app.gui.window.main_window import MainWindow
from app.session.events import ConversationContinued
from tests.doubles.scripted_session import ScriptedSession
from tests.tools.kept_conversations import ABOUT, CONTENTS, HISTORY, LINES, coded, write


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.gui.conversation.history_dialog.warn", lambda *_: None)


@pytest.mark.slow
def test_any_kept_conversation_is_shown_or_left_out(
    session: ScriptedSession,
    store: PreferenceStore,
    theme: Theme,
    icons: Icons,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tmp_path / "kept"
    monkeypatch.setattr(paths, "conversations_dir", lambda: root)
    store.save(dataclasses.replace(store.load(), keep="sound"))
    window = MainWindow(session, store=store)

    @settings(
        max_examples=120,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(CONTENTS)
    def check(contents: tuple[bytes | None, ...]) -> None:
        root.mkdir()
        write(root / "one", contents)
        try:
            window.conversations.continue_latest()
            session.feed(ConversationContinued(root / "one"))
            window.bridge.poll()
            dialog = HistoryDialog(root, theme, icons)
            assert dialog.list.topLevelItemCount() + ("not listed" in dialog.damage.text()) <= 1
            dialog.deleteLater()
        finally:
            shutil.rmtree(root)

    check()
    window.close()
    window.deleteLater()


def test_what_is_left_out_is_said(tmp_path: Path, theme: Theme, icons: Icons) -> None:
    lines = b"\n".join(map(coded, LINES)) + b"\n{\nNaN\n"
    write(tmp_path / "whole", (coded(ABOUT), lines, coded(HISTORY), None))
    write(tmp_path / "broken", (coded(ABOUT | {"turns": "many"}), b"", None, None))
    dialog = HistoryDialog(tmp_path, theme, icons)
    assert dialog.list.topLevelItemCount() == 1
    assert dialog.damage.text() == (
        "Unreadable conversations that are not listed: 1. Damaged entries left out of this conversation: 2."
    )
    (tmp_path / "broken" / "conversation.json").unlink()
    (tmp_path / "whole" / "events.jsonl").write_bytes(coded(LINES[1]))
    dialog.fill_list()
    assert dialog.damage.isHidden()
    dialog.deleteLater()
