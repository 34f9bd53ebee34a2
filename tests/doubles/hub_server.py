"""A local model hub: the part of the API of huggingface.co that a download needs.

    with HubServer({"owner/name": {"config.json": b"..."}}) as hub: ...  # HF_ENDPOINT = hub.url

Files above a kilobyte are large files, identified by their SHA-256. `damaged` files are served with a wrong
byte, `cut_off` ones break once after half their bytes, `longer` ones have additional bytes, `held` ones wait
for `release` after their headers. `listed` are additional entries of the file lists.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_LARGE = 1024


def repositories_in(folder: Path) -> dict[str, dict[str, bytes]]:
    """The files of the released repositories in `folder`, for `HubServer`."""
    return {
        f"fnlp/{repository.name}": {
            file.relative_to(repository).as_posix(): file.read_bytes()
            for file in repository.rglob("*")
            if file.is_file()
        }
        for repository in folder.iterdir()
    }


class HubServer:
    """Serves repositories until its context ends."""

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = {name: dict(files) for name, files in repositories.items()}
        self.damaged: set[str] = set()
        self.cut_off: set[str] = set()
        self.held: set[str] = set()
        self.release = threading.Event()
        self.longer: dict[str, int] = {}
        self.listed: list[object] = []
        self.authorizations: set[str] = set()
        """`Authorization` headers that came."""
        self.commit = COMMIT
        self.asked_for: set[str] = set()
        """Files whose content was asked for."""
        self.ranges: list[str] = []
        """`Range` headers that came: what was resumed."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self._answer(with_body=False)

            def do_GET(self) -> None:
                self._answer(with_body=True)

            def _answer(self, with_body: bool) -> None:
                path = unquote(urlparse(self.path).path)
                if given := self.headers.get("Authorization"):
                    hub.authorizations.add(given)
                for name, files in hub.repositories.items():
                    if f"{path}/".startswith(f"/api/models/{name}/"):
                        is_tree = "/tree/" in path
                        return self._json(hub._tree(files) if is_tree else hub._info(name, files), with_body)
                    if path.startswith(f"/{name}/resolve/{COMMIT}/"):
                        file = path.removeprefix(f"/{name}/resolve/{COMMIT}/")
                        hub.asked_for.add(file)
                        if file in files:
                            return self._file(file, files[file], with_body)
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return None

            def _json(self, content: object, with_body: bool) -> None:
                body = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

            def _file(self, file: str, content: bytes, with_body: bool) -> None:
                etag = hashlib.sha256(content).hexdigest() if len(content) > _LARGE else git_sha1(content)
                start = 0
                if with_body and (wanted := self.headers.get("Range")):
                    hub.ranges.append(wanted)
                    start = int(wanted.removeprefix("bytes=").partition("-")[0])
                sent = content[start:]
                if file in hub.damaged:
                    sent = bytes([sent[0] ^ 1]) + sent[1:]
                sent += bytes(hub.longer.get(file, 0))
                self.send_response(206 if start else 200)
                self.send_header("ETag", f'"{etag}"')
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Accept-Ranges", "bytes")
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                if with_body and file in hub.cut_off:
                    self.wfile.write(sent[: len(sent) // 2])
                    self.close_connection = True
                elif with_body and file in hub.held:
                    hub.release.wait(60)
                    with contextlib.suppress(OSError):  # nobody waits for it any more
                        self.wfile.write(sent)
                elif with_body:
                    self.wfile.write(sent)

        return Handler

    def _info(self, name: str, files: Mapping[str, bytes]) -> dict[str, object]:
        return {"id": name, "sha": self.commit, "siblings": [{"rfilename": file} for file in files]}

    def _tree(self, files: Mapping[str, bytes]) -> list[object]:
        entries = list(self.listed)
        for file, content in files.items():
            entry: dict[str, object] = {"type": "file", "path": file, "size": len(content)}
            entry["oid"] = git_sha1(content)
            if len(content) > _LARGE:
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
            entries.append(entry)
        return entries


def git_sha1(content: bytes) -> str:
    """The git blob hash of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
