"""The page in headless Chromium: with nano and a microphone that plays a sample; with a scripted engine."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import uvicorn
from numpy.typing import NDArray
from websockets.sync.client import connect

from app.audio.wire_format import PCM16
from app.server.access import Access
from app.server.service import RealtimeService, ServeSettings
from engine_runtime.types import Pcm
from tests.app.server.test_run import served
from tests.doubles.scripted_detector import ScriptedDetector
from tests.doubles.scripted_engine import LoudnessVad, Script, ScriptedEngine
from tests.tools.browser import Page, browser, why_not

KEY = "0123456789abcdef"
RATE = 24_000
_REASON = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_REASON is not None, reason=f"no browser: {_REASON}"),
]
STATE = "document.getElementById('state').textContent"
CAPTIONS = "document.getElementById('captions').innerText"
PROBLEM = "document.getElementById('problem').textContent"
WATCH_SOCKET = """
window.sent = [];
window.appended = 0;
const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (text) {
  const event = JSON.parse(text);
  if (event.type === "input_audio_buffer.append") window.appended += 1;
  else window.sent.push(event);
  send.call(this, text);
};
"""
TONE_AS_MICROPHONE = """
const context = new AudioContext();
const tone = new GainNode(context, { gain: 0 });
const oscillator = new OscillatorNode(context);
const line = new MediaStreamAudioDestinationNode(context);
oscillator.connect(tone).connect(line);
oscillator.start();
window.speak = (on) => { tone.gain.value = on ? 0.5 : 0; };
navigator.mediaDevices.getUserMedia = async () => line.stream.clone();
"""
# What the player gives to the loudspeaker, taken in the audio thread, where a busy machine loses nothing: the
# processor of the microphone takes any input, and at the rate of the protocol it changes nothing.
RECORD_LOUDSPEAKER = """
window.heard = [];
const link = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (target, ...rest) {
  const isPlayer = this instanceof AudioWorkletNode && this.numberOfInputs === 0;
  if (isPlayer && target instanceof AudioDestinationNode) {
    window.tap = new AudioWorkletNode(this.context, "microphone");
    window.tap.port.onmessage = ({ data }) => window.heard.push(data.pcm);
    link.call(this, window.tap);
    link.call(window.tap, target);
  }
  return link.call(this, target, ...rest);
};
"""
HEARD = """(() => {
  let text = "";
  for (const block of window.heard)
    for (const byte of new Uint8Array(block.buffer)) text += String.fromCharCode(byte);
  return btoa(text);
})()"""


class Rig:
    """A server of a scripted engine, at an address of this machine."""

    def __init__(self, port: int, engine: ScriptedEngine) -> None:
        self.port, self.engine = port, engine


@contextmanager
def scripted(script: Script, key: str = "", port: int = 0, most: int = 2) -> Iterator[Rig]:
    engine = ScriptedEngine(script)
    access = Access((key,) if key else ())
    settings = ServeSettings(conversations=most, access=access)
    service = RealtimeService(settings, lambda: engine, lambda: ScriptedDetector(0.9), new_vad=LoudnessVad)
    config = uvicorn.Config(
        service.app.asgi, port=port, log_config=None, lifespan="off", ws="websockets-sansio"
    )
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield Rig(server.servers[0].sockets[0].getsockname()[1], engine)
    finally:
        server.should_exit = True
        thread.join(60)
        service.close()


def sent(page: Page, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.value(f"window.sent.filter((event) => event.type === {kind!r})")
    return found


def ask(page: Page, text: str) -> None:
    page.value(f"document.getElementById('text').value = {text!r}")
    page.click("#typed button")


def until_state(page: Page, *states: str) -> None:
    page.until(f"{list(states)}.includes({STATE})")


def cuts_of(engine: ScriptedEngine) -> list[int]:
    """Samples of each truncation that the engine was told."""
    return [int(str(call[2])) for call in engine.calls if call[0] == "truncate"]


def test_a_reply_is_interrupted_at_the_sample_that_was_played(tmp_path: Path) -> None:
    with (
        scripted(Script(chunks=100), KEY) as rig,
        browser(tmp_path, None, "--autoplay-policy=no-user-gesture-required") as page,
    ):
        page.open(f"http://localhost:{rig.port}/", WATCH_SOCKET + TONE_AS_MICROPHONE)
        page.click("#start")
        page.until("document.getElementById('key-dialog').open")
        for key, problem in (("0123456789abcdeX", "The key was not accepted."), (KEY, "")):
            page.value(f"document.getElementById('key').value = {key!r}")
            page.click("#key-form .primary")
            if problem:
                page.until(f"document.getElementById('key-problem').textContent === {problem!r}")
        until_state(page, "Listening")
        assert not page.value("document.getElementById('key-dialog').open")

        ask(page, "count to a hundred")
        until_state(page, "Speaking")
        page.value("window.speak(true)")
        page.until(f"{CAPTIONS}.includes('interrupted')")
        page.value("window.speak(false)")
        page.until("document.querySelectorAll('.assistant').length === 2")
        (cut,) = sent(page, "conversation.item.truncate")
        assert 0 < cut["audio_end_ms"] < 40_000
        until_state(page, "Speaking")
        page.key("keyDown", "Escape", "Escape")
        page.until("window.sent.filter((event) => event.type === 'conversation.item.truncate').length === 2")
        page.until(f"{STATE} === 'Listening'")
        cuts = [event["audio_end_ms"] for event in sent(page, "conversation.item.truncate")]
        unheard = page.value("document.querySelectorAll('.unheard').length")
        assert unheard > 0, "words that were not heard are marked"
        page.value("fetch('health')")  # a round trip: the server has read what was sent
        deadline_s = time.monotonic() + 60
        while not {24 * ms for ms in cuts} <= set(cuts_of(rig.engine)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert {24 * ms for ms in cuts} <= set(cuts_of(rig.engine))
        assert "ms to the loudspeaker" in page.value("document.getElementById('sum').textContent")
        assert page.value("document.querySelectorAll('#waterfall .track span').length") > 0
        assert page.value(f"{PROBLEM}") == ""
        assert [text for text in page.problems if "401" not in text] == []


def test_push_to_talk_and_a_server_that_comes_back(tmp_path: Path) -> None:
    with browser(tmp_path, None, "--autoplay-policy=no-user-gesture-required") as page:
        with scripted(Script(chunks=2, words=("Hello ", "there."))) as rig:
            port = rig.port
            page.open(f"http://localhost:{port}/", WATCH_SOCKET + TONE_AS_MICROPHONE)
            page.click("#start")
            until_state(page, "Listening")
            page.click("#mode")
            until_state(page, "Ready")
            before = page.value("window.appended")
            page.value("window.speak(true)")
            page.value("document.activeElement.blur()")
            page.key("keyDown", " ", "Space")
            until_state(page, "You speak")
            page.until(f"window.appended > {before} + 50")
            page.key("keyUp", " ", "Space")
            page.until(f"{CAPTIONS}.includes('Hello there.')")
            assert "spoken, " in page.value(CAPTIONS)
            until_state(page, "Ready")
            assert [event["type"] for event in sent(page, "input_audio_buffer.commit")] != []
            assert sum(map(len, rig.engine.turns[-1].heard)) > 8_000
            ask(page, "and now?")
            page.until("document.querySelectorAll('.assistant:not([aria-busy])').length === 2")
            until_state(page, "Ready")
        until_state(page, "Reconnecting")
        page.value("window.sent.length = 0")
        with scripted(Script(chunks=1), port=port):
            until_state(page, "Ready")
            items = [event["item"] for event in sent(page, "conversation.item.create")]
            parts = [(item["role"], item["content"][0]["type"]) for item in items]
            answer = ("assistant", "output_text")
            assert parts == [("user", "input_audio"), answer, ("user", "input_text"), answer]
            assert items[1]["content"][0]["text"] == "Hello there."
            assert page.value(PROBLEM) == "", "it is over"
            page.click("#start")
            until_state(page, "Not connected")


def test_the_page_says_why_it_cannot_be_used(tmp_path: Path) -> None:
    with (
        scripted(Script(chunks=1), KEY, most=1) as rig,
        browser(tmp_path, None, "--host-resolver-rules=MAP voice.example 127.0.0.1") as page,
    ):
        page.open(f"http://voice.example:{rig.port}/")
        assert "--tls-cert" in page.value(PROBLEM)
        assert page.value("document.getElementById('start').disabled")
        page.open(f"http://localhost:{rig.port}/", f"sessionStorage.setItem('moss-voice-key', {KEY!r})")
        with connect(f"ws://127.0.0.1:{rig.port}/v1/realtime", additional_headers={"api-key": KEY}):
            page.click("#start")
            page.until(f"{PROBLEM}.includes('1 of 1 conversations')")
        until_state(page, "Ready")
        assert page.value("document.getElementById('mute').disabled"), "the browser was not allowed to listen"
        ask(page, "hello")
        page.until(f"{CAPTIONS}.includes('word0')")


def test_the_latest_caption_is_in_sight_after_the_page_was_resized(tmp_path: Path) -> None:
    with (
        scripted(Script(chunks=1, words=("so " * 400,))) as rig,
        browser(tmp_path, None, "--autoplay-policy=no-user-gesture-required") as page,
    ):
        page.show(1280, 720, "light")
        page.open(f"http://localhost:{rig.port}/", TONE_AS_MICROPHONE)
        page.click("#start")
        until_state(page, "Listening")
        ask(page, "hello")
        page.until(f"{CAPTIONS}.includes('so so')")
        page.show(390, 844, "light", is_phone=True)
        end = "document.getElementById('captions')"
        page.until(f"{end}.scrollTop > 0 && {end}.scrollHeight - {end}.scrollTop - {end}.clientHeight < 2")


# ---- with nano ----


def spoken_answer(address: str, text: str) -> tuple[str, Pcm]:
    """What a plain client gets: transcript and speech at 24 kHz."""
    sound = b""
    with connect(f"ws://{address}/v1/realtime", max_size=None) as connection:
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        connection.send(json.dumps({"type": "conversation.item.create", "item": item}))
        connection.send(json.dumps({"type": "response.create"}))
        while (event := json.loads(connection.recv(240)))["type"] != "response.done":
            if event["type"] == "response.output_audio.delta":
                sound += base64.b64decode(event["delta"])
    return str(event["response"]["output"][0]["content"][0]["transcript"]), PCM16.decode(sound)


def spectra(pcm: Pcm) -> NDArray[np.float64]:
    """Log spectra of the frames that are not silent, [frames, bands], each band without its mean."""
    frames = np.lib.stride_tricks.sliding_window_view(pcm, 1_024)[::480]
    frames = frames[np.sqrt((frames**2).mean(1)) > 0.01] * np.hanning(1_024)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    edges = np.unique(np.geomspace(4, 340, 25).astype(int))
    bands = np.stack([power[:, low:high].sum(1) for low, high in pairwise(edges)], 1)
    logs = np.log(bands + 1e-3)
    return np.asarray(logs - logs.mean(0))


def distance(said: Pcm, known: Pcm) -> float:
    """Mean distance of the spectra along the best alignment (dynamic time warping)."""
    a, b = spectra(said), spectra(known)
    costs = np.linalg.norm(a[:, None] - b[None], axis=2)
    total = np.full((len(a) + 1, len(b) + 1), np.inf)
    total[0, 0] = 0.0
    for row in range(len(a)):
        for column in range(len(b)):
            before = min(total[row, column], total[row, column + 1], total[row + 1, column])
            total[row + 1, column + 1] = costs[row, column] + before
    return float(total[-1, -1]) / (len(a) + len(b))


@pytest.mark.flaky(reruns=2)  # sound in real time, as with the tests of sound streams
def test_a_spoken_question_is_answered_by_nano(repository: Path, nano_bundle: Path, tmp_path: Path) -> None:
    pcm, rate = soundfile.read(repository / "assets" / "samples" / "03-three-plus-four.wav", dtype="float32")
    microphone = tmp_path / "microphone.wav"
    before, after = np.zeros(2 * rate, np.float32), np.zeros(120 * rate, np.float32)
    soundfile.write(microphone, np.concatenate([before, pcm, after]), rate, subtype="PCM_16")
    with (
        served(repository, "--conversations", "2") as (address, _),
        browser(tmp_path, microphone) as page,
    ):
        page.open(f"http://{address}/", WATCH_SOCKET + RECORD_LOUDSPEAKER)
        page.click("#start")
        page.until("document.getElementById('playback').textContent")
        heard = PCM16.decode(base64.b64decode(page.value(HEARD)))
        assert "Three plus four is seven." in page.value(CAPTIONS)
        times = page.value(
            "Object.fromEntries([...document.querySelectorAll('#waterfall tr')].map("
            "(row) => [row.cells[0].textContent, parseFloat(row.cells[2].textContent)]))"
        )
        for stage in ("Endpointing", "Prefill", "Decode steps", "token2mel", "Vocoder"):
            assert times[stage] > 0, times
        figures = page.value(
            "Object.fromEntries([...document.querySelectorAll('#figures li')].map("
            "(tile) => [tile.children[0].textContent, parseFloat(tile.children[1].textContent)]))"
        )
        assert figures["Voice to voice"] > figures["Endpointing"] > 100
        assert figures["RTF total"] > 0
        page.until("document.querySelectorAll('#figures li')[10].textContent.includes('of 2')")
        assert page.problems == [], "nothing is refused by the content security policy"
        page.click("#start")
        questions = ("what is three plus four", "what is three plus five", "what is two plus four")
        known = dict(spoken_answer(address, text) for text in (*questions, "what is the capital of france"))
        assert len(known) == 4
        distances = {text: distance(heard, sound) for text, sound in known.items()}
        assert min(distances, key=lambda text: distances[text]) == "Three plus four is seven.", distances
