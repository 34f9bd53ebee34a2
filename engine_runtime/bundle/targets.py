"""Where results go: looked at before the work, so that minutes are not spent on what has no place.

In: folders and files that need not be there yet, and the option that names them. Out: an ExportError that
says what is wrong with them. Nothing is made. Any thread.
"""

from __future__ import annotations

import os
from pathlib import Path

from engine_runtime.errors import ExportError


def require_folder(folder: Path, option: str) -> None:
    """ExportError unless files can be made in `folder`, or it can be made."""
    there = next(path for path in (folder, *folder.absolute().parents) if os.access(path, os.F_OK))
    if not there.is_dir():
        raise ExportError(f"{there} is a file. Give a folder with {option}.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ExportError(f"{there} may not be written to. Choose another place with {option}.")


def require_file(file: Path, option: str) -> None:
    """ExportError unless `file` can be written."""
    if file.is_dir():
        raise ExportError(f"{file} is a folder. Give the name of a file with {option}.")
    require_folder(file.absolute().parent, option)
