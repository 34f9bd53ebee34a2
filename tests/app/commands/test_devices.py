"""moss-voice devices: a table or one document, for a bundle or a model that is not there."""

from __future__ import annotations

import json

import pytest

from app import paths
from app.cli import main
from app.installed_models import RELEASED


@pytest.mark.slow
def test_a_model_that_was_not_fetched_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    (paths.user_bundles_dir() / RELEASED).mkdir(parents=True)  # a download was begun
    assert main(["devices", RELEASED, "--json"]) == 0
    processor = json.loads(capsys.readouterr().out)["devices"][0]
    assert processor["name"] == "cpu"
    # 9.1 billion parameters in float32
    assert processor["needs"][0]["bytes"] > 36e9


def test_the_table_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cpu: ")
    assert lines[1].split()[:2] == ["--weights", "native"]


def test_an_unknown_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "nothing"]) == 1
    assert "no model of that name is known" in capsys.readouterr().err
