"""The page of the settings about captions of the user's speech: whether there are any, and by which model.

In: preferences. Out: the edited preferences; what the chosen folder lacks is said below it. GUI thread.
"""

from __future__ import annotations

from PySide6.QtWidgets import QCheckBox, QFileDialog

from app import paths
from app.gui.common.error_texts import in_words
from app.gui.settings.settings_page import FileField, SettingsPage
from app.session.transcriber import EXTRA
from engine_runtime.errors import MossVoiceError
from engine_runtime.whisper import check_model


class CaptionsPage(SettingsPage):
    """A folder that holds no model, or a missing package, does not keep the dialog from being accepted: the
    conversation goes on without captions."""

    def __init__(self) -> None:
        self.captions = QCheckBox(self.tr("Show what I say in words"))
        self.model = FileField(
            self.tr("Whisper model"), self.tr("a folder with model.bin and tokenizer.json"), self._browse
        )
        super().__init__(
            (self.tr("Ca&ptions"), self.captions, ""),
            (
                self.tr("Whisper mo&del"),
                self.model,
                self.tr(
                    "In CTranslate2's format, such as whisper-base. The words appear a second or more after "
                    "you spoke; replies do not wait for them. Nothing is downloaded or sent."
                ),
            ),
        )
        self.bind(captions=self.captions, whisper=self.model)
        self.captions.toggled.connect(self._check)
        self.model.changed.connect(self._check)
        self._check()

    def _check(self) -> None:
        """Say why there would be no captions."""
        self.model.setEnabled(self.captions.isChecked())
        reason = ""
        if self.captions.isChecked():
            try:
                check_model(paths.user_path(self.model.path), EXTRA)
            except MossVoiceError as error:
                reason = in_words(error.problem)
        self.model.show_note(reason, is_usable=not reason, is_known=bool(self.model.path))

    def _browse(self, start: str) -> str:
        return QFileDialog.getExistingDirectory(self, self.tr("Folder of the Whisper model"), start)
