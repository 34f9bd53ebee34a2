"""The current audio sources: the devices, or a file in place of the microphone.

In: requests of the user (start or stop, devices, file). Out: the attached capture, the open loudspeaker,
notices and events; the sound of the file, for the user to hear between replies. Follows the list of devices:
several times a second that of a sound server, which is live, and otherwise every few seconds while nothing is
open. Notices an open microphone that delivers silence or repeatedly loses samples. Dialog thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from app.audio.devices import Device, DeviceList
from app.audio.resample import Resampler
from app.audio.streams import AudioInput, AudioOutput
from app.audio.supervisor import DeviceNotice, DeviceSupervisor
from app.audio.wav_streams import WavMicrophone
from app.session.capture import Capture
from app.session.events import (
    DeviceNoticed,
    DevicesChanged,
    ErrorRaised,
    Event,
    MicrophoneSilent,
    SampleFinished,
    SampleStarted,
)
from app.session.session_settings import SessionSettings
from engine_runtime.errors import AudioInputError, Problem
from engine_runtime.types import Pcm

_SILENCE_AFTER_FILE_NS = 1_000_000_000
"""A file counts as heard this long after its end if no turn is open: longer than speech needs to be
noticed."""
_FOLLOW_NS = 200_000_000
_LOOK_AGAIN_NS = 5_000_000_000
"""A restart of PortAudio takes tens of milliseconds."""
_SILENCE_S = 5.0
"""Without any sound: the quietest microphone has noise."""
_LOSSES = 5
_LOSSES_WITHIN_NS = 30_000_000_000
_LEAD_S = 0.06
"""Sound held back: it arrives at the pace at which it is played, so that without a reserve every late round
would be heard."""


class Sources:
    """The devices and the sample of one session."""

    def __init__(
        self,
        supervisor: DeviceSupervisor,
        capture: Capture,
        emit: Callable[[Event], None],
        drop_speech: Callable[[], None],
    ) -> None:
        """`drop_speech` is called before the source changes: a turn that is being spoken cannot continue."""
        self.is_listening = False
        """Whether the microphone is wanted."""
        self.is_muted = False
        self.hears_samples = True
        """Whether the user hears a sample."""
        self._supervisor = supervisor
        self._capture = capture
        self._emit = emit
        self._drop_speech = drop_speech
        self._monitor = SampleMonitor(supervisor.audio_out)
        self._sample: WavMicrophone | None = None
        self._quiet_since_ns = 0
        self._found = DeviceList((), ())
        self._reported: DevicesChanged | None = None
        self._input_changes = 0
        """Changes that the supervisor had counted when the microphone was attached."""
        self._watch = MicrophoneWatch(supervisor.audio_in)
        self._is_silent = False
        """Whether the microphone was last reported as silent."""
        self._follow_ns = self._look_again_ns = 0

    @property
    def has_sample(self) -> bool:
        """Whether a file takes the microphone's place."""
        return self._sample is not None

    @property
    def hears_silence(self) -> bool:
        """Whether the captured sound counts as silence."""
        return self.is_muted and self._sample is None

    # ---- devices ----

    def open(self, settings: SessionSettings) -> None:
        """Open the loudspeaker and, while listening, the microphone; what is open as requested stays open."""
        self._take_up(
            self._supervisor.open(
                settings.device_latency_s,
                input_device=settings.input_device,
                output_device=settings.output_device,
                with_input=self.is_listening,
            )
        )

    def require_microphone(self) -> None:
        """AudioInputError if the microphone is closed, muted or absent."""
        if not self.is_listening:
            raise AudioInputError("The microphone is closed.", "Press Start before you talk.")
        if self.is_muted:
            raise AudioInputError("The microphone is muted.", "Unmute it before you talk.")
        if not self._supervisor.is_input_open:
            raise AudioInputError("No microphone is open.", "Connect one and look for devices again.")

    def open_output(self, settings: SessionSettings) -> None:
        """Open the loudspeaker for a reply while the microphone is closed."""
        if not self.is_listening and not self._supervisor.is_output_open:
            self.open(settings)

    def use(self, settings: SessionSettings) -> None:
        """Other devices or another latency were chosen; closed streams use them when they are opened."""
        if self.is_listening or self._supervisor.is_output_open:
            self.open(settings)

    def close(self) -> None:
        """Close the devices; a sample continues."""
        self._take_up(self._supervisor.close())

    def close_unused(self) -> None:
        """Close a loudspeaker that was opened for one reply."""
        if not self.is_listening and self._sample is None and self._supervisor.is_output_open:
            self._notify(self._supervisor.close())

    def reopen(self) -> None:
        """Reopen the open streams, without the sound that the devices hold; a file continues where it was."""
        self.look_again()
        if self._sample is not None:
            self._sample.open(None, 0.0)

    def look_again(self) -> None:
        """Find devices that came or went."""
        self._take_up(self._supervisor.refresh())

    def report(self) -> None:
        """Emit the available devices and those in use, if they have changed."""
        found = self._supervisor.find_devices()
        changed = DevicesChanged(
            _names(found.inputs),
            _names(found.outputs),
            *self._supervisor.in_use(found),
            {device.name: device.description for device in (*found.inputs, *found.outputs)},
        )
        if changed != self._reported:
            self._reported = changed
            self._emit(changed)

    def service(self, now_ns: int, *, is_held: bool, is_idle: bool) -> None:
        """Advance devices and sample; the sample pauses while it `is_held`. Without a turn (it
        `is_idle`) devices may be interrupted in order to look for others."""
        if notices := self._supervisor.service(now_ns, is_idle=is_idle):
            self._take_up(notices)
        if now_ns >= self._follow_ns:
            self._follow_ns = now_ns + _FOLLOW_NS
            self._follow(now_ns)
            self._watch_microphone(now_ns)
        if self._sample is not None:
            self._sample.is_held = is_held
            if is_held:
                self._monitor.pause()
            self._sample.service(now_ns)
            if self._supervisor.is_input_open:  # discard the sound of the microphone meanwhile
                ring = self._supervisor.audio_in.ring
                ring.read(ring.available)
        elif self._capture.has_moved:
            self._attach()

    def _watch_microphone(self, now_ns: int) -> None:
        reported = self._reported
        name = "" if reported is None else reported.descriptions.get(reported.input) or reported.input
        silent_s = 0.0 if self._capture.is_file else self._capture.silent_s
        for notice in self._watch.notices(silent_s, now_ns, name):
            self._emit(DeviceNoticed(notice))
        if self._watch.is_silent != self._is_silent:
            self._is_silent = self._watch.is_silent
            self._emit(MicrophoneSilent(self._is_silent))

    def _follow(self, now_ns: int) -> None:
        found = self._supervisor.find_devices()
        if found.is_live and found != self._found:
            self._found = found
            self._take_up(self._supervisor.follow(found))
        elif not found.is_live and now_ns >= self._look_again_ns:
            self._look_again_ns = now_ns + _LOOK_AGAIN_NS
            self._supervisor.look_around()
            self.report()

    def _take_up(self, notices: list[DeviceNotice]) -> None:
        """Devices were opened or closed."""
        self._notify(notices)
        if self._input_changes != self._supervisor.input_changes:
            self._input_changes = self._supervisor.input_changes
            self._attach()
        self.report()

    # ---- samples ----

    def load_sample(self, path: Path) -> WavMicrophone:
        """A file that is ready to be heard. AudioInputError if it cannot be used."""
        return WavMicrophone(path, self._on_sample)

    def begin_sample(self, sample: WavMicrophone, now_ns: int) -> None:
        """Listen to a file from now on."""
        self.end_sample()
        sample.open(None, 0.0)
        self._sample = sample
        self._quiet_since_ns = now_ns
        self._capture.attach(sample)
        self._emit(SampleStarted(sample.path, sample.seconds))

    def end_finished_sample(self, now_ns: int, *, has_turn: bool) -> None:
        """End the sample once it was heard and its turns are answered."""
        if self._sample is None:
            return
        if not self._sample.is_finished or has_turn:
            self._quiet_since_ns = now_ns
        if now_ns - self._quiet_since_ns >= _SILENCE_AFTER_FILE_NS:
            self.end_sample()

    def end_sample(self) -> None:
        """Switch back to the microphone."""
        sample, self._sample = self._sample, None
        if sample is None:
            return
        sample.close()
        self._monitor.pause()
        self._attach()
        self._emit(SampleFinished(sample.path))

    def _on_sample(self, pcm: Pcm) -> None:
        if self.hears_samples and self._sample is not None and not self._sample.is_held:
            self._monitor.hear(pcm, self._sample.sample_rate)

    def _attach(self) -> None:
        """Attach the current source."""
        if self._sample is None:
            self._drop_speech()
            self._capture.attach(self._supervisor.audio_in if self._supervisor.is_input_open else None)
            self._watch = MicrophoneWatch(self._supervisor.audio_in)

    def _notify(self, notices: list[DeviceNotice]) -> None:
        for notice in notices:
            if notice.is_error:
                self._emit(ErrorRaised(notice.problem, is_about_sound=True))
            else:
                self._emit(DeviceNoticed(notice.problem))


def _names(devices: tuple[Device, ...]) -> tuple[str, ...]:
    """The devices that can be chosen; monitors of loudspeakers only by name."""
    return tuple(device.name for device in devices if not device.is_monitor)


class MicrophoneWatch:
    """One microphone, from its opening on."""

    def __init__(self, microphone: AudioInput) -> None:
        self._microphone = microphone
        self.is_silent = False
        """Whether it delivers silence now."""
        self._is_silence_told = self._is_loss_told = False
        self._dropped = microphone.dropped_samples
        self._losses: list[int] = []

    def notices(self, silent_s: float, now_ns: int, name: str) -> list[Problem]:
        """Messages for the user now; the microphone, which the user knows by `name`, has had no sound for
        `silent_s`."""
        found = []
        self.is_silent = silent_s >= _SILENCE_S
        if self.is_silent and not self._is_silence_told:
            self._is_silence_told = True
            found.append(
                Problem(
                    "The microphone {name} delivers silence.",
                    "Check that it is not muted, or choose another one.",
                    name=name,
                )
            )
        if self._microphone.dropped_samples != self._dropped:
            self._dropped = self._microphone.dropped_samples
            self._losses = [*(at for at in self._losses if now_ns - at < _LOSSES_WITHIN_NS), now_ns]
        if len(self._losses) >= _LOSSES and not self._is_loss_told:
            self._is_loss_told = True
            found.append(
                Problem(
                    "The microphone {name} loses sound.",
                    "Choose a higher device latency in the settings.",
                    name=name,
                )
            )
        return found


class SampleMonitor:
    """Writes into the ring of the loudspeaker while no reply does."""

    def __init__(self, audio_out: AudioOutput) -> None:
        self._out = audio_out
        self._resampler: Resampler | None = None

    def hear(self, pcm: Pcm, sample_rate: int) -> None:
        """The next block of the sample."""
        if not self._out.name:
            return
        rates = sample_rate, self._out.sample_rate
        if self._resampler is None or (self._resampler.in_rate, self._resampler.out_rate) != rates:
            self._resampler = Resampler(*rates)
            self._out.ring.write(np.zeros(round(_LEAD_S * self._out.sample_rate), dtype=np.float32))
        self._out.ring.write(self._resampler.push(pcm))

    def pause(self) -> None:
        """The sample is paused or has ended; reset."""
        self._resampler = None
