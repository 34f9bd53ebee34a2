"""moss-voice serve: conversations for other programs and machines, over the OpenAI Realtime protocol.

Listens on this machine only unless told otherwise; another address needs an API key. See packaging/SERVE.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from app import paths
from app.commands.engine_options import MOST_BATCHED, add_engine_options, add_sharing_options, start_settings
from app.commands.option_types import integer, number
from app.installation import is_frozen, remedy
from app.progress import note
from engine_runtime.errors import MossVoiceError

_NEEDED = ("fastapi", "uvicorn", "websockets", "prometheus_client")
_PORTS = 65_535


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
        "start, and fit into the KV cache)",
    )
    add_sharing_options(parser)
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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal; returns the exit status."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise MossVoiceError(
            f"The server needs packages that are not installed: {', '.join(missing)}. {_remedy()}"
        )
    from app.main import engine_factory, load_turn_end_detector
    from app.server.access import Access, read_keys
    from app.server.connection import ConnectionLimits
    from app.server.run import ServeSettings, serve

    start = start_settings(arguments)
    batch = min(arguments.conversations or MOST_BATCHED, MOST_BATCHED)
    start = replace(start, engine=replace(start.engine, max_batch_size=batch, captures_batches=True))
    if arguments.kv_blocks is not None:
        start = replace(start, engine=replace(start.engine, kv_blocks=arguments.kv_blocks))
    settings = ServeSettings(
        host=arguments.host,
        port=arguments.port,
        conversations=arguments.conversations,
        batch_invariant=arguments.batch_invariant,
        seed=start.seed,
        access=Access(read_keys(arguments.api_key_file), tuple(arguments.allow_origin)),
        tls_certificate=arguments.tls_cert,
        tls_key=arguments.tls_key,
        limits=ConnectionLimits(session_s=arguments.session_minutes * 60),
        drain_s=arguments.drain_seconds,
        exits_with_stdin=arguments.exit_with_stdin,
    )
    _log_to_stderr()
    return serve(
        settings,
        engine_factory(start),
        load_turn_end_detector,
        lambda address: note(f"listening on {address}"),
    )


def _remedy() -> str:
    """The packaged program has them, and cannot be added to."""
    return remedy() if is_frozen() else "Install them with: pip install 'moss-voice[serve]'"


class _JsonLines(logging.Formatter):
    """One JSON document per record: time, event and its fields. Never what was said."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        known: dict[str, Any] = {"time": f"{at}Z", "level": record.levelname.lower()}
        known["event"] = record.getMessage()
        return json.dumps(known | getattr(record, "fields", {}))


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.getLogger("app.server").addHandler(handler)
