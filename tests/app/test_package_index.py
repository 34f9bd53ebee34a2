from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from app import package_index
from app.package_index import PackageIndex, open_url, reason_of
from tests.doubles.package_server import PackageServer
from tests.factories.gpu_wheels import make_wheel


def test_links_lead_to_files_relative_to_the_page(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "cuda-tools", "1.0", {})
    with PackageServer(tmp_path) as server:
        index = PackageIndex(f"{server.url}/")
        assert index.files("cuda-tools") == {wheel.name: server.file_url(wheel.name)}
        assert index.files("unknown") == {}
        with open_url(server.file_url(wheel.name), 10) as answer:
            assert (answer.status, answer.read()) == (206, wheel.read_bytes()[10:])


def test_reasons_hold_no_password() -> None:
    assert reason_of(OSError("https://user:secret@mirror/simple failed.")) == "https://mirror/simple failed"
    assert reason_of(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(
    ("has_own", "given", "expected"), [(False, "", 1), (True, "", 0), (False, "mine.pem", 0)]
)
def test_certificates_of_another_distribution_are_found(
    has_own: bool, given: str, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """OpenSSL of a packaged program looks where the distribution it was packaged on has them."""
    loaded: list[str] = []

    class Context:
        def get_ca_certs(self) -> list[str]:
            return ["one"] if has_own else []

        def load_verify_locations(self, file: str) -> None:
            if file == "missing":
                raise FileNotFoundError(2, "No such file or directory")
            loaded.append(file)

    context: Any = Context()
    monkeypatch.setattr(ssl, "create_default_context", lambda: context)
    monkeypatch.setattr(package_index, "_CERTIFICATES", ("missing", "there", "also there"))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if given:
        monkeypatch.setenv("SSL_CERT_FILE", given)
    assert package_index._tls_context() is context
    assert loaded == ["there"][:expected]
