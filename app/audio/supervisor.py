"""Keeps microphone and loudspeaker running: opens them, detects the loss of one, reopens it.

In: `open`, `close` and a `service` every few milliseconds with the time. Out: notices for the user. A lost
device is closed within a time limit, PortAudio is restarted, and the device (or else the default one) is
opened again, after 0.5, 1, 2, then every 5 s. Dialog thread; closing runs through `run_bounded`, because
PortAudio can hang.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.audio.devices import divert_messages, leave_portaudio_behind, rescan
from app.audio.streams import AudioInput, AudioOutput
from engine_runtime.errors import MossVoiceError

_CLOSE_LIMIT_S = 2.0
_BACK_OFF_NS = (500_000_000, 1_000_000_000, 2_000_000_000, 5_000_000_000)

RunBounded = Callable[[Callable[[], None], float], bool]
"""Runs a function for at most this many seconds; False if it did not return."""


@dataclass(frozen=True, slots=True)
class DeviceNotice:
    """Something that the user should know about a device."""

    message: str
    what_to_do: str
    is_error: bool = True


class DeviceSupervisor:
    """Both sides together, because looking for devices again needs all streams closed."""

    def __init__(
        self,
        audio_in: AudioInput,
        audio_out: AudioOutput,
        run_bounded: RunBounded,
        look_again: Callable[[], None] = rescan,
    ) -> None:
        self.audio_in = audio_in
        self.audio_out = audio_out
        self._run_bounded = run_bounded
        self._look_again = look_again
        self._wanted: dict[str, str | None] = {}
        """Side -> device name, for the sides that are to be open."""
        self._latency_s = 0.0
        self._retry_at_ns: int | None = None
        self._attempt = 0
        self._is_hung = False

    @property
    def is_input_open(self) -> bool:
        """Whether the microphone runs."""
        return bool(self.audio_in.name)

    @property
    def is_output_open(self) -> bool:
        """Whether the loudspeaker runs."""
        return bool(self.audio_out.name)

    def open(
        self, latency_s: float, *, input_device: str | None, output_device: str | None, with_input: bool
    ) -> list[DeviceNotice]:
        """Open the loudspeaker and, if asked, the microphone; a side that fails is a notice and stays
        closed."""
        notices = self.close()
        self._latency_s = latency_s
        self._wanted = {"output": output_device}
        if with_input:
            self._wanted["input"] = input_device
        return [*notices, *self._open_wanted()]

    def close(self) -> list[DeviceNotice]:
        """Close both sides within a time limit; a notice if the sound system hangs."""
        self._wanted = {}
        self._retry_at_ns = None
        self._attempt = 0
        return self._close_streams()

    def refresh(self) -> list[DeviceNotice]:
        """Look for devices again and reopen what was open."""
        wanted = dict(self._wanted)
        notices = self.close()
        self._wanted = wanted
        return [*notices, *self._look_and_open()]

    def service(self, now_ns: int) -> list[DeviceNotice]:
        """Advance both sides, notice a loss, reopen when it is time."""
        self.audio_in.service(now_ns)
        self.audio_out.service(now_ns)
        if self._is_hung:
            return []
        lost = [side.name for side in (self.audio_in, self.audio_out) if side.is_lost()]
        if lost:
            notices = self._close_streams()
            self._attempt = 0
            self._retry_at_ns = now_ns + _BACK_OFF_NS[0]
            names = " and ".join(dict.fromkeys(name or "a device" for name in lost))
            notice = DeviceNotice(
                f"The sound device {names} was lost.",
                "It is reconnected automatically; check its cable or choose another one.",
            )
            return [notice, *notices]
        if self._retry_at_ns is not None and now_ns >= self._retry_at_ns:
            return self._retry(now_ns)
        return []

    def _retry(self, now_ns: int) -> list[DeviceNotice]:
        notices = self._close_streams()
        notices += self._look_and_open()
        if not any(notice.is_error for notice in notices):
            self._retry_at_ns = None
            self._attempt = 0
            names = " and ".join(side.name for side in (self.audio_in, self.audio_out) if side.name)
            return [DeviceNotice(f"Sound is back: {names}.", "", is_error=False)]
        self._attempt = min(self._attempt + 1, len(_BACK_OFF_NS) - 1)
        self._retry_at_ns = now_ns + _BACK_OFF_NS[self._attempt]
        return []  # reported once, when it was lost

    def _look_and_open(self) -> list[DeviceNotice]:
        if self._is_hung:
            return []
        try:
            self._look_again()
        except MossVoiceError as error:
            return [DeviceNotice(error.what_is_wrong, error.what_to_do)]
        except Exception as error:  # PortAudioError: the sound system is away for the moment
            return [DeviceNotice(f"The sound system does not answer ({error}).", "Check that it runs.")]
        return self._open_wanted()

    def _open_wanted(self) -> list[DeviceNotice]:
        notices: list[DeviceNotice] = []
        sides: dict[str, AudioInput | AudioOutput] = {"output": self.audio_out, "input": self.audio_in}
        for side, device in self._wanted.items():
            try:
                sides[side].open(device, self._latency_s)
            except MossVoiceError as error:
                notices.append(DeviceNotice(error.what_is_wrong, error.what_to_do))
        return notices

    def _close_streams(self) -> list[DeviceNotice]:
        if self._is_hung:
            return []

        def close_both() -> None:
            self.audio_in.close()
            self.audio_out.close()

        if not (self.audio_in.name or self.audio_out.name):
            return []
        restore_messages = divert_messages()
        if self._run_bounded(close_both, _CLOSE_LIMIT_S):
            restore_messages()
            return []
        # Its messages stay diverted, since the hanging thread may continue to write them.
        self._is_hung = True
        leave_portaudio_behind()
        return [
            DeviceNotice(
                "The sound system does not respond and cannot be closed.",
                "Restart this program to use sound again.",
            )
        ]
