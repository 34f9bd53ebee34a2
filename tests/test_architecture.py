"""Architecture rules as tests: imports, thread starters, required parts of every file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("app", "engine_runtime")
SOURCES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
# Declarations and composition: no behaviour of their own to test.
WITHOUT_BEHAVIOUR = {"__init__.py", "__main__.py", "types.py", "errors.py"}
NAME_WORDS_TO_AVOID = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "data", "info"}


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def _nodes(file: Path) -> tuple[ast.Import | ast.ImportFrom | ast.Call, ...]:
    """What the rules are about, of one walk over the file."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call)
    return tuple(node for node in ast.walk(_tree(file)) if isinstance(node, kinds))


def _imports(file: Path) -> Iterator[str]:
    for node in _nodes(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


@cache
def _top_imports(file: Path) -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in _imports(file))


@cache
def _calls(file: Path) -> frozenset[str]:
    return frozenset(ast.unparse(node.func) for node in _nodes(file) if isinstance(node, ast.Call))


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 40


def _offenders(breaks_rule: Callable[[Path], object], files: Iterable[Path] = SOURCES) -> list[str]:
    """Names of the files for which `breaks_rule` is true, so that one failure lists all of them."""
    return [_name(file) for file in files if breaks_rule(file)]


@pytest.mark.slow
def test_every_module_says_what_it_is() -> None:
    assert not _offenders(lambda file: len(ast.get_docstring(_tree(file)) or "") < 15)


def test_names_say_something() -> None:
    files = [file for file in SOURCES if file.name != "block_manager.py"]  # the term of the field
    assert not _offenders(lambda file: set(file.stem.split("_")) & NAME_WORDS_TO_AVOID, files)


@pytest.mark.slow
def test_a_class_name_stands_for_one_idea() -> None:
    # Networks are named as in their checkpoints, where layers of one name belong to several networks.
    files = [file for file in SOURCES if "models" not in file.parts]
    names = [
        node.name for file in files for node in _tree(file).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]  # fmt: skip
    assert not [name for name, count in Counter(names).items() if count > 1]


@pytest.mark.slow
def test_no_torch_in_the_application() -> None:
    files = [file for file in SOURCES if file.is_relative_to(ROOT / "app")]
    assert not _offenders(lambda file: _top_imports(file) & {"torch", "torchaudio", "transformers"}, files)


@pytest.mark.slow
def test_qt_only_in_the_gui() -> None:
    # The doctor names Qt's version and reports a Qt that cannot be loaded.
    files = [
        file
        for file in SOURCES
        if not file.is_relative_to(ROOT / "app" / "gui") and _name(file) != "app/commands/doctor.py"
    ]
    assert not _offenders(lambda file: _top_imports(file) & {"PySide6", "pyqtgraph", "shiboken6"}, files)


def test_only_the_session_and_the_server_start_threads() -> None:
    starters = {"threading.Thread", "Thread", "threading.Timer", "QThread", "ThreadPoolExecutor", "Process"}

    def starts_threads(file: Path) -> bool:
        return any(call in starters or call.endswith(".QThread") for call in _calls(file))

    may = ("app/session/session.py", "app/server/run.py", "app/server/service.py")
    files = [file for file in SOURCES if _name(file) not in may]
    assert not _offenders(starts_threads, files)


def test_labels_and_tooltips_take_no_markup_from_outside() -> None:
    """Qt guesses whether a text is HTML; plain_text.py and question.py do not let it."""
    makers = {"QLabel", "QMessageBox", "QTextBrowser", "QTextEdit", "QErrorMessage"}
    boxes = {f"QMessageBox.{kind}" for kind in ("about", "critical", "information", "question", "warning")}
    setters = (".setToolTip", ".setHtml", ".setWhatsThis", ".setStatusTip")

    def guesses(file: Path) -> bool:
        bases = {
            ast.unparse(base)
            for node in ast.walk(_tree(file))
            if isinstance(node, ast.ClassDef)
            for base in node.bases
        }
        calls = _calls(file)
        is_set = any(call.endswith(setters) for call in calls)
        return is_set or not (makers | boxes).isdisjoint(calls | bases)

    may = ("app/gui/common/plain_text.py", "app/gui/common/question.py")
    files = [file for file in SOURCES if _name(file).startswith("app/gui/") and _name(file) not in may]
    assert not _offenders(guesses, files), "use PlainLabel and set_tip, is_confirmed and warn"


def test_libraries_do_not_set_up_logging() -> None:
    assert not _offenders(lambda file: _calls(file) & {"logging.basicConfig", "basicConfig"})


def test_only_commands_print() -> None:
    printers = ("app/cli.py", "app/progress.py", "app/commands/")
    files = [file for file in SOURCES if not _name(file).startswith(printers)]
    assert not _offenders(lambda file: "print" in _calls(file), files)


def test_the_engine_knows_no_application_and_no_device() -> None:
    files = [file for file in SOURCES if file.is_relative_to(ROOT / "engine_runtime")]
    assert not _offenders(
        lambda file: _top_imports(file) & {"app", "sounddevice", "soundfile", "soxr"}, files
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "door"),
    [
        ("onnxruntime", "engine_runtime/onnx_runtime.py"),  # with its telemetry off
        ("bigvgan", "engine_runtime/models/bigvgan_package.py"),  # without its training side
    ],
)
def test_libraries_behind_one_door(library: str, door: str) -> None:
    folders = [ROOT / name for name in ("app", "engine_runtime", "assets", "tests")]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    naming = [file for file in files if library in file.read_text(encoding="utf-8")]
    assert _offenders(lambda file: library in _top_imports(file), naming) == [door]


def test_tensorrt_llm_behind_one_door() -> None:
    files = [file for file in SOURCES if _name(file) != "engine_runtime/tensorrt/llm/library.py"]
    assert not _offenders(lambda file: "tensorrt_llm" in _top_imports(file), files)


def test_tensorrt_only_through_its_door() -> None:
    """Nothing names it in an import: the one module that gets it does so when it is asked."""
    assert not _offenders(lambda file: _top_imports(file) & {"tensorrt", "tensorrt_rtx"})


def test_tests_mirror_the_packages() -> None:
    """app/audio/*.py is tested in tests/app/audio/test_*.py; how these are cut into files is free."""
    folders = {test.parent.relative_to(ROOT / "tests") for test in (ROOT / "tests").rglob("test_*.py")}
    strangers = [f for f in folders if f.parts and f.parts[0] in PACKAGES and not (ROOT / f).is_dir()]
    assert not strangers, f"tests of no package: {strangers}"


def test_packages_have_tests() -> None:
    packages = {file.relative_to(ROOT).parent for file in SOURCES if file.name not in WITHOUT_BEHAVIOUR}
    without = [package for package in packages if not list((ROOT / "tests" / package).glob("test_*.py"))]
    # A package with one test file for all its parts (models/flow, the window) is tested one level up.
    without = [p for p in without if not list((ROOT / "tests" / p).parent.glob(f"test_{p.name}*.py"))]
    assert not without, f"packages without a test: {without}"


def test_no_paths_of_one_machine() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\0")
    pattern = re.compile(r"(?<![\w.])/(?:work|opt|root|home/\w+)/")
    found = []
    for name in tracked:
        file = ROOT / name
        if (
            file.suffix in {".py", ".md", ".toml", ".txt", ".sh"}
            and file.is_file()
            and file != Path(__file__)
        ):
            found += [
                f"{name}: {line}" for line in file.read_text("utf-8").splitlines() if pattern.search(line)
            ]
    assert not found


def test_packaging_is_no_package() -> None:
    assert not (ROOT / "packaging" / "__init__.py").exists(), "it would shadow PyPI's packaging"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["app.cli", "app.audio", "app.dialog", "app.session.events"])
def test_light_imports_stay_light(module: str) -> None:
    """`--help` and the dialog layers start without torch, Qt and the libraries of the server."""
    heavy = {"torch", "PySide6", "fastapi", "uvicorn"}
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_none_survives_qt_calls() -> None:
    """PySide6 6.12.0 under Python 3.11 loses a reference to None per call and ends in an abort."""
    code = (
        "import sys\n"
        "from PySide6.QtWidgets import QApplication, QLabel\n"
        "app = QApplication([])\n"
        "label = QLabel()\n"
        "before = sys.getrefcount(None)\n"
        "for i in range(1000): label.setText('a')\n"
        "print(before - sys.getrefcount(None))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert abs(int(result.stdout)) < 100


@pytest.mark.slow
def test_the_engine_on_the_cpu_needs_no_module_of_the_gpu() -> None:
    """Packages for the CPU leave out parts of torch that those import."""
    code = (
        "import sys; import app.main, engine_runtime.engine, engine_runtime.memory_plan; print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "engine_runtime.engine" in loaded
    assert not [
        name for name in loaded if name.startswith(("engine_runtime.executors.cuda", "torch._inductor"))
    ]
