"""Documents match the tree: files, links, commands, options and names."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

from app.cli import build_parser

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    "README.md",
    "app/MANUAL.md",
    "app/README.md",
    "engine_runtime/README.md",
    "engine_runtime/bench/RESULTS.md",
    "engine_runtime/cuda/kernels/README.md",
    "packaging/REPORTS.md",
    "packaging/SERVE.md",
    "packaging/OPTIONS.md",
    "packaging/TENSORRT.md",
    "CHANGELOG.md",
    ".github/CONTRIBUTING.md",
    ".github/PULL_REQUEST_TEMPLATE.md",
    ".github/SECURITY.md",
    "assets/training/README.md",
]
MAPS = ["app/README.md", "engine_runtime/README.md", "engine_runtime/cuda/kernels/README.md"]
"""Documents that describe the code; what they name is found in it."""
SCRIPTS = [
    *("packaging/bootstrap.py", "packaging/build.py", "packaging/trt_environment.py"),
    *("tests/tools/replica_kills.py", "tests/tools/server_churn.py", "tests/tools/server_faults.py"),
    *("tests/tools/scheduler_model.py", "tests/tools/replica_scaling.py", "tests/tools/package_smoke.py"),
    *("tests/tools/loop_devices.py", "tests/tools/server_against_window.py", "tests/tools/overlap_bench.py"),
    *("assets/training/stage.py", "assets/training/codec_vocoder.py", "assets/training/judge_vocoder.py"),
]

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(
    r"\.?[\w-]+(?:/[\w.-]+)*/|(?:\.?[\w.-]+/)*[\w-]+\.(?:py|cu|cuh|md|sh)|\.?[\w-]+(?:/[\w-]+)+"
)
_TOP = ("app", "engine_runtime", "assets", "packaging", "tests", ".github", ".ci")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def _text(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def _spans(document: str) -> set[str]:
    """Text in backticks outside of code blocks."""
    return set(re.findall(r"`([^`\n]+)`", _FENCED.sub("", _text(document))))


def _shell_lines(document: str) -> list[str]:
    """The lines of the `sh` blocks, without comments."""
    blocks = [block for language, block in _FENCED.findall(_text(document)) if language == "sh"]
    return [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]


def _places(document: str) -> list[Path]:
    """Folders that a path in the document may be relative to."""
    return [ROOT, (ROOT / document).parent]


def _named_paths(document: str) -> set[str]:
    """Paths in backticks: of source files, of folders, and whatever begins with a folder of the repository.
    A file name alone is one that some file of the repository has."""
    return {
        span
        for span in _spans(document)
        if _PATH.fullmatch(span) and (span.endswith((".py", ".cu", ".cuh")) or span.split("/")[0] in _TOP)
    }


@cache
def _file_names() -> set[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    files = listed.stdout.split() or [str(file) for file in ROOT.rglob("*.*")]
    return {Path(file).name for file in files}


def _exists(document: str, name: str) -> bool:
    return any((place / name).exists() for place in _places(document)) or name in _file_names()


@cache
def _words_of_the_code() -> set[str]:
    folders = [ROOT / name for name in ("app", "engine_runtime", "packaging", "tests/tools")]
    files = [file for folder in folders for kind in ("py", "cu", "cuh") for file in folder.rglob(f"*.{kind}")]
    words: set[str] = set()
    for file in files:
        words.update(re.findall(r"\w+", file.read_text(encoding="utf-8")))
    return words


def _options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _options_of(child)


def _anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    titles = re.findall(r"^#+ (.+)$", _FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_path_exists() -> None:
    named = [(document, name) for document in DOCUMENTS for name in _named_paths(document)]
    assert len(named) > 100
    assert not [f"{document}: {name}" for document, name in named if not _exists(document, name)]


def test_every_link_leads_somewhere() -> None:
    broken, count = [], 0
    for document in DOCUMENTS:
        for link in _LINK.findall(_text(document)):
            if "://" in link:
                continue
            count += 1
            name, _, anchor = link.partition("#")
            target = ((ROOT / document).parent / name).resolve() if name else ROOT / document
            if not target.exists():
                broken.append(f"{document}: {link}")
            elif anchor and anchor not in _anchors(target.read_text(encoding="utf-8")):
                broken.append(f"{document}: {link} (no such heading)")
    assert count > 30
    assert not broken


def test_every_document_is_listed() -> None:
    listed = {ROOT / document for document in DOCUMENTS}
    found = [*ROOT.glob("*.md"), *(ROOT / ".github").glob("*.md")]
    for folder in ("app", "engine_runtime", "packaging", "assets/training"):
        found += (ROOT / folder).rglob("*.md")
    assert set(found) == listed


@pytest.mark.slow
def test_every_command_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    refused, count = [], 0
    for document in DOCUMENTS:
        for line in _shell_lines(document):
            if not line.startswith("moss-voice"):
                continue
            count += 1
            words = shlex.split(line.partition(" > ")[0])[1:]
            try:
                build_parser().parse_args(words)
            except SystemExit:
                refused.append(f"{document}: {line}: {capsys.readouterr().err.splitlines()[-1]}")
    assert count > 20
    assert not refused


def test_every_option_exists() -> None:
    known = {*_options_of(build_parser()), "--help"}
    known |= set(re.findall(r'"(--[a-z][\w-]*)"', "".join(_text(script) for script in SCRIPTS)))
    named = [
        (document, option)
        for document in DOCUMENTS
        for span in _spans(document)
        for option in re.findall(r"(?<!\S)--[a-z][\w-]*", span)
    ]
    assert len(named) > 40
    assert not [f"{document}: {option}" for document, option in named if option not in known]


@pytest.mark.slow
def test_every_subcommand_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """Also of commands that are named without the arguments that they need."""
    unknown, count = [], 0
    for document in DOCUMENTS:
        for span in _spans(document):
            if not span.startswith(("moss-voice ", "trt ")):
                continue
            count += 1
            words = span.removeprefix("moss-voice ").split()
            command = list(takewhile(str.isalpha, words))[: 2 if words[0] == "trt" else 1]
            with pytest.raises(SystemExit) as ended:
                build_parser().parse_args([*command, "--help"])
            unknown += [f"{document}: {span}"] if ended.value.code else []
    capsys.readouterr()
    assert count > 10
    assert not unknown


def test_every_module_that_is_run_exists() -> None:
    missing = []
    for document in DOCUMENTS:
        for module in re.findall(r"python3? -m ((?:app|tests)\b[\w.]*)", _text(document)):
            file = ROOT.joinpath(*module.split("."))
            if not (file.with_suffix(".py").is_file() or (file / "__main__.py").is_file()):
                missing.append(f"{document}: {module}")
        for script in re.findall(r"(?:python3|bash) ([.\w/-]+/[\w.-]+)", _text(document)):
            if not (ROOT / script).is_file():
                missing.append(f"{document}: {script}")
    assert not missing


def test_names_in_the_maps_are_those_of_the_code() -> None:
    known = _words_of_the_code()
    unknown, count = [], 0
    for document in MAPS:
        for span in _spans(document):
            if _NAME.fullmatch(span) and not _PATH.fullmatch(span):
                count += 1
                unknown += [f"{document}: {span}" for word in span.split(".") if word not in known]
    assert count > 100
    assert not unknown


def test_the_layers_of_the_engine_are_those_that_are_enforced() -> None:
    contracts = tomllib.loads(_text("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (layers,) = [c["layers"] for c in contracts if "engine_runtime.conversation" in c.get("layers", ())]
    drawn = "\n".join(layers).replace("engine_runtime.", "")
    assert f"```\n{drawn}\n```" in _text("engine_runtime/README.md")


def test_the_readme_shows_measured_figures_only() -> None:
    """Its table of results repeats figures of RESULTS.md."""
    table = _text("README.md").partition("## Results")[2].partition("## ")[0]
    figures = re.findall(r"\d+\.\d+|\d+(?= ms)", table)
    assert len(figures) > 10
    results = set(re.findall(r"\d+(?:\.\d+)?", _text("engine_runtime/bench/RESULTS.md")))
    assert not [figure for figure in figures if figure not in results]


def test_the_results_are_dated_and_no_notebook() -> None:
    """RESULTS.md: at most 200 lines; a date in each section, and in each row of a table of commands."""
    text = _text("engine_runtime/bench/RESULTS.md")
    assert len(text.splitlines()) <= 200, "replace a figure instead of adding one"
    dated = re.compile(r"20\d\d-\d\d-\d\d")
    tables = re.findall(r"^\|.*\| command, date.*\|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 20
    assert not [row for row in rows if not dated.search(row) and "| the same |" not in row]
    sections = re.split(r"^#+ ", text, flags=re.MULTILINE)[2:]
    measured = [section for section in sections if re.search(r"\d ms|\d %", section)]
    assert len(measured) > 8
    assert not [section.splitlines()[0] for section in measured if not dated.search(section)]


def test_every_package_of_the_engine_is_in_its_map() -> None:
    text = _text("engine_runtime/README.md")
    packages = [file.parent for file in (ROOT / "engine_runtime").glob("*/__init__.py")]
    modules = [file for file in (ROOT / "engine_runtime").glob("*.py") if file.name != "__init__.py"]
    assert len(packages) > 5
    assert not [package.name for package in packages if f"`{package.name}/" not in text]
    assert not [module.name for module in modules if f"`{module.name}`" not in text]


def test_it_states_the_command_that_guards_main() -> None:
    assert "python3 packaging/bootstrap.py test" in _text("README.md")
    assert "python3 packaging/bootstrap.py test" in _text(".ci/run")
