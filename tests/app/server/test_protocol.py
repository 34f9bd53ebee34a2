"""Client events: what is understood, and how everything else is refused."""

from __future__ import annotations

import base64
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.server.protocol import AudioAppend, Document, ProtocolError, parse

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
    "fields",
    [
        {"type": "session.update", "session": {"a": 1}},
        {"type": "conversation.item.create", "item": {}, "previous_item_id": None},
        {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 9},
        {"type": "response.create", "response": None},
        {"type": "response.cancel", "response_id": "r"},
    ],
)
def test_events(fields: dict[str, object]) -> None:
    assert parse(json.dumps(fields | {"event_id": "e"})).model_dump() == fields | {"event_id": "e"}


def test_audio_is_decoded() -> None:
    event = parse(
        json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(b"ab").decode()})
    )
    assert isinstance(event, AudioAppend)
    assert (event.audio, event.event_id) == (b"ab", None)


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ('{"type": "session.update", "session": {"temperature": NaN}}', "invalid_json", None),
        ("[]", "invalid_event", None),
        ('{"event_id": "e"}', "missing_required_parameter", "type"),
        ('{"type": "session.destroy", "event_id": "e"}', "invalid_value", "type"),
        ('{"type": ["session.update"], "event_id": "e"}', "invalid_value", "type"),
        ('{"type": "session.update", "event_id": "e"}', "missing_required_parameter", "session"),
        ('{"type": "session.update", "session": 5, "event_id": "e"}', "invalid_type", "session"),
        (
            '{"type": "response.cancel", "respnse_id": "r", "event_id": "e"}',
            "unknown_parameter",
            "respnse_id",
        ),
        ('{"type": "input_audio_buffer.append", "audio": "a$", "event_id": "e"}', "invalid_value", "audio"),
        ('{"type": "conversation.item.delete", "item_id": "", "event_id": "e"}', "invalid_value", "item_id"),
        (
            r'{"type": "conversation.item.delete", "item_id": "\ud800", "event_id": "e"}',
            "invalid_value",
            "item_id",
        ),
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
    assert (caught.value.code, caught.value.param) == (code, param), str(caught.value)
    assert caught.value.event_id == ("e" if '"e"' in text else None)


def test_refusals_are_in_the_words_that_clients_know() -> None:
    for text, said in (
        ('{"type": "response.cancel", "x": 1}', "Unknown parameter: 'x'."),
        ('{"type": "conversation.item.delete"}', "Missing required parameter: 'item_id'."),
    ):
        with pytest.raises(ProtocolError) as caught:
            parse(text)
        assert str(caught.value) == said
    with pytest.raises(
        ProtocolError, match=r"^Invalid value: 'a'\. Supported values are: 'session\.update', "
    ):
        parse('{"type": "a"}')


@given(st.sampled_from(KINDS) | st.text(), st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_nothing_but_events_and_refusals_comes_of_garbage(kind: str, fields: dict[str, object]) -> None:
    text = json.dumps(fields | {"type": kind})
    with suppress(ProtocolError):
        assert isinstance(parse(text), Document)
