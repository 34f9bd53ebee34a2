"""The page of the settings dialog about the model: which one, its voice, vocoder, device and weight format.

In: preferences, the models on this computer, the memory of its devices. Out: the edited preferences; bundle,
voice and vocoder are checked while they are edited. GUI thread.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFileDialog

from app import paths
from app.audio.wav import read_beginning
from app.gui.common.error_texts import in_words
from app.gui.common.preferences import Preferences
from app.gui.settings.device_choice import DeviceChoice
from app.gui.settings.lookups import DevicePlans, DeviceRoom, EngineChecks, best_gpu
from app.gui.settings.model_jobs import ModelJobs
from app.gui.settings.model_list import ModelList
from app.gui.settings.settings_page import FileField, SettingsPage
from app.installed_models import RELEASED
from app.settings import StartSettings
from engine_runtime.bundle.bundle import MANIFEST_NAME, Bundle
from engine_runtime.bundle.vocoder_file import with_vocoder
from engine_runtime.codec.voice.recording import SEARCHED_S, VoiceSource, cut_speech
from engine_runtime.errors import MossVoiceError
from engine_runtime.options import WeightFormat


class ModelTools(QObject):
    """State that outlives the settings dialog: downloads, what fits on which device, examined engines."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.jobs, self.plans, self.checks = ModelJobs(self), DevicePlans(self), EngineChecks(self)

    def kill(self) -> None:
        """End the processes: the window closes."""
        self.jobs.kill()
        self.plans.kill()
        self.checks.kill()


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """The engine that runs: its memory is free for another one."""

    bundle: Path
    device: str
    form: tuple[WeightFormat, bool]

    @classmethod
    def from_start(cls, start: StartSettings) -> RunningEngine:
        """The folder of these settings."""
        engine = start.engine
        return cls(start.bundle.absolute(), engine.device, (engine.weight_format, engine.rounds_tails))


class ModelPage(SettingsPage):
    """`running` is the engine that runs. Without `tools` nothing is downloaded, and the
    devices stay unknown.

    Signals:
        files_checked: bundle, voice or vocoder were changed and checked; see `is_usable`.
    """

    files_checked = Signal()

    def __init__(self, tools: ModelTools | None = None, running: StartSettings | None = None) -> None:
        self._plans = None if tools is None else tools.plans
        self._asked = ""
        self._running = None if running is None else RunningEngine.from_start(running)
        self.bundle = FileField(
            self.tr("Folder of the model bundle"),
            self.tr("The included bundle"),
            self._browse_bundles,
        )
        in_use = None if self._running is None else self._running.bundle
        self.models = ModelList(self.bundle, None if tools is None else tools.jobs, in_use)
        self.voice = FileField(
            self.tr("Recording of the voice to speak with"),
            self.tr("The voice of the bundle"),
            self._browse_recordings,
        )
        self.vocoder = FileField(
            self.tr("File of the vocoder to speak with"),
            self.tr("The vocoder of the bundle"),
            self._browse_vocoders,
        )
        self.device = DeviceChoice()
        super().__init__(
            (self.tr("&Model"), self.models, ""),
            (
                self.tr("&Voice"),
                self.voice,
                self.tr(
                    "A WAV or FLAC file with at least 3.2 s of speech, of which the first 6 s are used. "
                    "For bundles whose voice can be chosen."
                ),
            ),
            (
                self.tr("Vo&coder"),
                self.vocoder,
                self.tr("A BigVGAN that was trained on the mel of the bundle (assets/training/README.md)."),
            ),
            (self.tr("&Device"), self.device.device_box, ""),
            (
                self.tr("&Weights"),
                self.device.weights_box,
                self.tr("On a GPU, fewer bits take less memory and are faster; native is the most accurate."),
            ),
            ("", self.device.saves_memory, ""),
            ("", self.device.note, ""),
        )
        self.device.setParent(self)
        self.models.changed.connect(self._check_files)
        self.voice.changed.connect(self._check_files)
        self.vocoder.changed.connect(self._check_files)
        if self._plans is not None:
            self._plans.found.connect(self._show_rooms)

    @property
    def bundle_name(self) -> str:
        """The name of the chosen bundle, "" if it cannot be read."""
        try:
            return Bundle.open(folder_of(self.models.bundle), verify="none").name
        except MossVoiceError:
            return ""

    @property
    def is_usable(self) -> bool:
        """Whether bundle, voice and vocoder would load."""
        return all(field.is_usable for field in (self.bundle, self.voice, self.vocoder))

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        self.models.bundle, self.voice.path = preferences.bundle, preferences.voice
        self.vocoder.path = preferences.vocoder
        self.device.show_preferences(preferences)
        self._check_files()

    def edited(self, preferences: Preferences) -> Preferences:
        """`preferences` with the values of the page."""
        chosen = dataclasses.replace(
            preferences, bundle=self.models.bundle, voice=self.voice.path, vocoder=self.vocoder.path
        )
        return self.device.edited(chosen)

    def showEvent(self, event: QShowEvent) -> None:
        """Find out what the devices could hold."""
        super().showEvent(event)
        self._check_files()
        if self._plans is not None:
            self._show_rooms(RELEASED)

    def _browse_bundles(self, start: str) -> str:
        return QFileDialog.getExistingDirectory(self, self.tr("Folder of the model bundle"), start)

    def _browse_recordings(self, start: str) -> str:
        title, kinds = self.tr("Recording of the voice to speak with"), self.tr("Recordings (*.wav *.flac)")
        return QFileDialog.getOpenFileName(self, title, start, kinds)[0]

    def _browse_vocoders(self, start: str) -> str:
        title, kinds = self.tr("File of the vocoder to speak with"), self.tr("Vocoders (*.safetensors)")
        return QFileDialog.getOpenFileName(self, title, start, kinds)[0]

    def _check_files(self) -> None:
        """Say what is wrong with bundle, voice and vocoder, and whether the model fits."""
        chosen = folder_of(self.models.bundle)
        is_other = self.models.other_choice.isChecked() and bool(self.bundle.path)
        has_bundle = not is_other or os.path.isfile(chosen / MANIFEST_NAME)  # noqa: PTH113
        self.bundle.show_note(
            "" if has_bundle else self.tr("This folder has no bundle.toml. Choose another folder."),
            is_usable=has_bundle,
        )
        self._check_voice(chosen)
        self._check_vocoder(chosen)
        if self._plans is not None and has_bundle:
            self._show_rooms(str(chosen))
            self._ask(str(chosen))
        self.files_checked.emit()

    def _ask(self, bundle: str) -> None:
        """Ask for the plan of another bundle, once, and only if somebody sees the page: it takes seconds."""
        if self._plans is not None and self.isVisible() and bundle != self._asked:
            self._asked = bundle
            self._plans.look_up(bundle)

    def _check_voice(self, bundle: Path) -> None:
        def check(file: Path) -> str:
            source = VoiceSource(*read_beginning(file, SEARCHED_S))
            speech = cut_speech(source, Bundle.open(bundle, verify="none"))
            seconds = f"{speech.size / source.sample_rate:.1f}"
            return self.tr("%1 s of its speech are used.").replace("%1", seconds)

        self._say(self.voice, check)

    def _check_vocoder(self, bundle: Path) -> None:
        def check(file: Path) -> str:
            with_vocoder(Bundle.open(bundle, verify="none"), file)
            return ""

        self._say(self.vocoder, check)

    def _say(self, field: FileField, check: Callable[[Path], str]) -> None:
        """Show what the check says of the chosen file, or why it cannot be used."""
        if not field.path or not self.bundle.is_usable:
            field.show_note("", is_usable=True)
            return
        try:
            field.show_note(check(paths.user_path(field.path)), is_usable=True)
        except MossVoiceError as error:
            field.show_note(in_words(error.problem), is_usable=False)

    def _show_rooms(self, bundle: str) -> None:
        """The devices are known for a bundle: the chosen one, or the one that could be downloaded."""
        if self._plans is not None and bundle == RELEASED:
            there = [self._with_room_of_running(room) for room in self._plans.rooms.get(RELEASED, [])]
            self.models.advise(RELEASED, self._advice(there), fits=not there or best_gpu(there) is not None)
        if self._plans is None or bundle != str(folder_of(self.models.bundle)):
            return
        if rooms := self._plans.rooms.get(bundle):
            self.device.show_rooms([self._with_room_of_running(room) for room in rooms])
            is_other = self._running is None or self._running.bundle != Path(bundle)
            if is_other and not self.device.fits:
                self.device.recommend()
            if self.models.can_download:
                self._plans.look_up_once(RELEASED)

    def _advice(self, rooms: Sequence[DeviceRoom]) -> str:
        if not rooms:
            return ""
        found = best_gpu(rooms)
        if found is not None:
            gpu, (weights, saves_memory) = found
            text = self.tr("On this computer it fits on %1 (%2) with %3 weights.")
            form = f"{weights} + kv fp8" if saves_memory else weights
            return text.replace("%1", gpu.name).replace("%2", gpu.description).replace("%3", form)
        return self.tr("No usable GPU of this computer has enough memory for it.")

    def _with_room_of_running(self, room: DeviceRoom) -> DeviceRoom:
        """The engine that runs is closed before another one is loaded: its memory counts as free."""
        running, plans = self._running, self._plans
        if running is None or plans is None or running.device != room.name:
            return room
        known = plans.rooms.get(str(running.bundle), [])
        own = next((other.needs.get(running.form, 0) for other in known if other.name == room.name), 0)
        return dataclasses.replace(room, free_bytes=min(room.free_bytes + own, room.total_bytes))


def folder_of(bundle: str) -> Path:
    """The folder of a bundle in the preferences, absolute: commands run in another folder."""
    return (paths.user_path(bundle) if bundle else paths.default_bundle()).absolute()
