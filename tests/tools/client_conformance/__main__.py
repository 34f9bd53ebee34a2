"""Clients that this project did not write hold one script with the server: a table of clients and features.

python -m tests.tools.client_conformance [--cache build/clients] [--clients NAME ...] [--features NAME ...]
                                         [--serve "OPTIONS"] [--json FILE] [--markdown FILE]

Each client gets an environment of its own below --cache (pip and npm install it there once), a server of its
own, which runs nano, and for each feature a connection of its own. `ok` is checked at both ends: the right
answer in words and sound at the client, one response.done for each response, no error. A client that speaks
wss only gets a certificate that is made for it (openssl). What the drivers write on stderr, and all events of
what has failed, are kept in their environments. Exit status 1 if anything has failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import shlex
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app import paths
from engine_runtime.table import Cell, Section
from tests.tools.client_conformance.clients import CACHE, CLIENTS, Client, InstallError
from tests.tools.client_conformance.script import FEATURES, OF_TOOL_SERVER, Feature
from tests.tools.client_conformance.talk import Absent, Failed, Refused, Talk, talking
from tests.tools.client_conformance.tap import Tap
from tests.tools.server_churn import say, served
from tests.tools.tool_report import parse, tool_report

Found = tuple[str, str]
"""What has come of a feature, and why."""
ROOT = Path(__file__).resolve().parents[3]
OK, REFUSED, ABSENT, FAILED = "ok", "refused", "-", "FAILED"
_MEANINGS = {
    OK: "as it should be, at both ends",
    REFUSED: "the server says by name that it does not do this",
    ABSENT: "the client's API has no such thing",
}


async def verdict(feature: Feature, talk: Talk) -> Found:
    """The cell of a feature, and its reason."""
    try:
        await feature(talk)
        await talk.settled()
    except Absent as absent:
        return ABSENT, str(absent)
    except Refused as refused:
        return REFUSED, str(refused)
    except (Failed, TimeoutError) as failed:
        return FAILED, str(failed) or type(failed).__name__
    return OK, ""


@dataclass(frozen=True)
class Ends:
    """What a client talks to, and how its driver is started."""

    command: Sequence[str]
    log: Path
    """Of what the driver writes on stderr."""
    server: str
    """Scheme and address."""
    key: str
    certificate: tuple[Path, Path] | None = None
    """Of this machine, and its key: the client gets TLS, and the server has it where its scheme says so."""


async def converse(ends: Ends, features: Mapping[str, Feature]) -> dict[str, Found]:
    """The cells of a client: each feature with a connection and a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOGURU_LEVEL": "WARNING"}
    trusted = listening = None
    if ends.certificate is not None:
        listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        listening.load_cert_chain(*ends.certificate)
        environment["NODE_EXTRA_CA_CERTS"] = str(ends.certificate[0])
        if ends.server.startswith("wss:"):
            trusted = ssl.create_default_context(cafile=str(ends.certificate[0]))
    cells = {}
    for name, feature in features.items():
        async with (
            Tap(ends.server, trusted).open(listening) as tap,
            talking(tap, ends.command, ROOT, environment, ends.key, ends.log) as talk,
        ):
            cells[name] = await verdict(feature, talk)
        say(f"{name}: {' '.join(cells[name])}".strip())
        if cells[name][0] == FAILED:
            lines = [json.dumps([one.from_server, one.document]) for one in tap.passed]
            ends.log.with_name(f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return cells


def made_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of this machine for a day, and its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return certificate, key


def cells_of(client: Client, cache: Path, features: Sequence[str], options: str) -> dict[str, Found]:
    """Install a client, start the servers that its features need, and have the script held."""
    client.install(cache)
    folder = client.folder(cache)
    key = secrets.token_hex(16)
    os.environ["MOSS_VOICE_API_KEYS"] = key
    certificate = made_certificate(folder) if client.needs_tls else None
    of_nano = {name: FEATURES[name] for name in features if name not in OF_TOOL_SERVER}
    of_tools = {name: FEATURES[name] for name in features if name in OF_TOOL_SERVER}
    cells: dict[str, Found] = {}
    say(client.name)

    def hold(scheme: str, address: str, chosen: Mapping[str, Feature]) -> None:
        command, log = client.command(cache), folder / "stderr.txt"
        ends = Ends(command, log, f"{scheme}://{address}", key, certificate)
        cells.update(asyncio.run(converse(ends, chosen)))

    if of_nano:
        words = shlex.split(options)
        if certificate is not None:
            words += ["--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1])]
        with served(2, *words) as (address, _):
            hold("ws" if certificate is None else "wss", address, of_nano)
    if of_tools:
        with served(2, program=("tests.tools.tool_server",)) as (address, _):
            hold("ws", address, of_tools)
    return {name: cells[name] for name in features}


def table(cells: Mapping[str, Mapping[str, Found]], features: Sequence[str]) -> Section:
    """A row a feature, a column a client."""
    columns = {"feature": "that a client asked for"} | dict.fromkeys(cells, "")
    rows: list[dict[str, Cell]] = []
    for name in features:
        rows.append({"feature": name, **{client: found[name][0] for client, found in cells.items()}})
    reasons = [
        f"{client}, {name}: {reason.removesuffix('.')}."
        for client, found in cells.items()
        for name, (result, reason) in found.items()
        if result not in (OK, ABSENT)
    ]
    return Section("clients", columns, rows, " ".join(reasons), _MEANINGS)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    names = [client.name for client in CLIENTS]
    parser.add_argument("--cache", type=paths.user_path, default=CACHE)
    parser.add_argument("--clients", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--features", nargs="+", choices=FEATURES, default=list(FEATURES), metavar="NAME")
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="more options of moss-voice serve")
    arguments = parse(parser)
    arguments.cache.mkdir(parents=True, exist_ok=True)
    cells: dict[str, Mapping[str, Found]] = {}
    with tool_report("client_conformance", arguments) as report:
        for client in CLIENTS:
            if client.name in arguments.clients:
                try:
                    cells[client.name] = cells_of(
                        client, arguments.cache, arguments.features, arguments.serve
                    )
                except InstallError as error:
                    cells[client.name] = dict.fromkeys(arguments.features, (FAILED, str(error)))
        report.facts({client.name: client.packages[0] for client in CLIENTS if client.name in cells})
        report.add(table(cells, arguments.features))
    return int(any(cell[0] == FAILED for found in cells.values() for cell in found.values()))


if __name__ == "__main__":
    sys.exit(main())
