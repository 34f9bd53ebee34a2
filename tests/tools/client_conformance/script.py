"""What every client is asked to do, and what has to come of it.

In: a conversation (talk.py) with a server that runs nano or, for what nano was not trained to do, the
scripted model of tool_server.py. Out: nothing, or `Absent`, `Refused` or `Failed`. Event loop.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable

import numpy as np

from app.audio.resample import Resampler
from app.audio.wav import read_beginning
from app.audio.wire_format import PCM16
from app.paths import assets_dir
from app.server.session_config import EXTENSION
from tests.tools.client_conformance.talk import SHOW_S, Failed, Refused, Talk, plain
from tests.tools.client_conformance.tap import Json
from tests.tools.tool_server import WEATHER

SUM = ("03-three-plus-four.wav", "Three plus four is seven.")
NEXT_SUM = ("04-and-plus-two.wav", "Seven plus two is nine.")
COUNT_DOWN = "09-count-down.wav"
INSTRUCTIONS = "Answer briefly."
_QUIET_S = 1.0
_HEARD_S = 0.8


TOOL = WEATHER | {"output": "sunny"}


def recorded(name: str) -> bytes:
    """A sample question, as on the wire."""
    pcm, rate = read_beginning(assets_dir() / "samples" / name, 30.0)
    resampler = Resampler(rate, PCM16.sample_rate)
    return PCM16.encode(np.concatenate([resampler.push(pcm), resampler.finish()]))


async def _ask_aloud(talk: Talk, question: tuple[str, str]) -> None:
    await talk.say(recorded(question[0]))
    await talk.answer(question[1])


async def spoken_turn(talk: Talk) -> None:
    """A question by voice, under server_vad."""
    await talk.connect()
    await _ask_aloud(talk, SUM)


async def second_turn(talk: Talk) -> None:
    """The next question, which builds on the one before."""
    await talk.connect()
    await _ask_aloud(talk, SUM)
    await _ask_aloud(talk, NEXT_SUM)


async def typed_message(talk: Talk) -> None:
    """A typed question while nothing happens."""
    await talk.connect()
    await talk.do("ask", text="what is the capital of france")
    await talk.answer("The capital of France is Paris.")


async def typed_during_reply(talk: Talk) -> None:
    """A typed question while a reply is being made."""
    await talk.connect()
    await talk.say(recorded(COUNT_DOWN))
    await talk.first_sound()
    await talk.do("ask", text="what is two plus three")
    await talk.response()
    await talk.answer("Two plus three is five.")


async def note(talk: Talk) -> None:
    """A text that nobody is to answer, and a question by voice after it."""
    await talk.connect()
    before = len(talk.of("conversation.item.added"))
    await talk.do("note", text="by the way i am in paris")
    await talk.until(lambda: len(talk.of("conversation.item.added")) > before, "conversation.item.added")
    await asyncio.sleep(_QUIET_S)
    if len(talk.of("response.created")) > talk.seen:
        raise Failed("the note was answered")
    await _ask_aloud(talk, SUM)


async def barge_in(talk: Talk) -> None:
    """A question over a reply: the reply is cut where the client says that it was heard."""
    await talk.connect()
    await talk.say(recorded(COUNT_DOWN))
    await talk.first_sound()
    await asyncio.sleep(_HEARD_S)
    await talk.say(recorded(SUM[0]))
    await talk.response()
    await talk.until(lambda: talk.of("conversation.item.truncated"), "conversation.item.truncated")
    (asked, *_), (cut, *_) = (
        talk.of("conversation.item.truncate", from_server=False),
        talk.of("conversation.item.truncated"),
    )
    for name in ("item_id", "content_index", "audio_end_ms"):
        if asked[name] != cut[name]:
            raise Failed(f"the client asked for {name} {asked[name]}, the server cut at {cut[name]}")
    sent_ms = -(-talk.sent_bytes(cut["item_id"]) // 48)  # some clients round up
    if not 0 < cut["audio_end_ms"] <= sent_ms:
        raise Failed(f"cut at {cut['audio_end_ms']} of {sent_ms} ms")
    await talk.answer(SUM[1])


async def manual_turns(talk: Talk) -> None:
    """The client ends the turns, and its microphone stays open meanwhile."""
    await talk.connect(turns=None)
    for recording, answer in (SUM, NEXT_SUM):
        if talk.can("start_turn"):
            await talk.do("start_turn")
        await talk.say(recorded(recording))
        await talk.do("commit")
        await talk.answer(answer)


async def tool_call(talk: Talk) -> None:
    """A function that the model calls, and the reply to its output."""
    await talk.connect(tool=TOOL)
    await talk.until(
        lambda: talk.in_force()["tools"] or _refused_tools(talk), "session.updated with the tool"
    )
    if refused := _refused_tools(talk):
        raise Refused(refused["message"])
    await talk.do("ask", text="What is the weather in Paris?")
    await talk.until(lambda: [kind for kind, _ in talk.shown if kind == "call"], "call at the client")
    called = next(json.loads(value) for kind, value in talk.shown if kind == "call")
    if called != {"city": "Paris"}:
        raise Failed(f"called with {called}")
    await talk.response()
    await talk.answer("It is sunny.")


def _refused_tools(talk: Talk) -> Json:
    """What the session says about the tools that it does not offer."""
    return dict(talk.in_force().get(EXTENSION, {}).get("refused_tools", {}))


async def instructions(talk: Talk) -> None:
    """Instructions that the model follows."""
    await talk.connect(instructions=INSTRUCTIONS)
    await talk.until(
        lambda: any(event["session"]["instructions"] == INSTRUCTIONS for event in talk.of("session.updated")),
        "session.updated with the instructions",
        SHOW_S,
    )
    await talk.do("ask", text="What were you told?")
    await talk.answer(INSTRUCTIONS)


async def transcription(talk: Talk) -> None:
    """The words of the user."""
    await talk.connect(transcription=True)
    await _ask_aloud(talk, SUM)
    shown = talk.in_force()
    heard = shown.get("audio", {}).get("input", shown)
    if heard.get("transcription", heard.get("input_audio_transcription")) is None:
        raise Refused("session.updated shows transcription: null")
    await talk.until(lambda: [kind for kind, _ in talk.shown if kind == "heard"], "transcript at the client")
    words = [str(value) for kind, value in talk.shown if kind == "heard"][-1]
    if not re.search(r"\b(three|3)\b.*\b(four|4)\b", plain(words)):
        raise Failed(f"heard {words!r}")


async def reconnect(talk: Talk) -> None:
    """The connection breaks; the next one knows what was said before."""
    await talk.connect()
    await talk.do("ask", text="what is three plus four")
    await talk.answer(SUM[1])
    await talk.reconnect([("user", "what is three plus four"), ("assistant", SUM[1])])
    await talk.do("ask", text="and plus two")
    await talk.answer(NEXT_SUM[1])


Feature = Callable[[Talk], Awaitable[None]]
OF_TOOL_SERVER = ("tool call", "instructions")
"""Features for which nano does not do."""
FEATURES: dict[str, Feature] = {
    "spoken turn": spoken_turn,
    "second turn": second_turn,
    "typed message": typed_message,
    "typed during a reply": typed_during_reply,
    "note without a reply": note,
    "barge-in, truncation": barge_in,
    "manual turns, open microphone": manual_turns,
    "tool call": tool_call,
    "instructions": instructions,
    "transcription": transcription,
    "reconnect with history": reconnect,
}
