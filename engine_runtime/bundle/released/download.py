"""Downloading the released repositories with huggingface_hub.

In: a folder. Out: both repositories in it, every file with the size and hash that the hub states. Existing
files are kept, interrupted downloads are resumed. The library's own variables apply: HF_ENDPOINT,
HF_HUB_OFFLINE, HF_HOME, HF_TOKEN. Offline, the library's cache is searched and nothing is sent. Sequential,
in the thread of its caller.

The hub is not trusted: only names of the known layout are downloaded, only into their folder, and never more
bytes than stated, nor more of a list than one of these repositories can have. A token is sent over TLS alone:
to huggingface.co, or to the hub that HF_ENDPOINT names.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlparse

from engine_runtime import installation
from engine_runtime.bundle.bundle import hash_file
from engine_runtime.bundle.released import layout
from engine_runtime.bundle.weights import Progress
from engine_runtime.errors import FetchError, redact

_PATTERNS = {layout.LM_REPOSITORY: layout.LM_PATTERNS, layout.CODEC_REPOSITORY: layout.CODEC_FILES}
ByteProgress = Callable[[int, int], None]
"""Receives the bytes downloaded so far, and the total."""

_LONGEST_NAME = 200
_MOST_ENTRIES = 1_000
"""Most entries of a list of files: a page of the hub. The released repositories have about 20."""
_LARGEST_LIST = 4_000_000
"""Bytes."""
_LARGEST_FILE = 10**12
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of the hub. Large ones have a SHA-256, small ones the hash of a git blob."""

    name: str
    size: int
    sha256: str | None
    git_sha1: str

    def check(self, file: Path) -> None:
        """FetchError unless `file` matches; a file that does not is removed, to be downloaded again."""
        if not file.is_file():
            raise FetchError("{file} was not downloaded.", "Run the same fetch again.", file=file)
        size = file.stat().st_size
        if size == self.size and self._hash(file) == (self.sha256 or self.git_sha1):
            return
        file.unlink()
        raise FetchError(
            "{file} arrived damaged ({size} of {expected} bytes, or a wrong hash) and was removed.",
            "Run the same fetch again; the other files are kept.",
            file=file,
            size=size,
            expected=self.size,
        )

    def _hash(self, file: Path) -> str:
        if self.sha256 is not None:
            return hash_file(file)
        digest = hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class RemoteRepository:
    """The files to download from one repository, at one commit."""

    name: str
    commit: str
    files: tuple[RemoteFile, ...]

    def folder(self, to: Path) -> Path:
        """Its folder in `to`."""
        return to / layout.folder_of(self.name)


def download(
    to: Path,
    *,
    say: Callable[[str], None],
    progress: ByteProgress | None = None,
    commits: Mapping[str, str] | None = None,
) -> tuple[RemoteRepository, ...]:
    """Download language model and codec to folders of their names in `to`.

    `commits` maps repositories to commits; the newest ones are taken otherwise. `say` receives size,
    free disk space and licence before the download, `progress` the bytes that are there and those of all
    files. Raises FetchError without a connection or disk space, and if a folder is a link to a user's own
    checkpoint, which must not be changed.
    """
    for name, patterns in _PATTERNS.items():
        if (folder := to / layout.folder_of(name)).is_symlink():
            raise FetchError(
                "{folder} is a link to {target}, created by an earlier fetch --from.",
                "Remove the link to download, or choose another folder with --to.",
                folder=folder,
                target=folder.resolve(),
            )
        for parent in sorted({(folder / pattern).parent for pattern in patterns}):
            if parent.is_symlink():
                raise FetchError(
                    "{parent} is a link to {target}, where nothing is downloaded to.",
                    "Remove the link to download, or choose another folder with --to.",
                    parent=parent,
                    target=parent.resolve(),
                )
    hub = _hub()
    if hub.utils.get_token() and not _may_send_token(hub):
        say(f"The token of the model hub is not sent to {redact(hub.constants.ENDPOINT)}: it is not https.")
    wanted = commits or {}
    remote = tuple(_look_up(hub, name, files, wanted.get(name)) for name, files in _PATTERNS.items())
    _check_room(to, remote, say)
    total, before = sum(file.size for repository in remote for file in repository.files), 0
    for repository in remote:
        for file in repository.files:

            def arrived(size: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + size, total)

            with _plain_errors(hub, repository.name):
                _load(hub, repository, file, repository.folder(to) / file.name, arrived)
            before += file.size
            arrived(file.size)
    return remote


def check(to: Path, remote: Sequence[RemoteRepository], progress: Progress | None = None) -> dict[Path, str]:
    """Compare every file with the hub's metadata; returns the SHA-256 of the large files. FetchError for the
    first mismatch.
    """
    files = [(repository.folder(to) / file.name, file) for repository in remote for file in repository.files]
    total, done = sum(file.size for _, file in files), 0
    for path, file in files:
        file.check(path)
        done += file.size
        if progress is not None and total:
            progress(done / total)
    return {path: file.sha256 for path, file in files if file.sha256 is not None}


def find_offline(to: Path) -> tuple[Path, Path]:
    """The folders of language model and codec from an earlier fetch or another program."""
    hub = _hub()
    found = []
    for name, patterns in _PATTERNS.items():
        folder = to / layout.folder_of(name)
        if not folder.is_dir():
            try:
                cached = hub.snapshot_download(name, local_files_only=True, allow_patterns=list(patterns))
            except hub.errors.LocalEntryNotFoundError as error:
                raise FetchError(
                    "{name} is neither in {to} nor complete in the cache of huggingface_hub, and nothing "
                    "is downloaded offline.",
                    "Go online once, or specify a folder with --from.",
                    name=name,
                    to=to,
                ) from error
            folder = Path(cached)
        found.append(folder)
    return found[0], found[1]


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids network access."""
    return bool(_hub().constants.HF_HUB_OFFLINE)


def _look_up(hub: Any, name: str, patterns: Sequence[str], wanted: str | None) -> RemoteRepository:
    with _plain_errors(hub, name):
        info = _ask(hub, name, f"revision/{wanted or 'main'}")
        commit = info.get("sha") if isinstance(info, dict) else None
        _require_usable(name, _is_hash(commit, 40), "its commit has no hash")
        _require_usable(name, commit == (wanted or commit), "it gave another commit than was asked for")
        entries = _ask(hub, name, f"tree/{commit}?recursive=true&expand=false")
        _require_usable(name, isinstance(entries, list), "it lists no files")
        _require_usable(name, len(entries) < _MOST_ENTRIES, f"it lists {_MOST_ENTRIES} files or more")
        listed = [entry for entry in entries if isinstance(entry, dict) and entry.get("type") == "file"]
        files = tuple(_described(entry) for entry in listed if _is_wanted(entry.get("path"), patterns))
    _check_entries(name, files)
    names = {file.name for file in files}
    if missing := [p for p in patterns if "*" not in p and p not in names and p != layout.INDEX]:
        raise FetchError(
            "{name} on the hub lacks {missing}: its layout is not the one this program knows.",
            "Look for a newer version of the program.",
            name=name,
            missing=", ".join(missing),
        )
    return RemoteRepository(name, str(commit), files)


def _ask(hub: Any, name: str, what: str) -> Any:
    """A JSON document of the hub's API about a repository, of limited size.

    NOTE: HfApi reads answers of any length.
    """
    content = io.BytesIO()
    try:
        hub.file_download.http_get(
            f"{hub.constants.ENDPOINT}/api/models/{name}/{what}",
            _UpTo(content, _LARGEST_LIST, lambda size: None),
            headers=_headers(hub) | {"Accept-Encoding": "identity"},
            displayed_filename=f"list of {layout.folder_of(name)}",
        )
        return json.loads(content.getvalue())
    except _TooLong:
        _require_usable(name, False, f"it is longer than {size_in_words(_LARGEST_LIST)}")
    except RecursionError:
        _require_usable(name, False, "it is nested too deeply")


def _headers(hub: Any) -> dict[str, str]:
    """Headers of a request, with the user's token where it may be sent."""
    token = None if _may_send_token(hub) else False
    headers: dict[str, str] = hub.utils.build_hf_headers(token=token)
    return headers


def _may_send_token(hub: Any) -> bool:
    """The endpoint is huggingface.co, or what the user has put into HF_ENDPOINT."""
    return urlparse(str(hub.constants.ENDPOINT)).scheme == "https"


def _described(entry: dict[str, Any]) -> RemoteFile:
    """A file as the hub lists it; `_check_entries` checks what it states. Only large files have an `lfs`."""
    lfs: Any = entry.get("lfs")
    sha256 = lfs.get("oid", "") if isinstance(lfs, dict) else lfs
    size, blob = cast(int, entry.get("size")), cast(str, entry.get("oid"))
    return RemoteFile(entry["path"], size, sha256, blob)


def _is_wanted(name: object, patterns: Sequence[str]) -> bool:
    """Whether a name matches one of `patterns`, where * never matches a path separator."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        return False
    return any(re.fullmatch(re.escape(p).replace(r"\*", r"[A-Za-z0-9._-]*"), name) for p in patterns)


def _check_entries(repository: str, files: Sequence[RemoteFile]) -> None:
    """FetchError for entries that contradict each other or state impossible sizes and hashes."""
    names = {file.name.casefold() for file in files}  # on some disks both would be one file
    _require_usable(repository, len(names) == len(files), "it lists two files of the same name")
    for file in files:
        is_sound = (
            type(file.size) is int
            and 0 <= file.size <= _LARGEST_FILE
            and (file.sha256 is None or _is_hash(file.sha256, 64))
            and _is_hash(file.git_sha1, 40)
        )
        _require_usable(repository, is_sound, f"{file.name} has an impossible size or hash")


def _is_hash(value: object, digits: int) -> bool:
    return isinstance(value, str) and re.fullmatch(rf"[0-9a-f]{{{digits}}}", value) is not None


def _require_usable(repository: str, is_usable: bool, what: str) -> None:
    if not is_usable:
        raise FetchError(
            "The answer of the hub on {repository} is invalid: {what}.",
            "Nothing was loaded from it; check HF_ENDPOINT.",
            repository=repository,
            what=what,
        )


def _load(
    hub: Any, repository: RemoteRepository, file: RemoteFile, path: Path, arrived: Callable[[int], None]
) -> None:
    """Download one file, resuming an interrupted download; `arrived` receives its size so far.

    NOTE: since 2.0 snapshot_download discards incomplete files, up to five gigabytes of a shard; its own
    http_get resumes.
    """
    if _is_there(path, file.size):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = _begun(path)
    if begun.is_symlink() or (begun.is_file() and begun.stat().st_size > file.size):  # of another version
        begun.unlink()
    try:
        with begun.open("ab") as stream:
            hub.file_download.http_get(
                hub.hf_hub_url(repository.name, file.name, revision=repository.commit),
                _UpTo(stream, file.size, arrived),
                resume_size=stream.tell(),
                headers=_headers(hub),
                expected_size=file.size,
                displayed_filename=file.name,
            )
    except _TooLong as error:
        begun.unlink()
        raise FetchError(
            "{file} of {repository} is longer than the {size} bytes that the hub states, and was removed.",
            "Check HF_ENDPOINT and run the same fetch again; the other files are kept.",
            file=file.name,
            repository=repository.name,
            size=file.size,
        ) from error
    begun.replace(path)


class _TooLong(Exception):
    """More bytes arrived than stated."""


class _UpTo:
    """A file that accepts `size` bytes and raises on more; `arrived` receives its size after each write."""

    def __init__(self, stream: BinaryIO, size: int, arrived: Callable[[int], None]) -> None:
        self._stream, self._size, self._arrived = stream, size, arrived

    def write(self, content: bytes) -> int:
        if self._stream.tell() + len(content) > self._size:
            raise _TooLong
        written = self._stream.write(content)
        self._arrived(self._stream.tell())
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _begun(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _check_room(to: Path, remote: Sequence[RemoteRepository], say: Callable[[str], None]) -> None:
    everything = sum(file.size for repository in remote for file in repository.files)
    files = [
        (repository.folder(to) / file.name, file.size) for repository in remote for file in repository.files
    ]
    missing = sum(size - _size(_begun(path)) for path, size in files if not _is_there(path, size))
    existing = next(folder for folder in (to, *to.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free
    names = " and ".join(repository.name for repository in remote)
    say(
        f"{names}: {size_in_words(everything)}, of which {size_in_words(missing)} are still to be loaded "
        f"into {to}; {size_in_words(free)} are free there."
    )
    say(layout.LICENCE_NOTE)
    if missing > free:
        raise FetchError(
            "The disk of {to} has {free} free, but {missing} are needed.",
            "Free some space, or choose a folder on another disk with --to.",
            to=to,
            free=size_in_words(free),
            missing=size_in_words(missing),
        )


def _is_there(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def size_in_words(size: float) -> str:
    """A size in MB or GB, for messages."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _hub() -> Any:
    """huggingface_hub, with its lazily loaded modules."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.file_download
        import huggingface_hub.utils
    except ImportError as error:
        raise FetchError(
            "Nothing can be downloaded: huggingface_hub is missing.", "{remedy}", remedy=installation.remedy()
        ) from error
    return huggingface_hub


class _plain_errors:
    """Convert errors inside to a FetchError with one sentence for the user."""

    def __init__(self, hub: Any, name: str) -> None:
        self._hub, self._name = hub, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, FetchError):
            return
        errors, endpoint = self._hub.errors, redact(self._hub.constants.ENDPOINT)
        if isinstance(error, errors.RepositoryNotFoundError):  # also raised for a wrong token
            raise FetchError(
                "{name} is not at {endpoint}, or you have no access to it.",
                "Check HF_ENDPOINT and HF_TOKEN.",
                name=self._name,
                endpoint=endpoint,
            ) from error
        if isinstance(error, OSError) and error.errno is not None and not _is_of_network(error):
            raise FetchError(
                "{name} cannot be written: {reason}.",
                "Free some space, or choose --to.",
                name=self._name,
                reason=error.strerror,
            ) from error
        raise FetchError(
            "{name} cannot be loaded from {endpoint}: {kind}: {reason}.",
            "Check the connection and run the same fetch again; existing files are kept.",
            name=self._name,
            endpoint=endpoint,
            kind=type(error).__name__,
            reason=redact(str(error).splitlines()[0]) if str(error) else "no reason given",
        ) from error


def _is_of_network(error: OSError) -> bool:
    return isinstance(error, ConnectionError | TimeoutError)
