"""Models described without their weights, to be filled with random values.

In: a name (`moss-speech`) or the folder of a bundle. Out: an open `Bundle` that needs no weight files. Any
thread.
"""

from __future__ import annotations

from pathlib import Path

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.errors import BundleError

_DESCRIPTIONS = {"moss-speech": Path(__file__).resolve().parent / "moss_speech"}


def describe(name_or_folder: str | Path) -> Bundle:
    """The bundle in this folder or, if there is none, of this name. Raises BundleError for neither."""
    folder = Path(name_or_folder)
    if not folder.is_dir():
        known = _DESCRIPTIONS.get(str(name_or_folder))
        if known is None:
            raise BundleError(
                "There is no bundle folder at {name}, and no model of that name is known.",
                "Give a folder or one of: {descriptions}.",
                name=name_or_folder,
                descriptions=", ".join(_DESCRIPTIONS),
            )
        folder = known
    return Bundle.open(folder, verify="none")
