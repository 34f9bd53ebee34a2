"""packaging/TENSORRT.md: the parts that can be checked without TensorRT-LLM."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from app.cli import build_parser
from app.commands import doctor
from engine_runtime.executors.trtllm import environment
from engine_runtime.executors.trtllm.library import VERSION


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "packaging" / "TENSORRT.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def lines(page: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_every_command_of_the_program_is_accepted(lines: list[str]) -> None:
    commands = [line.removeprefix("~/moss-trt/bin/") for line in lines if "moss-voice " in line]
    commands = [line.removeprefix("/usr/bin/") for line in commands]
    commands = [line for line in commands if line.startswith("moss-voice")]
    assert any(" --engine-python " in line for line in commands)
    steps = {" ".join(shlex.split(line)[1:3]) for line in commands}
    for step in ("convert", "quantize", "build", "inspect", "verify", "codec"):
        assert f"trt {step}" in steps
    for line in commands:
        words = shlex.split(line.partition(" > ")[0])[1:]
        try:
            build_parser().parse_args(words)
        except SystemExit:
            pytest.fail(f"the page shows `{line}`, which is not accepted")


def test_what_is_installed_is_what_the_library_requires(lines: list[str], repository: Path) -> None:
    installs = [line for line in lines if line.startswith("pip install")]
    assert any(
        f"tensorrt-llm=={VERSION} --extra-index-url https://pypi.nvidia.com" in line for line in installs
    )
    wanted = {requirement.name: requirement.specifier for requirement in environment.requirements()}
    (torch,) = re.findall(r"torch==(\S+)", "\n".join(installs))
    assert wanted["torch"].contains(torch)
    constraints = re.findall(r"-c (\S+)", "\n".join(installs))
    assert constraints
    assert all((repository / file).is_file() for file in constraints)


def test_extras_and_packages_are_those_of_the_project(lines: list[str], repository: Path) -> None:
    text = "\n".join(lines)
    project = (repository / "pyproject.toml").read_text(encoding="utf-8")
    (extras,) = re.findall(r"'\.\[(.*?)\]'", text)
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra
    bootstrap = (repository / "packaging" / "bootstrap.py").read_text(encoding="utf-8")
    (without,) = re.findall(r"--no-deps (.*)", text)
    assert all(f'"{package}"' in bootstrap for package in without.split())


def test_a_folder_is_read_only_after_it_was_made(lines: list[str]) -> None:
    """The commands are in an order that works: each ~/moss/... is written by an earlier line."""
    made: set[str] = set()
    for line in lines:
        words = shlex.split(line)
        for before, word in pairwise(words):
            if word.startswith("~/moss/"):
                if before in ("--to", "--onnx", "--timing-cache"):
                    made.add(word)
                assert word in made, line
    assert len(made) >= 5


def test_what_doctor_must_say_is_what_it_says(page: str) -> None:
    assert f'"{doctor._summary([])}"' in page
