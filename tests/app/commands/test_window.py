"""The window's command: a first start, a later one, and one of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app import cli, main
from app.commands import window
from app.instance import Answer, Instance, InstanceError, Knock


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the windows that were opened were given."""
    found: list[dict[str, Any]] = []

    def open_window(settings: object, **given: Any) -> int:
        found.append(given)
        return 7

    monkeypatch.setattr(main, "open_window", open_window)
    return found


def test_the_first_start_opens_a_window_that_has_the_settings(
    opened: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert cli.main([]) == 7
    assert cli.main(["--minimised"]) == 7  # the first one has given them free
    assert cli.main(["--minimised", "--present"]) == 7
    assert [given["is_minimised"] for given in opened] == [False, True, False]
    assert [given["is_presenting"] for given in opened] == [False, False, True]
    assert all(isinstance(given["instance"], Instance) for given in opened)
    assert all("keeps_settings" not in given for given in opened)
    assert (tmp_path / "config" / "moss-voice" / "window.lock").is_file()


@pytest.mark.parametrize(
    ("words", "raises", "told"),
    [
        (["--device", "cuda"], True, "no effect: --device cuda"),
        (["--minimised"], False, "stays as it is"),
        ([], True, "brought to the front"),
    ],
)
def test_a_later_start_raises_the_window_and_ends(
    opened: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    raises: bool,
    told: str,
) -> None:
    knocks: list[Knock] = []

    def claim(_folder: Path, knock: Knock) -> Answer:
        knocks.append(knock)
        return Answer(4711)

    monkeypatch.setattr(window, "claim", claim)
    assert cli.main(words) == 0
    assert not opened
    assert [knock.raises for knock in knocks] == [raises]
    line = capsys.readouterr().err
    assert "process 4711" in line
    assert told in line
    assert ("no effect" in line) is ("--device" in words)


def test_a_window_that_hangs_is_an_error(
    opened: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def claim(*_: object) -> Answer:
        raise InstanceError("Its window does not answer.", "End it.")

    monkeypatch.setattr(window, "claim", claim)
    assert cli.main([]) == 1
    assert "does not answer. End it." in capsys.readouterr().err
    assert not opened


def test_a_window_of_its_own_leaves_the_settings_alone(opened: list[dict[str, Any]], tmp_path: Path) -> None:
    assert cli.main(["--new-instance"]) == 7
    assert opened == [{"is_minimised": False, "is_presenting": False, "keeps_settings": False}]
    assert not (tmp_path / "config" / "moss-voice").exists()


@pytest.mark.parametrize("is_from_menu", [True, False])
def test_a_window_that_hangs_is_shown_to_a_user_without_a_terminal(
    opened: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, is_from_menu: bool
) -> None:
    from app.gui.window import run

    shown: list[str] = []

    def claim(*_: object) -> Answer:
        raise InstanceError("Its window does not answer.", "End it.")

    monkeypatch.setattr(window, "claim", claim)
    monkeypatch.setattr(run, "show_failure", lambda error: shown.append(str(error)))
    monkeypatch.delenv("DESKTOP_STARTUP_ID", raising=False)
    monkeypatch.delenv("XDG_ACTIVATION_TOKEN", raising=False)
    if is_from_menu:
        monkeypatch.setenv("DESKTOP_STARTUP_ID", "shell_TIME5")
    assert cli.main([]) == 1
    assert bool(shown) is is_from_menu
