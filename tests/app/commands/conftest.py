"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from app import cli


@pytest.fixture(autouse=True)
def _leave_logging_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run inside the test process here, whose log handlers and hooks belong to pytest."""
    monkeypatch.setattr(cli, "set_up_logging", lambda file, verbose: None)
