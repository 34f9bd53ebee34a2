"""The dispatcher of the TensorRT-LLM steps."""

from __future__ import annotations

import argparse
import importlib
import sys
from types import ModuleType

import pytest

from app.cli import main
from app.commands import trt


def _step(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = ModuleType(f"app.commands.trt_{name}", "What the step does.")
    module.add_arguments = lambda parser: parser.add_argument("--size", type=int)  # type: ignore[attr-defined]
    module.run = lambda arguments: int(arguments.size)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_a_step_declares_its_options_and_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _step(monkeypatch, "build")
    assert main(["trt", "build", "--size", "7"]) == 7
    with pytest.raises(SystemExit) as caught:
        main(["trt", "build", "--help"])
    assert caught.value.code == 0
    assert "What the step does." in capsys.readouterr().out


def test_without_a_step_it_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["trt"])
    assert caught.value.code == 2
    assert "STEP" in capsys.readouterr().err


def test_a_step_that_is_not_there_is_left_out_and_one_that_is_broken_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(path: str) -> ModuleType:
        raise ModuleNotFoundError(path, name=path)

    monkeypatch.setattr(importlib, "import_module", absent)
    commands = argparse.ArgumentParser().add_subparsers()
    trt.add_parser(commands)

    def broken(path: str) -> ModuleType:
        raise ModuleNotFoundError("no tomlkit", name="tomlkit")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="tomlkit"):
        trt.add_parser(argparse.ArgumentParser().add_subparsers())
