"""One reply: its start and end, the heard part, and its events."""

from __future__ import annotations

import numpy as np

from app.audio.wav_streams import WavSpeaker
from app.dialog.conversation import ConversationRecord
from app.session.engine_jobs import Loaded
from app.session.events import (
    Event,
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    ReplyFinished,
    ReplyTextDelta,
)
from app.session.playback import Playback
from app.session.reply_player import ReplyPlayer
from app.session.turn_driver import UserTurn
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Modality, ReplyAudio, ReplyDone, ReplyText

RATE = 8_000
MS = 1_000_000
TURN = 3


class Rig:
    """A player with a loudspeaker, and a clock controlled by the test."""

    def __init__(self, modality: Modality = Modality.SPEECH) -> None:
        self.now_ms = 0
        self.events: list[Event] = []
        self.timings: list[TimingEvent] = []
        self.speaker = WavSpeaker(RATE, lambda pcm: None)
        self.speaker.open(None, 0.0)
        self.speaker.service(0)
        self.transcript = ConversationRecord()
        self.transcript.open(TURN, modality)
        self.player = ReplyPlayer(
            Playback(self.speaker),
            self.transcript,
            self,  # type: ignore[arg-type]  # of a clock, it only reads the time
            self.events.append,
            least_ms=100,
        )
        self.player.timing.subscribe(self.timings.append)
        self.player.use_engine(Loaded("bundle", 0.0, RATE, RATE, RATE // 10))
        self.turn = UserTurn(TURN, modality, user_codes=7)

    def now_ns(self) -> int:
        return self.now_ms * MS

    def say(self, word: str, ms: int, start_ms: int) -> None:
        """A text fragment and its audio."""
        self.player.add(ReplyText(TURN, word, is_subtitle=True, start_sample=RATE * start_ms // 1_000))
        self.player.add(ReplyAudio(TURN, np.full(RATE * ms // 1_000, 0.5, dtype=np.float32), RATE, 0))

    def complete(self, samples: int = 0) -> None:
        modality = self.turn.modality
        self.player.add(ReplyDone(TURN, modality, "stop", "", tuple(range(5)), samples))

    def run(self, ms: int) -> list[bool]:
        """What `service` returned, each 10 ms."""
        returned = []
        for _ in range(0, ms, 10):
            returned.append(self.player.service(self.now_ns()))
            self.now_ms += 10
            self.speaker.service(self.now_ns())
        return [*returned, self.player.service(self.now_ns())]

    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


def test_a_reply_that_is_heard_to_its_end() -> None:
    rig = Rig()
    rig.turn.last_speech_ns = 0
    rig.player.begin(rig.turn)
    rig.say("one ", 400, 0)
    assert not rig.player.is_heard
    assert rig.run(200).count(True) == 1
    assert rig.player.is_heard
    rig.complete(400 * RATE // 1_000)
    assert not rig.player.is_played
    assert not rig.player.is_complete
    rig.run(400)
    assert rig.player.is_played
    assert rig.player.is_complete
    rig.player.end()
    assert not rig.player.has_reply
    assert rig.events == [
        ReplyTextDelta(TURN, "one ", is_subtitle=True),
        PlaybackStarted(TURN),
        ReplyFinished(TURN, Modality.SPEECH, 0.4, "one ", 7, 5, "stop"),
        PlaybackFinished(TURN),
    ]
    assert [timing.name for timing in rig.timings] == ["playback_hold", "confirm_to_sound", "voice_to_voice"]


def test_a_reply_that_is_cut_keeps_what_was_heard() -> None:
    rig = Rig()
    rig.player.begin(rig.turn)
    rig.say("one ", 400, 0)
    rig.say("two ", 400, 400)
    rig.run(250)
    reply = rig.player.stop()
    assert reply is not None
    assert not rig.player.has_reply
    heard_ms = reply.samples_heard * 1_000 // RATE
    assert 200 <= heard_ms <= 250
    rig.now_ms += 1_000  # when it is reported does not matter
    rig.player.cut(reply, "barge_in")
    cut = rig.events[-1]
    assert isinstance(cut, ReplyCut)
    assert (cut.heard_text, cut.unheard_text) == ("one ", "two ")
    assert cut.heard_s == reply.samples_heard / RATE
    assert cut.made_s == 0.8
    known = rig.transcript.get(TURN)
    assert known is not None
    assert (known.text, len(known.pcm)) == ("one ", reply.samples_heard)
    assert [timing.name for timing in rig.timings] == ["playback_hold"]


def test_a_text_reply_is_cut_where_it_was_shown() -> None:
    rig = Rig(Modality.TEXT)
    rig.player.begin(rig.turn)
    rig.player.add(ReplyText(TURN, "one "))
    rig.run(50)
    assert not rig.player.is_complete
    reply = rig.player.stop()
    assert reply is not None
    rig.player.cut(reply, "user")
    cut = rig.events[-1]
    assert isinstance(cut, ReplyCut)
    assert (cut.heard_text, cut.unheard_text, cut.heard_s) == ("one ", "", 0.0)


def test_a_reply_that_is_started_over_was_heard_as_far_as_before() -> None:
    rig = Rig()
    rig.player.begin(rig.turn)
    rig.say("one ", 400, 0)
    rig.run(300)
    known = rig.transcript.get(TURN)
    assert known is not None
    rig.player.start_over(known)
    rig.run(100)
    assert rig.names().count("PlaybackStarted") == 1
    reply = rig.player.stop()
    assert reply is not None
    assert 250 <= reply.samples_heard * 1_000 // RATE <= 300


def test_a_repetition_is_complete_at_any_time() -> None:
    rig = Rig()
    rig.player.begin(rig.turn)
    rig.say("one ", 400, 0)
    rig.complete()
    rig.run(600)
    rig.player.end()
    rig.events.clear()
    known = rig.transcript.get(TURN)
    assert known is not None
    rig.player.begin(UserTurn(TURN, Modality.SPEECH), is_repetition=True)
    rig.player.start_over(known)
    rig.run(100)
    assert rig.player.is_repetition
    assert rig.player.is_complete
    rig.player.end()
    assert rig.names() == ["PlaybackStarted", "PlaybackFinished"]
    assert len(known.pcm) == 400 * RATE // 1_000


def test_a_reply_that_is_taken_back_leaves_nothing() -> None:
    rig = Rig()
    rig.player.begin(rig.turn)
    rig.say("one ", 100, 0)
    rig.player.take_back()
    rig.run(200)
    assert not rig.player.has_reply
    assert rig.names() == ["ReplyTextDelta"]
    known = rig.transcript.get(TURN)
    assert known is not None
    assert known.chunks == []


def test_a_loudspeaker_that_goes_away_is_noticed() -> None:
    rig = Rig()
    rig.player.begin(rig.turn)
    rig.say("one ", 400, 0)
    rig.run(200)
    assert not rig.player.is_lost
    rig.speaker.close()
    rig.run(2_100)
    assert rig.player.is_lost
    assert not rig.player.is_complete
