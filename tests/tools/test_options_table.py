"""The table of options is that of the code, and nothing in it is read by nobody."""

from __future__ import annotations

import argparse
import gc

import pytest

from app.cli import build_parser
from tests.tools import options_table
from tests.tools.options_table import DOCUMENT, Code, Option, Row, document, fields_without_option, table

SETTINGS = '''
@dataclass(frozen=True)
class EngineOptions:
    device: str = "cpu"
    """Where it runs."""
    steps: int | None = None
    cache: int = 0
    is_fast: bool = True
    unread: int = 0

    @property
    def size(self) -> int:
        return self.cache + 1

    def __post_init__(self) -> None:
        assert self.unread >= 0


@dataclass
class SessionSettings:
    steps: int | None = None
    other: str = ""
'''
COMMAND = """
from app.commands.shared import options_from

def run(arguments: argparse.Namespace) -> int:
    options = options_from(arguments)
    print(arguments.text)
    load(options)
    return 0

def unused(arguments: argparse.Namespace) -> None:
    print(arguments.colour)
"""
SHARED = """
def options_from(arguments: argparse.Namespace) -> EngineOptions:
    values = {"device": arguments.device, "is_fast": False if arguments.slow else None}
    values = without_none(values)
    return replace(EngineOptions(**values), cache=int(arguments.cache), unread=arguments.nothing)
"""
ENGINE = """
class Engine:
    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._settings = SessionSettings(self._options.steps, other=OTHER if options.device else "b")

    def load(self) -> None:
        print(self._options.size, self._options.is_fast, self._options.device)

    def speak(self) -> None:
        chosen = self._settings or SessionSettings()
        print(chosen.steps)
"""
SOURCES = {
    "engine_runtime/options.py": SETTINGS,
    "app/commands/talk.py": COMMAND,
    "app/commands/shared.py": SHARED,
    "engine_runtime/engine.py": ENGINE,
    "app/settings.py": "def serve_options(options: EngineOptions) -> int:\n    return options.unread\n",
}
LOAD, SPEAK = "engine_runtime/engine.py: Engine.load", "engine_runtime/engine.py: Engine.speak"


def option(dest: str) -> Option:
    return Option("moss-voice talk", f"`--{dest}`", dest, "what it does", ("app.commands.talk", "run"))


@pytest.fixture(scope="module")
def sources() -> Code:
    return Code(SOURCES)


@pytest.mark.parametrize(
    ("dest", "fields", "readers"),
    [
        ("text", [], ["app/commands/talk.py: run"]),
        ("device", [("EngineOptions", "device")], ["engine_runtime/engine.py: Engine.__init__", LOAD]),
        ("slow", [("EngineOptions", "is_fast")], [LOAD]),
        ("cache", [("EngineOptions", "cache")], [LOAD]),  # through a property
        ("nothing", [("EngineOptions", "unread")], []),  # checked and passed on, and read by nobody
        ("colour", [], []),  # by a function that the command does not run through
    ],
)
def test_an_option_is_followed_to_its_readers(
    sources: Code, dest: str, fields: list[tuple[str, str]], readers: list[str]
) -> None:
    (row,) = table(sources, [option(dest)])
    assert (row.fields, sorted(row.readers)) == (fields, sorted(readers))


def test_a_field_goes_on_into_another_one(sources: Code) -> None:
    own = "EngineOptions", "steps"
    assert sources.readers(own) == {SPEAK}
    assert sources.chains(own) == ["EngineOptions.steps → SessionSettings.steps"]
    assert sources.chains(("EngineOptions", "device")) == ["EngineOptions.device"], (
        "a condition takes nothing over"
    )


def test_fields_that_no_option_sets(sources: Code) -> None:
    rows = table(sources, [option("device")])
    found = fields_without_option(sources, rows)
    names = ("steps", "cache", "is_fast", "unread")
    assert found == [("EngineOptions", name) for name in names]
    assert [name for _, name in found if not sources.readers(("EngineOptions", name))] == ["unread"]
    text = document(sources, rows)
    assert (
        f"| `--device` | `EngineOptions.device` | `engine_runtime/engine.py: Engine.__init__`<br>`{LOAD}`"
        in text
    )
    assert f"| `EngineOptions.cache` | `{LOAD}` |  |" in text


def test_options_of_all_commands_are_listed() -> None:
    parser = argparse.ArgumentParser()
    parser.set_defaults(run=build_parser)
    parser.add_argument("--number", "-n", type=int, help="100 %% of %(default)s", default=3)
    command = parser.add_subparsers().add_parser("talk")
    command.set_defaults(run=document)
    command.add_argument("--kind", choices=["a", "b"], help="a|b")
    command.add_argument("folder", metavar="DIR", help="where")
    number, kind, folder = options_table.options_of(parser)
    assert (number.names, number.effect) == ("`--number`, `-n` NUMBER", "100 % of 3")
    assert (kind.command, kind.names, kind.run) == (
        "moss-voice talk",
        "`--kind` a\\|b",
        ("tests.tools.options_table", "document"),
    )
    assert (folder.names, folder.dest) == ("DIR", "folder")


@pytest.fixture(scope="module")
def code() -> Code:
    gc.disable()  # half of the time: nothing of a syntax tree is garbage
    try:
        return Code()
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def rows(code: Code) -> list[Row]:
    return table(code, options_table.options_of(build_parser()))


@pytest.mark.slow
def test_every_option_and_every_field_is_read(code: Code, rows: list[Row]) -> None:
    assert len(rows) > 150
    assert [row.names for row in rows if not row.readers] == []
    assert [".".join(own) for own in fields_without_option(code, rows) if not code.readers(own)] == []


@pytest.mark.slow
def test_the_document_is_that_of_the_code(code: Code, rows: list[Row]) -> None:
    is_same = DOCUMENT.read_text(encoding="utf-8") == document(code, rows)
    assert is_same, "run: python -m tests.tools.options_table"
