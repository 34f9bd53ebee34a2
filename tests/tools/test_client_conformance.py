"""The conformance of clients: what counts as done, as refused, as absent and as failed."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doubles.realtime_server import Event, RealtimeServer, unchanged
from tests.doubles.scripted_engine import Script
from tests.tools.client_conformance import script
from tests.tools.client_conformance.__main__ import ABSENT, FAILED, OK, REFUSED, Ends, Found, converse, table
from tests.tools.client_conformance.clients import CLIENTS, DRIVERS

PARIS = ("The capital ", "of France ", "is Paris.")


def ends(folder: Path, server: str) -> Ends:
    """The scripted client and a server."""
    command = [sys.executable, "-m", "tests.doubles.scripted_client"]
    return Ends(command, folder / "stderr.txt", server, "a-key")


def held(
    folder: Path, *features: str, words: tuple[str, ...] = PARIS, change: Callable[[Event], Event] = unchanged
) -> dict[str, Found]:
    """The script as the scripted client holds it with a scripted engine."""
    with RealtimeServer(Script(words=words), change=change) as server:
        both = ends(folder, server.url.removesuffix("/v1/realtime"))
        return asyncio.run(converse(both, {name: script.FEATURES[name] for name in features}))


@pytest.mark.slow
def test_what_is_right_at_both_ends_is_ok_and_what_the_api_lacks_is_absent(tmp_path: Path) -> None:
    found = held(tmp_path, "typed message", "note without a reply", "manual turns, open microphone")
    assert found["typed message"] == (OK, ""), (tmp_path / "stderr.txt").read_text()
    assert found["note without a reply"] == (ABSENT, "note")
    assert found["manual turns, open microphone"] == (ABSENT, "the turns are those of the server")


@pytest.mark.slow
def test_another_answer_has_failed_and_leaves_its_events(tmp_path: Path) -> None:
    found = held(tmp_path, "typed message", words=("It ", "is ", "Rome."))
    assert found["typed message"][0] == FAILED
    assert "'It is Rome.'" in found["typed message"][1]
    events = [json.loads(line) for line in (tmp_path / "typed message.jsonl").read_text().splitlines()]
    assert [True, "response.done"] in [[from_server, event["type"]] for from_server, event in events]
    assert [False, "response.create"] in [[from_server, event["type"]] for from_server, event in events]


@pytest.mark.slow
def test_an_error_has_failed_although_the_client_says_nothing(tmp_path: Path) -> None:
    def change(event: Event) -> Event:
        if event["type"] != "rate_limits.updated":
            return event
        return {"type": "error", "error": {"code": "engine_failed", "message": "No.", "param": None}}

    found = held(tmp_path, "typed message", change=change)
    assert found["typed message"] == (FAILED, "error engine_failed (None): No.")


@pytest.mark.slow
def test_what_is_not_in_force_is_refused(tmp_path: Path) -> None:
    found = held(tmp_path, "tool call")
    refusal = "The model cannot call 'get_weather'. Its bundle declares no tools."
    assert found["tool call"] == (REFUSED, refusal)


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    found = asyncio.run(converse(ends(tmp_path, "ws://127.0.0.1:9"), {"spoken turn": script.spoken_turn}))
    result, reason = found["spoken turn"]
    assert result == FAILED
    assert reason.startswith("no connection: ")


def test_the_table_has_a_row_a_feature_and_tells_why() -> None:
    cells: dict[str, dict[str, Found]] = {
        "one": {"spoken turn": (OK, ""), "tool call": (REFUSED, "No.")},
        "two": {"spoken turn": (FAILED, "Nothing."), "tool call": (ABSENT, "call")},
    }
    section = table(cells, ["spoken turn", "tool call"])
    assert section.rows == [
        {"feature": "spoken turn", "one": OK, "two": FAILED},
        {"feature": "tool call", "one": REFUSED, "two": ABSENT},
    ]
    assert section.note == "one, tool call: No. two, spoken turn: Nothing."


def test_each_client_has_a_driver_and_an_environment_of_its_own(tmp_path: Path) -> None:
    assert len({client.folder(tmp_path) for client in CLIENTS}) == len(CLIENTS) == 8
    for client in CLIENTS:
        assert (DRIVERS / client.driver).is_file()
        assert re.search(r"(==|@)[\d.]+$", client.packages[0]), "the table is that of a version"
        assert not client.is_installed(tmp_path)
