"""packaging/TENSORRT.md: the parts that can be checked without TensorRT-LLM."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from app import cli, paths
from app.audio.wav import read_wav, write_wav
from app.cli import build_parser
from app.commands import doctor
from engine_runtime.tensorrt.llm import library
from engine_runtime.tensorrt.llm.library import VERSION
from tests.doubles.tensorrt.model_api import make_library
from tests.factories.engine_folder import EngineWorld

QUESTION = Path(__file__).resolve().parents[1] / "data" / "speech" / "question.wav"
SHORTER = {
    "fetch": ("--from", "RELEASED"),
    "talk": ("--seed", "1"),
    "quantize": ("--wavs", "wavs", "--questions", "wavs", "--prompts", "4", "--reply-tokens", "3"),
    "verify": ("--wavs", "wavs", "--tokens", "40"),
    "bench": ("--runs", "1", "--warm-up", "0", "--repeats", "1"),
}
"""What a command gets in addition, so that it takes seconds and says the same in each run. The last of two
equal options counts."""


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
    wanted = {requirement.name: requirement.specifier for requirement in library.requirements()}
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
                if before in ("--to", "--out", "--onnx", "--timing-cache"):
                    made.add(word)
                assert word in made, line
    assert len(made) >= 5


def test_what_doctor_must_say_is_what_it_says(page: str) -> None:
    assert f'"{doctor._summary([])}"' in page


@pytest.mark.slow
def test_every_step_works_with_doubles_of_the_library_and_of_the_released_files(
    lines: list[str],
    engine_world: EngineWorld,
    released_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From `fetch` to `bench`, on the CPU. Without the window, the server and the codec's engines; the
    acceptance has a test of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "set_up_logging", lambda file, verbose: None)
    # The most likely ids of random networks are hardly likelier than others.
    monkeypatch.setattr("engine_runtime.bench.teacher_forcing.LEAST_TOP1", 0.8)
    monkeypatch.setattr(library, "load_library", lambda: make_library(build=engine_world.build_network))
    pcm, rate = read_wav(QUESTION)
    write_wav(Path("me.wav"), np.resize(pcm, 5 * rate), rate)
    write_wav(Path("question.wav"), pcm, rate)
    Path("wavs").mkdir()
    write_wav(Path("wavs", "q.wav"), pcm, rate)

    printed: dict[str, str] = {}
    for line in lines:
        words = shlex.split(line.partition(" > ")[0])[1:]
        name = words[1] if words[:1] == ["trt"] else "".join(words[:1])
        if (
            not line.startswith("moss-voice ")
            or name in ("acceptance", "codec", "serve")
            or name.startswith("--")
        ):
            continue
        if "--trt-codec" in words or "transformers" in words or "int4" in words:
            continue
        words = ["cpu" if word == "cuda" else word for word in words]
        if "--codec-dtype" in words:  # no float16 on a CPU
            place = words.index("--codec-dtype")
            del words[place : place + 2]
        words += [word.replace("RELEASED", str(released_folder)) for word in SHORTER.get(name, ())]
        status = cli.main([str(Path(word).expanduser()) if word[0] == "~" else word for word in words])
        printed[line] = capsys.readouterr().out
        assert status == 0, line
        if name == "fetch":  # replies of random weights would not end by themselves
            manifest = paths.user_bundles_dir() / "moss-speech" / "bundle.toml"
            manifest.write_text(manifest.read_text().replace("max_new = 500", "max_new = 16"))
    assert len(printed) > 12
    for line, text in printed.items():
        if " verify " in line:
            assert text.splitlines()[-1] == "aligned", line
    assert len(read_wav(Path("reply.wav"))[0]) in range(1920, 16 * 1920 + 1, 1920)
    assert "trtllm" in next(text for line, text in printed.items() if line.startswith("moss-voice bench"))
