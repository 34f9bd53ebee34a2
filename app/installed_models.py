"""The models on this computer and those that can be downloaded: name, size, licence, state.

In: the folders of the shipped and of the fetched bundles. Out: plain values; `remove` deletes a fetched one.
No torch and no network. Any thread.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from app import paths
from engine_runtime.bundle.bundle import MANIFEST_NAME, Bundle
from engine_runtime.bundle.released import layout
from engine_runtime.errors import MossVoiceError, Problem

RELEASED = "moss-speech"
"""The released model, by its name in `moss-voice fetch`."""


class ModelError(MossVoiceError):
    """A model that cannot be removed."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is installed, incomplete, or can be downloaded."""

    name: str
    folder: Path
    """Folder of its bundle, which need not exist yet."""
    bytes: int
    """Size of its files; of one that can be downloaded, about what the download takes."""
    licence: str
    is_shipped: bool = False
    is_installed: bool = True
    loaded_bytes: int = 0
    """Bytes left by an earlier download of a model that is not installed."""
    problem: Problem | None = None
    """Why an installed one cannot be used."""

    @property
    def is_removable(self) -> bool:
        """Whether it was fetched or a download of it was begun."""
        return not self.is_shipped and (self.is_installed or self.loaded_bytes > 0)


def find_models() -> list[Model]:
    """The shipped models, the fetched ones, and the released one if it is not installed."""
    shipped = [_installed(folder, is_shipped=True) for folder in _bundles(paths.bundles_dir())]
    fetched = [_installed(folder) for folder in _bundles(paths.user_bundles_dir())]
    folder = paths.user_bundles_dir() / RELEASED
    if folder not in [model.folder for model in fetched]:
        fetched.append(
            Model(
                RELEASED,
                folder,
                layout.DOWNLOAD_BYTES,
                layout.LICENCE,
                is_installed=False,
                loaded_bytes=_size_of(folder),
            )
        )
    return [*shipped, *fetched]


def free_bytes(folder: Path) -> int:
    """Free space of the disk of a folder that need not exist yet."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
    return shutil.disk_usage(existing).free


def remove(folder: Path) -> None:
    """Delete a fetched model, or what was downloaded of it. Links in it are deleted, not what they lead to.

    Raises ModelError for any other folder, and if files cannot be deleted.
    """
    if folder.parent != paths.user_bundles_dir():
        raise ModelError(
            "{folder} was not fetched by this program.", "Delete it yourself if you want to.", folder=folder
        )
    try:
        if folder.is_symlink():
            folder.unlink()
        elif folder.is_dir():
            (folder / MANIFEST_NAME).unlink(missing_ok=True)  # no half of it counts as a model
            shutil.rmtree(folder)
    except OSError as error:
        raise ModelError(
            "{folder} cannot be deleted: {reason}.",
            "Check its permissions.",
            folder=folder,
            reason=error.strerror,
        ) from error


def _bundles(folder: Path) -> list[Path]:
    return [file.parent for file in sorted(folder.glob(f"*/{MANIFEST_NAME}"))]


def _installed(folder: Path, *, is_shipped: bool = False) -> Model:
    try:
        bundle = Bundle.open(folder, verify="size")
    except MossVoiceError as error:
        return Model(folder.name, folder, _size_of(folder), "", is_shipped, problem=error.problem)
    return Model(bundle.name, folder, bundle.total_bytes, bundle.licence, is_shipped)


def _size_of(folder: Path) -> int:
    """Bytes of the files in a folder, without those behind links."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
