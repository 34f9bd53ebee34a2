"""Client events: what is understood, and how everything else is refused."""

from __future__ import annotations

import base64
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.server.protocol import (
    AudioAppend,
    ClientEvent,
    ItemCreate,
    ItemTruncate,
    ProtocolError,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    parse,
)

KINDS = """session.update input_audio_buffer.append input_audio_buffer.commit input_audio_buffer.clear
conversation.item.create conversation.item.retrieve conversation.item.delete conversation.item.truncate
response.create response.cancel""".split()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
FIELDS = "event_id session audio item item_id content_index audio_end_ms response response_id".split()


@pytest.mark.parametrize(
    ("fields", "action"),
    [
        ({"type": "session.update", "session": {"a": 1}}, SessionUpdate({"a": 1})),
        (
            {"type": "input_audio_buffer.append", "audio": base64.b64encode(b"ab").decode()},
            AudioAppend(b"ab"),
        ),
        ({"type": "conversation.item.create", "item": {}}, ItemCreate({}, None)),
        (
            {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 9},
            ItemTruncate("i", 0, 9),
        ),
        ({"type": "response.create"}, ResponseCreate({})),
        ({"type": "response.cancel", "response_id": "r"}, ResponseCancel("r")),
    ],
)
def test_events(fields: dict[str, object], action: object) -> None:
    assert parse(json.dumps(fields | {"event_id": "e"})) == ClientEvent(action, "e")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ("[]", "invalid_event", None),
        ('{"type": "session.destroy", "event_id": "e"}', "unknown_event", "type"),
        ('{"type": ["session.update"], "event_id": "e"}', "unknown_event", "type"),
        ('{"type": "session.update", "event_id": "e"}', "invalid_value", "session"),
        ('{"type": "input_audio_buffer.append", "audio": "a$", "event_id": "e"}', "invalid_value", "audio"),
        ('{"type": "conversation.item.delete", "item_id": "", "event_id": "e"}', "invalid_value", "item_id"),
        (
            '{"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": -1,'
            ' "event_id": "e"}',
            "invalid_value",
            "audio_end_ms",
        ),
    ],
)
def test_a_refusal_names_event_code_and_field(text: str, code: str, param: str | None) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(text)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.event_id == ("e" if '"e"' in text else None)


@given(st.sampled_from(KINDS) | st.text(), st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_nothing_but_events_and_refusals_comes_of_garbage(kind: str, fields: dict[str, object]) -> None:
    text = json.dumps(fields | {"type": kind})
    with suppress(ProtocolError):
        assert isinstance(parse(text), ClientEvent)
