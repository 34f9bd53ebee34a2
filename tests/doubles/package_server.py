"""A local package index: pages of links (PEP 503) and files that can be resumed.

    with PackageServer(folder) as server: ...  # server.url is the index, server.file_url(name) a file

Every wheel of `folder` is offered. `cut_off` ones break once after half of what was asked for,
`always_cut_off` ones each time after their first half, `damaged` ones have a wrong byte. `resumes` False
makes it send everything.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlparse

from packaging.utils import canonicalize_name


class PackageServer:
    """Serves until its context ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cut_off: set[str] = set()
        self.always_cut_off: set[str] = set()
        self.damaged: set[str] = set()
        self.resumes = True
        self.asked_for: list[str] = []
        """Files that were asked for, in order."""
        self.ranges: list[str] = []
        """`Range` headers that came."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._root = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{self._root}/simple"

    def file_url(self, name: str) -> str:
        """The address of a file."""
        return f"{self._root}/files/{name}"

    def __enter__(self) -> PackageServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                folder, _, name = unquote(urlparse(self.path).path).strip("/").partition("/")
                if folder == "simple":
                    self._page(name)
                else:
                    self._file(name)

            def _page(self, package: str) -> None:
                names = [
                    file.name
                    for file in sorted(index.folder.iterdir())
                    if canonicalize_name(file.name.partition("-")[0]) == package
                ]
                links = "".join(f'<a href="../../files/{name}#sha256=0">{name}</a>' for name in names)
                self._answer(200 if names else 404, f"<html><body>{links}</body></html>".encode())

            def _file(self, name: str) -> None:
                index.asked_for.append(name)
                if not (index.folder / name).is_file():
                    return self._answer(404, b"")
                content = (index.folder / name).read_bytes()
                if name in index.damaged:
                    content = content[:-1] + bytes([content[-1] ^ 1])
                start, is_part = 0, False
                if wanted := self.headers.get("Range"):
                    index.ranges.append(wanted)
                    first, _, last = wanted.removeprefix("bytes=").partition("-")
                    if index.resumes:
                        start, content = int(first), content[: int(last) + 1 if last else None]
                        is_part = True
                sent = content[start:]
                cut = len(sent)
                if name in index.always_cut_off:
                    cut = max(0, len(content) // 2 - start)
                elif name in index.cut_off:
                    index.cut_off.discard(name)
                    cut = len(sent) // 2
                return self._answer(206 if is_part else 200, sent, cut)

            def _answer(self, status: int, body: bytes, cut: int | None = None) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[:cut])

        return Handler
