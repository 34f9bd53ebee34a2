"""Certificates of servers in tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def self_signed(folder: Path, host: str = "127.0.0.1") -> tuple[Path, Path]:
    """A certificate for this address, which nobody else has signed, and its key; PEM files in `folder`. Skips
    the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=test",
         "-addext", f"subjectAltName=IP:{host}", "-out", str(certificate), "-keyout", str(key)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return certificate, key
