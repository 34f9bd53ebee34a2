"""moss-voice serve: conversations for other programs and machines, over the OpenAI Realtime protocol.

Listens on this machine only unless told otherwise; another address needs an API key. See packaging/SERVE.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from app import paths
from app.commands.shared_options import (
    add_engine_options,
    add_sharing_options,
    add_transcribe_option,
    integer,
    number,
    shared_engine,
    span,
    start_settings,
)
from app.other_python import SERVER_PACKAGES
from app.progress import note
from app.settings import StartSettings
from engine_runtime import installation
from engine_runtime.errors import MossVoiceError

if TYPE_CHECKING:  # its packages may be missing
    from app.server.service import ServeSettings

_PORTS = 65_535
_MOST_REPLICAS = 1_000


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "serve",
        help="serve conversations over the OpenAI Realtime protocol",
        description=__doc__.partition("\n\n")[0],
    )
    add_engine_options(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=integer(0, _PORTS), default=8_000, help="port, 0 for any free one (default: 8000)"
    )
    parser.add_argument(
        "--conversations",
        type=integer(1, 10_000),
        metavar="N",
        help="conversations at once (default: as many as can speak at once at the speed measured at the "
        "start, and fit into memory)",
    )
    add_sharing_options(parser)
    add_transcribe_option(parser)
    parser.add_argument(
        "--api-key-file",
        type=paths.user_path,
        metavar="FILE",
        help="API keys, one per line (default: $MOSS_VOICE_API_KEYS, separated by commas)",
    )
    parser.add_argument("--tls-cert", type=paths.user_path, metavar="FILE", help="certificate chain, PEM")
    parser.add_argument("--tls-key", type=paths.user_path, metavar="FILE", help="its private key, PEM")
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web pages that may connect, such as https://example.org; may be repeated (default: none)",
    )
    parser.add_argument(
        "--session-minutes",
        type=number(0.1, 1_440),
        default=60.0,
        metavar="MIN",
        help="longest session (default: 60)",
    )
    parser.add_argument(
        "--drain-seconds",
        type=number(0, 3_600),
        default=30.0,
        metavar="S",
        help="time for responses in progress when the server is asked to end (default: 30)",
    )
    parser.add_argument(
        "--exit-with-stdin",
        action="store_true",
        help="end when the standard input is closed: for a program that starts the server as a child process",
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="serve with Ray Serve: a replica for each GPU of this machine or of the cluster of $RAY_ADDRESS",
    )
    parser.add_argument(
        "--replicas",
        type=span(1, _MOST_REPLICAS),
        metavar="N|MIN-MAX",
        help="with --ray: how many, or from MIN to MAX as conversations come and go, which needs "
        "--conversations (default: one for each GPU, or one on the CPU)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal; returns the exit status."""
    _check_packages(SERVER_PACKAGES, "serve")
    if arguments.ray:
        return _run_with_ray(arguments)
    if arguments.replicas is not None:
        raise MossVoiceError("--replicas is an option of Ray Serve.", "Add --ray.")
    from app.main import engine_factory, load_turn_end_detector
    from app.server.run import serve

    log_to_stderr()
    return serve(
        serve_settings(arguments),
        engine_factory(engine_settings(arguments)),
        load_turn_end_detector,
        lambda address: note(f"listening on {address}"),
    )


def _run_with_ray(arguments: argparse.Namespace) -> int:
    _check_packages(("ray",), "ray")
    least, most = arguments.replicas or (1, 1)
    if least < most and arguments.conversations is None:
        raise MossVoiceError(
            "Scaling between {least} and {most} replicas needs the number of conversations per replica.",
            "Add --conversations.",
            least=least,
            most=most,
        )
    if arguments.exit_with_stdin:
        raise MossVoiceError("--exit-with-stdin is for a server in one process.", "Give it without --ray.")
    start = engine_settings(arguments)
    if ":" in start.engine.device:
        raise MossVoiceError("Ray gives each replica a GPU of its own.", "Use --device cuda.")
    # Read when Ray is imported: it would take log lines of several replicas that differ in numbers for one.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    from app.main import engine_factory, load_turn_end_detector
    from app.server.ray_replica import Replicas
    from app.server.ray_run import serve_with_ray

    on_gpu = start.engine.device == "cuda"
    return serve_with_ray(
        serve_settings(arguments),
        Replicas(least, most, on_gpu) if arguments.replicas else None,
        engine_factory(start),
        load_turn_end_detector,
        log_to_stderr,
        lambda address: note(f"listening on {address}"),
        on_gpu=on_gpu,
    )


def _check_packages(names: Sequence[str], extra: str) -> None:
    if missing := [name for name in names if find_spec(name) is None]:
        raise MossVoiceError(
            "The server needs packages that are not installed: {missing}.",
            "{remedy}",
            missing=", ".join(missing),
            remedy=installation.add(extra),
        )


def engine_settings(arguments: argparse.Namespace) -> StartSettings:
    """The settings of an engine that several conversations share."""
    start = start_settings(arguments)
    return replace(start, engine=shared_engine(arguments, start.engine, arguments.conversations))


def serve_settings(arguments: argparse.Namespace) -> ServeSettings:
    """The settings of the server, with a line on stderr for what is allowed but unsafe. MossVoiceError for
    keys that cannot be read."""
    from app.server.access import Access, read_keys, warnings
    from app.server.connection import ConnectionLimits
    from app.server.service import ServeSettings

    keys = read_keys(arguments.api_key_file)
    secrets = (arguments.api_key_file, arguments.tls_key)
    for text in warnings(arguments.host, arguments.tls_cert, secrets):
        note(text)
    return ServeSettings(
        host=arguments.host,
        port=arguments.port,
        conversations=arguments.conversations,
        batch_invariant=arguments.batch_invariant,
        seed=arguments.seed,
        access=Access(keys, tuple(arguments.allow_origin)),
        tls_certificate=arguments.tls_cert,
        tls_key=arguments.tls_key,
        limits=ConnectionLimits(session_s=arguments.session_minutes * 60),
        drain_s=arguments.drain_seconds,
        transcribe=arguments.transcribe,
        exits_with_stdin=arguments.exit_with_stdin,
    )


class _JsonLines(logging.Formatter):
    """One JSON document per record: time, event and its fields. Never what was said."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        known: dict[str, Any] = {"time": f"{at}Z", "level": record.levelname.lower()}
        known["event"] = record.getMessage()
        return json.dumps(known | getattr(record, "fields", {}))


def log_to_stderr() -> None:
    """The log of the server, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logger = logging.getLogger("app.server")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
