"""Settings and events survive a recording; what is of another kind is the default, or refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialog.turn_taking_settings import TurnTakingSettings
from app.session.events import ReplyFinished, TurnCommitted, TurnOpened, TurnsRemoved
from app.session.recorded_values import LONGEST_TEXT, plain, revived, settings_of, value_of
from app.session.recording import Recording
from app.session.session_settings import SessionSettings
from engine_runtime.types import Modality


def changed(value: Any) -> Any:
    """Another value that the field allows, None where that is one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 0.9 if isinstance(value, float) else value + 1
    return value


def test_settings_are_read_back() -> None:
    given_ = SessionSettings(reply=Modality.TEXT, seed=5, playback_start_ms=120, device_latency_s=0.08)
    assert settings_of(plain(given_), SessionSettings()) == given_


def test_none_is_read_back_where_the_default_is_a_number() -> None:
    off = SessionSettings(turn_taking=TurnTakingSettings(bystander_db=None))
    assert settings_of(json.loads(json.dumps(plain(off))), SessionSettings()) == off


def test_each_field_is_read_back_alone() -> None:
    """Every field of every settings class, at a value that is not its default, through JSON."""
    optional: dict[str, tuple[Any, ...]] = {
        "input_device": ("a",), "output_device": ("b",), "speculate": ("on", "off"), "seed": (2**63,),
        "recording": (Recording(Path("/kept"), with_sound=False, name="x"),), "input_mode": ("push",),
        "eagerness": ("patient",), "library": ("livekit",), "echo_cancellation": ("off",),
        "reply": (Modality.TEXT,), "bystander_db": (None, 3.0),
    }  # fmt: skip
    checked = 0
    parts = {None: SessionSettings(), **{
        field.name: getattr(SessionSettings(), field.name) for field in dataclasses.fields(SessionSettings)
    }}  # fmt: skip
    parts["interruption"] = TurnTakingSettings().interruption
    parts["fusion"] = TurnTakingSettings().fusion
    for part in parts.values():
        if not dataclasses.is_dataclass(part):
            continue
        for field in dataclasses.fields(part):
            before = getattr(part, field.name)
            for value in optional.get(field.name, (changed(before),)):
                if dataclasses.is_dataclass(before) or value == before:
                    continue
                try:
                    other = dataclasses.replace(part, **{field.name: value})  # type: ignore[type-var]
                except ValueError:  # does not fit the other fields
                    continue
                assert settings_of(json.loads(json.dumps(plain(other))), part) == other, field.name
                checked += 1
    assert checked > 40


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
    st.none() | st.text(st.characters(exclude_categories=("Cs",))),
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
