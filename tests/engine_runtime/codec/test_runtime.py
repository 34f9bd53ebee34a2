"""How the codec runs on a device: replies at once."""

from __future__ import annotations

import pytest

from engine_runtime.codec.runtime import most_replies
from engine_runtime.options import EngineOptions


@pytest.mark.parametrize(
    ("options", "replies"),
    [
        (EngineOptions(), 1),
        (EngineOptions(max_batch_size=64), 128),
        (EngineOptions(max_batch_size=64, conversations=160), 160),
        (EngineOptions(max_batch_size=64, conversations=160, trt_codec=True), 1),
    ],
)
def test_every_conversation_may_speak_at_once(options: EngineOptions, replies: int) -> None:
    assert most_replies(options) == replies
