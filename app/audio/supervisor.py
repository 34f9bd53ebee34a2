"""Keeps microphone and loudspeaker running: opens them, replaces a lost device, and returns to it, by name,
when it is back.

In: `open`, `close`, a `service` every few milliseconds with the time, and `follow` when the list of a sound
server has changed. Out: notices for the user. A stream whose device has gone is closed and opened on the
default one, and again on its own when that is back: at once where a sound server says so, otherwise after
0.5, 1, 2, then every 5 s; PortAudio is restarted first if nothing else is open, the only way to make it look
for devices. Dialog thread; opening and closing run through `run_bounded`, because PortAudio can
hang.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.audio.devices import (
    KINDS,
    Device,
    DeviceList,
    Direction,
    divert_messages,
    find,
    leave_portaudio_behind,
    list_devices,
    no_answer,
    rescan,
)
from app.audio.streams import AudioInput, AudioOutput
from engine_runtime.errors import MossVoiceError, Problem

_OPEN_LIMIT_S = 5.0
"""A Bluetooth headset may have to change its profile first."""
_CLOSE_LIMIT_S = 2.0
_BACK_OFF_NS = (500_000_000, 1_000_000_000, 2_000_000_000, 5_000_000_000)
_LIST_DELAY_NS = 200_000_000
"""A stream can end before the server's list says that its device has gone."""

RunBounded = Callable[[Callable[[], None], float], bool]
"""Runs a function for at most this many seconds; False if it did not return."""


@dataclass(frozen=True, slots=True)
class DeviceNotice:
    """Something that the user should know about a device; nothing needs to be done unless it `is_error`."""

    problem: Problem
    is_error: bool = True


class _Side:
    """One direction: its stream and its requested settings."""

    def __init__(self, what: Direction, stream: AudioInput | AudioOutput) -> None:
        self.what, self.stream = what, stream
        self.is_wanted = False
        self.device: str | None = None
        """The requested device, None for the default one."""
        self.is_replaced = False
        """Whether the default device stands in for that one, which is away."""

    @property
    def is_open(self) -> bool:
        return bool(self.stream.name)

    def devices(self, found: DeviceList) -> tuple[Device, ...]:
        return found.inputs if self.what == "microphone" else found.outputs

    def in_use(self, found: DeviceList) -> str:
        """Where the sound server has the stream, or else what was opened."""
        if not self.is_open:
            return ""
        moved = found.input_in_use if self.what == "microphone" else found.output_in_use
        return moved or self.stream.name

    def is_absent(self, found: DeviceList) -> bool:
        return self.device is not None and find(self.devices(found), self.device) is None


class DeviceSupervisor:
    """Both sides together, because a restart of PortAudio needs all streams closed."""

    def __init__(
        self,
        audio_in: AudioInput,
        audio_out: AudioOutput,
        run_bounded: RunBounded,
        look_again: Callable[[], None] = rescan,
        find_devices: Callable[[], DeviceList] = list_devices,
    ) -> None:
        self.audio_in = audio_in
        self.audio_out = audio_out
        self._run_bounded = run_bounded
        self._look_again = look_again
        self.find_devices = find_devices
        """Lists the devices as they are now."""
        self._input, self._output = _Side("microphone", audio_in), _Side("loudspeaker", audio_out)
        self._sides = (self._output, self._input)
        self.input_changes = 0
        """How often the microphone was opened or closed so far."""
        self._latency_s = 0.0
        self._retry_at_ns: int | None = None
        self._attempt = 0
        self._unreported: DeviceNotice | None = None
        """A loss that is not reported yet, because it may be over soon."""
        self._is_hung = False
        self._descriptions: dict[str, str] = {}
        """Descriptions of all devices seen so far, to name one that has gone."""

    @property
    def is_input_open(self) -> bool:
        """Whether the microphone runs."""
        return self._input.is_open

    @property
    def is_output_open(self) -> bool:
        """Whether the loudspeaker runs."""
        return self._output.is_open

    def in_use(self, found: DeviceList) -> tuple[str, str]:
        """Names of the microphone and the loudspeaker in use, "" for none."""
        return self._input.in_use(found), self._output.in_use(found)

    def open(
        self, latency_s: float, *, input_device: str | None, output_device: str | None, with_input: bool
    ) -> list[DeviceNotice]:
        """Open the loudspeaker and, if asked, the microphone; a side that fails is a notice, and `service`
        tries again. A side that is open as requested continues undisturbed."""
        changed = []
        for side, is_wanted, device in (
            (self._output, True, output_device),
            (self._input, with_input, input_device),
        ):
            same = (side.is_wanted, side.device, self._latency_s) == (is_wanted, device, latency_s)
            side.is_wanted, side.device = is_wanted, device
            if not (same and side.is_open):
                changed.append(side)
        self._latency_s = latency_s
        self._retry_at_ns, self._attempt = None, 0
        return [*self._close_streams(changed), *self._open_wanted()]

    def close(self) -> list[DeviceNotice]:
        """Close both sides within a time limit; a notice if the sound system hangs."""
        for side in self._sides:
            side.is_wanted = side.is_replaced = False
        self._retry_at_ns, self._attempt = None, 0
        return self._close_streams(self._sides)

    def refresh(self) -> list[DeviceNotice]:
        """Look for devices again and reopen what was open."""
        return [*self._close_streams(self._sides), *self._look_and_open()]

    def look_around(self) -> None:
        """Look for devices again, unless one is open or requested: then `service` does it."""
        if not any(side.is_open or side.is_wanted for side in self._sides):
            self._look_and_open()

    def follow(self, found: DeviceList) -> list[DeviceNotice]:
        """The list of the sound server has changed: note a device that went, take one back that returned,
        open a side for which there was none."""
        notices: list[DeviceNotice] = []
        self._learn(found)
        for side in self._sides:
            if side.is_open and not any(not device.is_monitor for device in side.devices(found)):
                notices += [self._loss([side]), *self._close_streams([side])]
            elif side.is_open and side.is_replaced != side.is_absent(found):
                # The server has moved the stream, but the ALSA plugin would want the old device at an xrun.
                notices += self._close_streams([side])
        return [*notices, *(notice for notice in self._open_wanted() if not notice.is_error)]

    def service(self, now_ns: int, *, is_idle: bool = True) -> list[DeviceNotice]:
        """Advance both sides, notice a loss, reopen when it is time. While it `is_idle`, an open side may be
        interrupted in order to look for the other."""
        self.audio_in.service(now_ns)
        self.audio_out.service(now_ns)
        if self._is_hung:
            return []
        if lost := [side for side in self._sides if side.stream.is_lost()]:
            return self._replace(lost, now_ns)
        if all(side.is_open or not side.is_wanted for side in self._sides):
            self._retry_at_ns = None
        elif self._retry_at_ns is None:
            self._retry_at_ns, self._attempt = now_ns + _BACK_OFF_NS[0], 1
        elif now_ns >= self._retry_at_ns:
            return self._retry(now_ns, is_idle=is_idle)
        return []

    def _replace(self, lost: list[_Side], now_ns: int) -> list[DeviceNotice]:
        """Reopen at once what a sound server has ended; without one, everything after a while."""
        loss = self._loss(lost)
        is_live = self.find_devices().is_live
        # Without a sound server PortAudio has to be restarted to see other devices, for which every stream
        # must be closed.
        notices = self._close_streams(lost if is_live else self._sides)
        opened = self._open_wanted() if is_live else []
        if is_live and not any(notice.is_error for notice in opened):
            return [*notices, *opened]
        self._attempt = 0 if is_live else 1
        self._retry_at_ns = now_ns + (_LIST_DELAY_NS if is_live else _BACK_OFF_NS[0])
        self._unreported = loss if is_live else None
        return notices if is_live else [loss, *notices]

    def _retry(self, now_ns: int, *, is_idle: bool) -> list[DeviceNotice]:
        notices: list[DeviceNotice] = []
        if is_idle and not self.find_devices().is_live:
            notices = self._close_streams(self._sides)
        closed = [side for side in self._sides if side.is_wanted and not side.is_open]
        notices += self._look_and_open()
        loss, self._unreported = self._unreported, None
        if not any(notice.is_error for notice in notices):
            self._retry_at_ns, self._attempt = None, 0
            if loss is not None:
                return notices
            names = " and ".join(dict.fromkeys(self._described(side.stream.name) for side in closed))
            return [*notices, DeviceNotice(Problem("Sound is back: {names}.", names=names), is_error=False)]
        self._retry_at_ns = now_ns + _BACK_OFF_NS[self._attempt]
        self._attempt = min(self._attempt + 1, len(_BACK_OFF_NS) - 1)
        return [loss] if loss is not None else []  # reported once

    def _look_and_open(self) -> list[DeviceNotice]:
        if self._is_hung:
            return []
        try:
            if not any(side.is_open for side in self._sides):
                self._look_again()
        except MossVoiceError as error:
            return [DeviceNotice(error.problem)]
        except Exception as error:  # PortAudioError: the sound system is away for the moment
            return [DeviceNotice(no_answer(error))]
        return self._open_wanted()

    def _open_wanted(self) -> list[DeviceNotice]:
        notices: list[DeviceNotice] = []
        for side in self._sides:
            if side.is_wanted and not side.is_open and not self._is_hung:
                notices += self._open_side(side)
        return notices

    def _open_side(self, side: _Side) -> list[DeviceNotice]:
        refused: list[MossVoiceError] = []
        self.input_changes += side is self._input

        def attempt() -> None:
            try:
                side.stream.open(side.device, self._latency_s)
            except MossVoiceError as error:
                refused.append(error)

        if not self._run_bounded(attempt, _OPEN_LIMIT_S):
            return self._give_up()
        if refused:
            return [DeviceNotice(refused[0].problem)]
        found = self.find_devices()
        self._learn(found)
        was_replaced, side.is_replaced = side.is_replaced, side.is_absent(found)
        if side.is_replaced and not was_replaced:
            return [self._replacement(side, found)]
        if was_replaced and not side.is_replaced:
            name = self._described(side.stream.name)
            back = Problem("The {kind} {name} is back.", kind=KINDS[side.what], name=name)
            return [DeviceNotice(back, is_error=False)]
        return []

    def _close_streams(self, sides: Sequence[_Side]) -> list[DeviceNotice]:
        open_sides = [side for side in sides if side.is_open]
        if self._is_hung or not open_sides:
            return []

        def close_all() -> None:
            for side in open_sides:
                side.stream.close()

        self.input_changes += self._input in open_sides
        restore_messages = divert_messages()
        if self._run_bounded(close_all, _CLOSE_LIMIT_S):
            restore_messages()
            return []
        # Its messages stay diverted, because the hanging thread may continue to write them.
        return self._give_up()

    def _give_up(self) -> list[DeviceNotice]:
        self._is_hung = True
        leave_portaudio_behind()
        return [
            DeviceNotice(
                Problem(
                    "The sound system does not respond and cannot be closed.",
                    "Restart this program to use sound again.",
                )
            )
        ]

    def _loss(self, lost: list[_Side]) -> DeviceNotice:
        names = " and ".join(dict.fromkeys(self._described(side.stream.name) for side in lost))
        return DeviceNotice(
            Problem(
                "The sound device {names} was lost.",
                "It is reconnected automatically; check its cable or choose another one.",
                names=names,
            )
        )

    def _replacement(self, side: _Side, found: DeviceList) -> DeviceNotice:
        return DeviceNotice(
            Problem(
                "The {kind} {absent} is not connected; {present} is used instead.",
                kind=KINDS[side.what],
                absent=self._described(side.device or ""),
                present=self._described(side.in_use(found)),
            ),
            is_error=False,
        )

    def _described(self, name: str) -> str:
        """The name by which the user knows the device."""
        return self._descriptions.get(name, name or "a device")

    def _learn(self, found: DeviceList) -> None:
        for device in (*found.inputs, *found.outputs):
            self._descriptions[device.name] = device.description or device.name
