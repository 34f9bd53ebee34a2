"""Checks the output folders and files of a command before its work starts.

In: paths that need not exist yet, and the option that names them. Out: nothing, or an ExportError with the
reason why they cannot be written. Nothing is created. Any thread.
"""

from __future__ import annotations

import os
from pathlib import Path

from engine_runtime.errors import ExportError


def require_folder(folder: Path, option: str) -> None:
    """Raise ExportError unless `folder` is writable or can be created."""
    there = next(path for path in (folder, *folder.absolute().parents) if os.access(path, os.F_OK))
    if not there.is_dir():
        raise ExportError("{there} is a file.", "Give a folder with {option}.", there=there, option=option)
    if not os.access(there, os.W_OK | os.X_OK):
        raise ExportError(
            "{there} is not writable.",
            "Choose another place with {option}.",
            there=there,
            option=option,
        )


def require_file(file: Path, option: str) -> None:
    """ExportError unless `file` can be written."""
    if file.is_dir():
        raise ExportError(
            "{file} is a folder.", "Give the name of a file with {option}.", file=file, option=option
        )
    require_folder(file.absolute().parent, option)
