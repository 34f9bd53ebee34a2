"""The real sounddevice path through a PulseAudio daemon, and its callbacks alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.audio.device_streams import BLOCK_FRAMES, DEVICE_RATE_HZ, SoundInput, SoundOutput
from app.audio.ring import FADE_S
from app.audio.wav import read_wav, write_wav
from tests.doubles.pulse_server import PulseServer
from tests.doubles.sound_card import SoundCard

BLOCK_NS = 10_000_000


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> SoundCard:
    card = SoundCard()
    card.replace_sounddevice(monkeypatch)
    return card


def tone(seconds: float) -> np.ndarray:
    count = round(seconds * DEVICE_RATE_HZ)
    return (0.3 * np.sin(2 * np.pi * 440 * np.arange(count) / DEVICE_RATE_HZ)).astype(np.float32)


def play_blocks(card: SoundCard, count: int) -> None:
    for _ in range(count):
        card.play()
        card.now_ns += BLOCK_NS


def quiet() -> np.ndarray:
    return np.zeros((BLOCK_FRAMES, 1), dtype=np.float32)


def test_captured_garbage_is_tamed_and_counted(card: SoundCard) -> None:
    microphone = card.opened(SoundInput)
    block = np.full((BLOCK_FRAMES, 1), 0.5, dtype=np.float32)
    block[:4, 0] = [np.nan, np.inf, -1e31, 1e31]
    card.record(block)
    assert microphone.ring.read(6).tolist() == [0.0, 1.0, -1.0, 1.0, 0.5, 0.5]
    card.record(block, has_lost=True)
    assert microphone.dropped_samples == BLOCK_FRAMES


def test_what_finds_no_room_is_counted(card: SoundCard) -> None:
    microphone = card.opened(SoundInput)
    blocks = microphone.ring.capacity // BLOCK_FRAMES + 2
    for _ in range(blocks):
        card.record(quiet())
    assert microphone.dropped_samples == blocks * BLOCK_FRAMES - microphone.ring.capacity


def test_capture_time_is_the_callbacks_time_less_latency(card: SoundCard) -> None:
    card.latency_s = 0.04
    microphone = card.opened(SoundInput)
    card.record(quiet())
    assert microphone.sample_time_ns(BLOCK_FRAMES) == card.now_ns - 40_000_000
    assert microphone.sample_time_ns(0) == card.now_ns - 40_000_000 - BLOCK_NS


@pytest.mark.parametrize("channels", [1, 2])
def test_the_loudspeaker_plays_the_ring_then_silence(card: SoundCard, channels: int) -> None:
    loudspeaker = card.opened(SoundOutput)
    loudspeaker.ring.write(np.full(500, 0.25, dtype=np.float32))
    assert (card.play(channels) == 0.25).all()
    block = card.play(channels)
    assert (block[:20] == 0.25).all()
    assert not block[20:].any()
    assert loudspeaker.underruns == 0


def test_the_reference_of_echo_cancellation_is_what_the_device_was_given(card: SoundCard) -> None:
    loudspeaker = card.opened(SoundOutput)
    assert loudspeaker.played.index_at(card.now_ns) is None
    loudspeaker.ring.write(np.full(500, 0.25, dtype=np.float32))
    for _ in range(3):
        card.play(channels=2)
    played = loudspeaker.played.ring.read(3 * BLOCK_FRAMES)
    assert (played[:500] == 0.25).all()
    assert not played[500:].any()
    assert loudspeaker.played.index_at(card.now_ns) == 2 * BLOCK_FRAMES, "the last block is given now"


def test_a_reference_that_nobody_reads_stops_at_its_size(card: SoundCard) -> None:
    loudspeaker = card.opened(SoundOutput)
    play_blocks(card, 400)
    ring = loudspeaker.played.ring
    assert ring.capacity - BLOCK_FRAMES < ring.written <= ring.capacity
    at = loudspeaker.played.index_at(card.now_ns)
    assert at == 400 * BLOCK_FRAMES
    ring.read(ring.capacity)
    card.play()
    assert ring.available == BLOCK_FRAMES
    assert loudspeaker.played.index_at(card.now_ns) != at


def test_a_gap_that_portaudio_does_not_tell_of_is_counted(card: SoundCard) -> None:
    loudspeaker = card.opened(SoundOutput)
    loudspeaker.is_expecting = True
    loudspeaker.ring.write(np.ones(20 * BLOCK_FRAMES, dtype=np.float32))
    begin_s = card.now_ns / 1e9
    for number in range(12):
        # The callbacks come all at once; the converter has been silent for 25 ms after the sixth block.
        card.play(dac_s=begin_s + 0.06 + number * 0.01 + (0.025 if number >= 6 else 0.0))
    assert loudspeaker.underruns == 1
    assert 0.06 < loudspeaker.latency_s < 0.2


def test_what_is_not_in_the_air_when_the_device_is_closed_stays_in_the_ring(card: SoundCard) -> None:
    card.latency_s = 0.5
    loudspeaker = card.opened(SoundOutput)
    loudspeaker.ring.write(np.full(40 * BLOCK_FRAMES, 0.25, dtype=np.float32))
    play_blocks(card, 10)
    loudspeaker.close()
    assert loudspeaker.ring.consumed == 0
    loudspeaker.close()
    assert loudspeaker.ring.available == 40 * BLOCK_FRAMES


def test_what_was_heard_before_a_silence_is_not_played_again(card: SoundCard) -> None:
    card.latency_s = 0.5
    loudspeaker = card.opened(SoundOutput)
    loudspeaker.ring.write(np.full(20 * BLOCK_FRAMES, 0.25, dtype=np.float32))
    play_blocks(card, 20)
    card.now_ns += 10_000_000_000
    loudspeaker.ring.write(np.full(4 * BLOCK_FRAMES, 0.5, dtype=np.float32))
    card.play()
    loudspeaker.close()
    assert loudspeaker.ring.available == 4 * BLOCK_FRAMES


@pytest.mark.parametrize("asks_in_silence", [True, False], ids=["paused", "stalled"])
@pytest.mark.parametrize("silent_blocks", [0, 10, 40, 49, 50, 100])
def test_a_silence_takes_its_time_in_the_device(
    card: SoundCard, silent_blocks: int, asks_in_silence: bool
) -> None:
    """What is in the device when it is closed lasts half a second, and a silence in it is part of that."""
    card.latency_s = 0.5
    loudspeaker = card.opened(SoundOutput)
    loudspeaker.ring.write(np.full(100 * BLOCK_FRAMES, 0.25, dtype=np.float32))
    play_blocks(card, 99)
    if asks_in_silence and silent_blocks:
        loudspeaker.ring.pause()
        play_blocks(card, silent_blocks)
        loudspeaker.ring.resume()
    else:
        card.now_ns += silent_blocks * BLOCK_NS
    play_blocks(card, 1)
    loudspeaker.close()
    assert loudspeaker.ring.available == (1 + max(49 - silent_blocks, 0)) * BLOCK_FRAMES


def test_a_device_of_another_rate_begins_with_an_empty_ring_and_a_fade(card: SoundCard) -> None:
    loudspeaker = card.opened(SoundOutput)
    loudspeaker.is_expecting = True
    before = loudspeaker.ring
    card.rate = 44_100
    loudspeaker.open(None, 0.04)
    assert not card.play().any()
    assert loudspeaker.underruns == 0
    loudspeaker.ring.write(np.full(3 * BLOCK_FRAMES, 0.5, dtype=np.float32))
    block = card.play()
    assert block[0, 0] < 0.01
    assert (np.diff(block[: round(FADE_S * 44_100), 0]) > 0).all()
    assert loudspeaker.ring is not before


def test_gaps_are_counted_once_each(card: SoundCard) -> None:
    loudspeaker = card.opened(SoundOutput)
    loudspeaker.is_expecting = True
    for _ in range(3):
        card.play()
    assert loudspeaker.underruns == 1
    loudspeaker.ring.write(np.ones(BLOCK_FRAMES, dtype=np.float32))
    card.play(ran_dry=True)
    assert loudspeaker.underruns == 2


@pytest.mark.slow
@pytest.mark.pulse
def test_sound_passes_both_ways(pulse_server: PulseServer, tmp_path: Path) -> None:
    write_wav(tmp_path / "question.wav", tone(1.0), DEVICE_RATE_HZ)
    microphone, loudspeaker = SoundInput(), SoundOutput()
    microphone.open(None, 0.04)
    loudspeaker.open(None, 0.04)
    assert (microphone.name, loudspeaker.name) == ("pulse", "pulse")
    assert 0.0 < loudspeaker.latency_s < 0.2
    recording = pulse_server.record(tmp_path / "heard.wav")
    time.sleep(0.5)
    speaking = pulse_server.speak(tmp_path / "question.wav")
    first = loudspeaker.ring.written
    loudspeaker.is_expecting = True
    loudspeaker.ring.write(tone(1.0))
    heard: list[np.ndarray] = []
    while speaking.poll() is None:
        heard.append(microphone.ring.read(DEVICE_RATE_HZ))
        if not loudspeaker.ring.available:
            loudspeaker.is_expecting = False
        time.sleep(0.005)
        for stream in (microphone, loudspeaker):
            stream.service(time.perf_counter_ns())
            assert not stream.is_lost()
    time.sleep(0.5)
    recording.terminate()
    recording.wait(60)
    assert loudspeaker.sample_time_ns(first) is not None
    microphone.close()
    loudspeaker.close()
    captured = np.concatenate(heard)
    assert np.abs(captured).max() == pytest.approx(0.3, abs=0.01)
    assert (np.abs(captured) > 0.1).sum() > 0.6 * DEVICE_RATE_HZ
    played, _ = read_wav(tmp_path / "heard.wav")
    assert np.abs(played).max() == pytest.approx(0.3, abs=0.01)
    assert microphone.ring.dropped == 0


@pytest.mark.slow
@pytest.mark.pulse
def test_a_sound_server_that_dies_is_noticed_and_found_again(pulse_server: PulseServer) -> None:
    from app.audio.devices import rescan
    from app.audio.supervisor import DeviceSupervisor

    microphone, loudspeaker = SoundInput(), SoundOutput()

    def bounded(action: Callable[[], None], limit_s: float) -> bool:
        thread = threading.Thread(target=action, daemon=True)
        thread.start()
        thread.join(limit_s)
        return not thread.is_alive()

    supervisor = DeviceSupervisor(microphone, loudspeaker, bounded, rescan)
    assert supervisor.open(0.04, input_device=None, output_device=None, with_input=True) == []
    # PortAudio hangs if the server dies within the first hundredths of a second of a stream.
    end = time.monotonic() + 5
    while microphone.ring.written < DEVICE_RATE_HZ // 4:
        assert time.monotonic() < end
        time.sleep(0.01)
    pulse_server.stop()
    messages: list[str] = []

    def wait_for(words: str) -> None:
        end = time.monotonic() + 15
        while not any(words in message for message in messages):
            assert time.monotonic() < end, messages
            messages.extend(
                notice.problem.what_is_wrong for notice in supervisor.service(time.perf_counter_ns())
            )
            time.sleep(0.01)

    wait_for("was lost")
    assert not supervisor.is_input_open
    pulse_server.start()
    wait_for("Sound is back")
    assert (microphone.name, loudspeaker.name) == ("pulse", "pulse")
    end = time.monotonic() + 5
    written = microphone.ring.written
    while microphone.ring.written == written:
        assert time.monotonic() < end
        time.sleep(0.01)
    supervisor.close()


def test_a_standstill_is_a_loss_but_not_a_busy_program(card: SoundCard) -> None:
    microphone = card.opened(SoundInput)

    def serve(milliseconds: int) -> None:
        card.now_ns += milliseconds * 1_000_000
        microphone.service(card.now_ns)

    for _ in range(10):
        card.record(quiet())
        serve(10)
    serve(3_000)  # the watching thread itself was held up
    assert not microphone.is_lost()
    for _ in range(60):
        serve(10)
    assert microphone.is_lost()


def test_a_device_that_is_opened_again_says_when_it_plays_although_nobody_read_the_reference(
    card: SoundCard,
) -> None:
    """A reply is played while the microphone is closed: nobody reads what was played."""
    loudspeaker = card.opened(SoundOutput)
    for _ in range(400):
        card.play()
    loudspeaker.open(None, 0.04)
    assert loudspeaker.played.index_at(card.now_ns) is None
    card.play()
    assert loudspeaker.played.index_at(card.now_ns) == 0.0
    assert loudspeaker.played.ring.available == BLOCK_FRAMES


def test_a_sample_that_was_handed_over_has_no_time_before_its_block_was_stamped(card: SoundCard) -> None:
    """The callback takes samples first and stamps them then; who looks in between must not get the time that
    continues the reply before."""
    loudspeaker = card.opened(SoundOutput)
    loudspeaker.ring.write(np.ones(BLOCK_FRAMES, dtype=np.float32))
    card.play()
    assert loudspeaker.sample_time_ns(BLOCK_FRAMES - 1) is not None
    first = loudspeaker.ring.written
    loudspeaker.ring.write(np.ones(2 * BLOCK_FRAMES, dtype=np.float32))
    loudspeaker.ring.play_into(np.zeros(BLOCK_FRAMES, dtype=np.float32))
    assert loudspeaker.ring.consumed > first
    assert loudspeaker.sample_time_ns(first) is None
    card.now_ns += 3_600_000_000_000
    card.play()
    assert loudspeaker.sample_time_ns(first + BLOCK_FRAMES) == card.now_ns


def test_a_block_that_is_taken_while_the_device_closes_stays_in_the_ring(card: SoundCard) -> None:
    card.latency_s = 0.5
    loudspeaker = card.opened(SoundOutput)
    loudspeaker.ring.write(np.full(BLOCK_FRAMES, 0.25, dtype=np.float32))
    card.play()
    loudspeaker.ring.discard()  # of a reply long ago
    card.now_ns += 10_000_000_000
    loudspeaker.ring.write(np.full(4 * BLOCK_FRAMES, 0.25, dtype=np.float32))
    card.before_close = card.play
    loudspeaker.close()
    assert loudspeaker.ring.available == 4 * BLOCK_FRAMES


def test_captured_samples_keep_their_time_while_the_ring_is_full(card: SoundCard) -> None:
    microphone = card.opened(SoundInput)
    for _ in range(microphone.ring.capacity // BLOCK_FRAMES):
        card.record(quiet())
        card.now_ns += BLOCK_NS
    spoken_ns = microphone.sample_time_ns(0)
    for _ in range(3):
        card.record(quiet())
        card.now_ns += BLOCK_NS
    assert microphone.sample_time_ns(0) == spoken_ns
