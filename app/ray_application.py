"""What a config file of Ray Serve imports: the server of `moss-voice serve --ray`, deployed with Ray's tools.

In: `args` of the file, whose `options` are those of `moss-voice serve`. Out: an application of Ray Serve.
Called by Ray in a process of the cluster. Address, port, certificate and replicas are in the file itself.
"""

from __future__ import annotations

import shlex
from typing import Any

from app.cli import build_parser
from app.commands.serve import engine_settings, log_to_stderr, serve_settings
from engine_runtime.errors import MossVoiceError


def build(args: dict[str, str]) -> Any:
    """The application. MossVoiceError without a key, because Ray does not say on which address it listens,
    and in a cluster that demands no token."""
    arguments = build_parser().parse_args(["serve", *shlex.split(args.get("options", ""))])
    settings, start = serve_settings(arguments), engine_settings(arguments)
    if not settings.access.keys:
        raise MossVoiceError(
            "A server started from a config file needs API keys.",
            "Set MOSS_VOICE_API_KEYS where Ray is started, or --api-key-file among its options.",
        )
    from app.main import engine_factory, load_turn_end_detector
    from app.server.access import check_cluster
    from app.server.ray_replica import Replicas, application

    check_cluster()

    return application(
        settings,
        Replicas(on_gpu=start.engine.device.startswith("cuda")),
        engine_factory(start),
        load_turn_end_detector,
        log_to_stderr,
    )
