"""Settings and events survive a recording; what is of another kind is the default, or refused."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audio.echo_cancellation import AudioProcessing
from app.dialog.end_of_turn import TurnEndFusion
from app.dialog.interruption import InterruptionSettings
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.session.events import ReplyFinished, TurnCommitted, TurnOpened, TurnsRemoved
from app.session.recorded_values import LONGEST_TEXT, plain, revived, settings_of, value_of
from app.session.session_settings import Recording, SessionSettings
from engine_runtime.setting import Setting, settings
from engine_runtime.types import Modality


def others(known: Setting) -> list[Any]:
    """Values of each kind that a field may have. A kind that is not here has to be one that is recorded."""
    kind: Any = known.kind
    if is_dataclass(known.kind):
        return [kind()] if known.kind is not Recording else [Recording(Path("/kept"), with_sound=False)]
    if known.choices:
        return [*known.choices]
    if known.kind is bool:
        return [True, False]
    numbers = {int: known.default or 7, float: known.default or 3.0}
    if known.kind in numbers:
        return [numbers[known.kind] + 1, numbers[known.kind] * 0.9 if known.kind is float else 2**40]
    named: dict[Any, list[Any]] = {str: ["a name"], Path: [Path("/a")]}
    return named[kind]


def test_settings_are_read_back() -> None:
    given_ = SessionSettings(reply=Modality.TEXT, seed=5, playback_start_ms=120, device_latency_s=0.08)
    assert settings_of(plain(given_), SessionSettings()) == given_


def test_none_is_read_back_where_the_default_is_a_number() -> None:
    off = SessionSettings(turn_taking=TurnTakingSettings(bystander_db=None))
    assert settings_of(json.loads(json.dumps(plain(off))), SessionSettings()) == off


def fields_of(part: Any) -> list[Setting]:
    kind: Any = type(part)
    return list(settings(kind).values())


PARTS: tuple[Any, ...] = (
    SessionSettings(),
    TurnTakingSettings(),
    AudioProcessing(),
    InterruptionSettings(),
    TurnEndFusion(),
)


@pytest.mark.parametrize(
    ("part", "known"),
    [(part, known) for part in PARTS for known in fields_of(part)],
    ids=lambda one: one.name if isinstance(one, Setting) else type(one).__name__,
)
def test_each_field_is_read_back_alone(part: Any, known: Setting) -> None:
    """Every field of every settings class, at values that are not its default, through JSON."""
    kind = get_type_hints(type(part))[known.name]
    for value in [*others(known), *([None] if known.is_optional else [])]:
        written = json.loads(json.dumps(plain({known.name: value})))
        assert value_of(kind, written[known.name]) == value
        with contextlib.suppress(ValueError):  # does not fit the other fields
            other = dataclasses.replace(part, **{known.name: value})
            assert settings_of(json.loads(json.dumps(plain(other))), part) == other


def test_no_settings_class_is_left_out() -> None:
    held = {type(part) for part in PARTS} | {Recording}
    for part in PARTS:
        assert {known.kind for known in fields_of(part) if is_dataclass(known.kind)} <= held


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (tuple[int, ...], (1, 2, 3)),
        (tuple[int, str], (1, "a")),
        (frozenset[str], frozenset({"b", "a"})),
        (dict[str, float], {"a": 1.0}),
        (tuple[int, str] | None, None),
    ],
)
def test_collections_are_read_back(kind: Any, value: Any) -> None:
    assert value_of(kind, json.loads(json.dumps(plain(value)))) == value


def test_a_tuple_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        value_of(tuple[int, int], [1, 2, 3])


@given(
    st.builds(
        TurnTakingSettings,
        bystander_db=st.none() | st.floats(0.1, 60),
        eagerness=st.none() | st.sampled_from(("off", "patient", "balanced", "eager")),
        input_mode=st.none() | st.sampled_from(("voice", "push", "both")),
        barge_in=st.booleans(),
        max_turn_ms=st.integers(1_000, 10**6),
    ),
    st.none() | st.integers(0, 2**64),
    st.none() | st.text(st.characters(categories=None, exclude_categories=["Cs"])),
)
def test_any_settings_are_read_back(
    turn_taking: TurnTakingSettings, seed: int | None, name: str | None
) -> None:
    settings = SessionSettings(turn_taking=turn_taking, seed=seed, input_device=name)
    assert settings_of(json.loads(json.dumps(plain(settings))), SessionSettings()) == settings


def test_what_makes_no_sense_is_the_default() -> None:
    default = SessionSettings()
    broken = {
        "reply": "smell", "seed": [], "turn_taking": {"pause_ms": 10_000}, "unknown": 1,
        "volume": float("nan"), "playback_start_ms": True, "speculate": "maybe", "audio_processing": 5,
        "hear_samples": None,
    }  # fmt: skip
    assert settings_of(broken, default) == default
    assert settings_of(None, default) == default


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        (TurnOpened, {"turn_id": 1, "source": "telepathy"}),
        (TurnOpened, {"turn_id": True, "source": "text"}),
        (TurnOpened, {"turn_id": 1, "source": "text", "text": None}),
        (TurnOpened, {"source": "text"}),
        (TurnCommitted, {"turn_id": 1, "seconds": "long"}),
        (TurnCommitted, {"turn_id": 1, "seconds": float("inf")}),
        (TurnCommitted, {"turn_id": 1, "seconds": 10**400}),
        (TurnsRemoved, {"turn_ids": 5}),
        (TurnsRemoved, {"turn_ids": [[]]}),
        (ReplyFinished, {"turn_id": 1, "modality": [], "seconds": 1.0, "text": "", "user_codes": 0,
                         "codes": 0, "finish_reason": "stop"}),
    ],
)  # fmt: skip
def test_an_event_with_a_field_of_another_kind_is_none(kind: type, entry: dict[str, Any]) -> None:
    assert revived(kind, entry) is None


def test_events_are_read_back() -> None:
    event = ReplyFinished(3, Modality.SPEECH, 1.5, "yes", 4, 5, "stop")
    assert revived(ReplyFinished, {"t": 1.0, "event": "ReplyFinished", **plain(event)}) == event
    assert revived(TurnsRemoved, plain(TurnsRemoved((1, 2)))) == TurnsRemoved((1, 2))


def test_texts_can_be_shown_and_written() -> None:
    assert value_of(str, "a\ud800b").encode() == "a\ufffdb".encode()
    assert value_of(str, "\U0001f600") == "\U0001f600"
    assert len(value_of(str, "x" * (LONGEST_TEXT + 5))) == LONGEST_TEXT
