"""Fixtures for all tests: Qt without a screen, a few threads for torch, one random bundle per run."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.factories.engine_folder import EngineWorld

# A background job of a shell ignores Ctrl-C, and so would the programs that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Before Qt or torch is imported by any test module.
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny networks: more threads only wait for each other
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if not Path("/dev/nvidiactl").exists():
    # Without a GPU, Triton's interpreter runs the kernels. Triton reads this when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The fuzz tests (tests/tools/fuzzing.py) share out cases of their own: 1,000 and 20,000.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

REPOSITORY = Path(__file__).resolve().parent.parent
_unfreeze = gc.unfreeze
_thaws: list[bool] = []
"""One for each `gc.unfreeze()` of the program; False when all is frozen again."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without the garbage collector, which would take a quarter of the time. What is there
    afterwards stays until the end; visiting it would take a second at each `gc.collect()`."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--compute-capability 8.9` tests the kernels of an older GPU on a newer one."""
    parser.addoption("--compute-capability", help="select kernels as on a GPU of this compute capability")


def pytest_configure(config: pytest.Config) -> None:
    """Limit the compute capability for each engine that a test loads without a limit."""
    if (highest := config.getoption("--compute-capability")) is not None:
        from engine_runtime import engine, hardware

        def limit(asked: str | None) -> None:
            hardware.limit_capability(asked or highest)

        vars(engine)["limit_capability"] = limit


def _limit_capability(config: pytest.Config) -> None:
    from engine_runtime.hardware import limit_capability

    limit_capability(config.getoption("--compute-capability"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Limit the compute capability for what runs without an engine; a test may have set another limit."""
    if item.config.getoption("--compute-capability") is not None:
        _limit_capability(item.config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the GPU and the kernels that its tests ran, also with -q."""
    torch = sys.modules.get("torch")  # it takes a second, and not all tests use it
    if torch is not None and torch.cuda.is_available():
        from engine_runtime.hardware import describe_capability

        _limit_capability(terminalreporter.config)
        gpu = torch.device("cuda")
        name, capability = torch.cuda.get_device_name(gpu), describe_capability(gpu)
        terminalreporter.write_line(f"{name}, compute capability {capability}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With -n, files with slow tests come first: the others are short, and all processes end together."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)


def pytest_unconfigure() -> None:
    """Let what was imported go at the end; nanobind reports on stderr what is left."""
    _unfreeze()


@pytest.fixture(autouse=True)
def same_logging() -> Iterator[None]:
    """Undo what a command sets up (app/logging_setup.py, `serve`): later tests look at records of a level,
    and at their own stderr, on which a handler whose stream is closed would complain."""
    root, server = logging.getLogger(), logging.getLogger("app.server")
    server_level, server_handlers = server.level, list(server.handlers)
    level, raises, factory = root.level, logging.raiseExceptions, logging.getLogRecordFactory()
    hooks = sys.excepthook, threading.excepthook
    yield
    root.setLevel(level)
    server.setLevel(server_level)
    server.handlers[:] = server_handlers
    logging.raiseExceptions = raises
    logging.setLogRecordFactory(factory)
    sys.excepthook, threading.excepthook = hooks


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout that the tests run in."""
    return REPOSITORY


@pytest.fixture(scope="session")
def random_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete bundle of tiny random networks. Read only: copy it before damaging it."""
    from tests.factories.bundle import make_random_bundle

    return make_random_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="session")
def tool_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random bundle that declares a tool (tests/tools/tool_server.py). Read only."""
    from tests.tools.tool_server import make_tool_bundle

    return make_tool_bundle(tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="session")
def released_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint in the layout of the released repositories. Read only: copy it before damaging it."""
    from tests.factories.released import make_released

    return make_released(tmp_path_factory.mktemp("released"))


@pytest.fixture(scope="session")
def nano_bundle() -> Path:
    """The trained bundle of the checkout; tests that need it are skipped where it is not there."""
    path = REPOSITORY / "assets" / "bundles" / "nano"
    if not (path / "bundle.toml").is_file():
        pytest.skip("assets/bundles/nano is not in this checkout")
    return path


@pytest.fixture
def engine_world(monkeypatch: pytest.MonkeyPatch) -> EngineWorld:
    """A machine with TensorRT-LLM and a GPU, as far as an executor can tell."""
    from tests.factories.engine_folder import EngineWorld

    return EngineWorld(monkeypatch)


@pytest.fixture(autouse=True)
def _frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine thread unfroze at its end is frozen again; every tenth time without the garbage."""
    if _thaws and _thaws[-1]:
        if len(_thaws) % 10 == 0:
            gc.collect()
        gc.freeze()
        _thaws[-1] = False

    def unfreeze() -> None:
        _unfreeze()
        _thaws.append(True)

    monkeypatch.setattr(gc, "unfreeze", unfreeze)


@pytest.fixture(autouse=True)
def _private_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests neither read nor write the settings and logs of whoever runs them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.delenv("MOSS_VOICE_BUNDLE", raising=False)
