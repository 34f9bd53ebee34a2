"""Where a conversation without a window is recorded: a folder of the given name, or its sound alone.

In: the name that the user gave. Out: the `Recording` for the session; then the folder, or the WAV file, is in
its place, complete or absent, and only its owner can read it. Any thread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.export import ExportFile, check_target, in_words
from app.session.conversation_folder import SOUND
from app.session.session_settings import Recording
from engine_runtime.errors import ExportError

_COPIED_AT_ONCE = 1 << 20


@contextmanager
def recorded(target: Path | None) -> Iterator[Recording | None]:
    """Record into `target`: a WAV file if its name ends in .wav, else a folder, which must not exist yet.
    ExportError if that cannot be done."""
    if target is None:
        yield None
    elif target.suffix.lower() == ".wav":
        check_target(target)
        with _beside(target) as folder:
            yield Recording(folder, name="sound")
            _move(folder / "sound" / SOUND, target)
    else:
        if target.exists():
            raise ExportError(
                "{target} is there already.", "Choose another name for the recording.", target=target
            )
        with _beside(target):  # refused before an engine is loaded
            pass
        yield Recording(target.parent, name=target.name)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix=f".{target.name[:40]}.", dir=target.parent)
    except OSError as error:
        raise in_words(target, error) from error
    with folder as path:
        yield Path(path)


def _move(sound: Path, target: Path) -> None:
    if sound.is_file():  # a conversation without a turn leaves none
        with sound.open("rb") as source, ExportFile(target, is_private=True) as file:
            while content := source.read(_COPIED_AT_ONCE):
                file.write(content)
