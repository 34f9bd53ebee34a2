"""Paths: shipped assets, fetched bundles, the GPU runtime, cached voices, settings, logs.

Assets are found in a checkout, in an installed copy and in a frozen program. Only `make_private` creates
folders. Any thread.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import platformdirs

APP_NAME = "moss-voice"
APPLICATION_ID = "io.github.moss_voice.MossVoice"
"""The name of the desktop entry (packaging/bundle/linux), by which a desktop finds the icon of the window."""
BUNDLE_VARIABLE = "MOSS_VOICE_BUNDLE"
_DEFAULT_BUNDLE = "nano"


def require_home() -> None:
    """Set HOME to the root folder, as containers do, where neither it nor the user's entry names a folder.

    For the start of the process: what keeps files of a user, here and in libraries, ends without one.
    """
    if not os.path.isabs(os.environ.get("HOME", "/")):  # noqa: PTH117
        del os.environ["HOME"]  # an empty or a relative name counts as none
    if not user_path("~").is_absolute():
        os.environ["HOME"] = "/"


def user_path(text: str) -> Path:
    """A path as typed by the user, with ~ and ~name expanded; an unknown ~name is kept. Shells do not expand
    the ~ of `--to=~/x`.
    """
    return Path(os.path.expanduser(text))  # noqa: PTH111


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can use, as missing ones above it; one that bears the name of this
    program, or is in such a one, becomes private if it is there already. OSError if it cannot be made."""
    if not folder.is_dir():
        for place in (*reversed(folder.parents), folder):
            if not place.is_dir():
                place.mkdir(mode=0o700, exist_ok=True)
    elif APP_NAME in (folder.name, folder.parent.name) and folder.stat().st_mode & 0o077:
        with contextlib.suppress(OSError):  # that of someone else
            folder.chmod(0o700)


def assets_dir() -> Path:
    """The folder of the shipped assets. FileNotFoundError if the program was installed without them."""
    candidates = list(_asset_candidates())
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"the program's assets are in none of {', '.join(map(str, candidates))}")


def _asset_candidates() -> Iterator[Path]:
    frozen = getattr(sys, "_MEIPASS", None)  # set by PyInstaller
    if frozen is not None:
        yield Path(frozen) / "assets"
    root = Path(__file__).resolve().parent.parent
    yield root / "assets"
    # pip puts a wheel's data below the prefix of its packages (PREFIX/lib/python3.X/site-packages), which may
    # be another than that of Python: the user's (--user), or /usr/local.
    for prefix in (*root.parents[2:3], Path(sys.prefix)):
        yield prefix / "share" / APP_NAME / "assets"


def bundles_dir() -> Path:
    """The folder of the shipped bundles."""
    return assets_dir() / "bundles"


def default_bundle() -> Path:
    """The bundle of the environment variable MOSS_VOICE_BUNDLE, else the shipped one."""
    chosen = os.environ.get(BUNDLE_VARIABLE)
    return find_bundle(user_path(chosen)) if chosen else bundles_dir() / _DEFAULT_BUNDLE


def user_bundles_dir() -> Path:
    """Folder of fetched bundles."""
    return Path(platformdirs.user_data_dir(APP_NAME, appauthor=False)) / "bundles"


def find_bundle(name: Path) -> Path:
    """The folder that a user means: a path, or the name of a bundle that was fetched or shipped.

    NOTE: os.path treats a name that is too long or contains NUL as absent; pathlib raises.
    """
    if os.path.exists(name) or len(name.parts) != 1:  # noqa: PTH110
        return name
    named = [folder / name for folder in (user_bundles_dir(), bundles_dir())]
    return next((folder for folder in named if os.path.isdir(folder)), name)  # noqa: PTH112


def voices_dir() -> Path:
    """Cache of voice prompts; may be emptied at any time."""
    return Path(platformdirs.user_cache_dir(APP_NAME, appauthor=False)) / "voices"


def engines_dir() -> Path:
    """Where TensorRT engines of the codec are kept; may be emptied at any time."""
    return Path(platformdirs.user_cache_dir(APP_NAME, appauthor=False)) / "engines"


def gpu_runtime_dir() -> Path:
    """Where the GPU runtime of the packaged program is (app/gpu_runtime/store.py)."""
    return Path(platformdirs.user_data_dir(APP_NAME, appauthor=False)) / "gpu-runtime"


def sample_questions() -> list[Path]:
    """The shipped spoken questions, by name."""
    return sorted((assets_dir() / "samples").glob("*.wav"))


def conversations_dir() -> Path:
    """Where conversations are kept if the user wants that."""
    return Path(platformdirs.user_data_dir(APP_NAME, appauthor=False)) / "conversations"


def settings_dir() -> Path:
    """Where the window keeps its settings."""
    return Path(platformdirs.user_config_dir(APP_NAME, appauthor=False))


def log_file() -> Path:
    """The log of this user."""
    return Path(platformdirs.user_log_dir(APP_NAME, appauthor=False)) / "moss-voice.log"
