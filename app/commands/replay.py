"""moss-voice replay: play the microphone of a recorded conversation to this build and report differences.

Turns, decisions, texts and speech codes are compared. The exit status is 0 if all are the same, else 1.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from app import paths
from app.commands.shared_options import add_engine_options, start_settings


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "replay",
        help="replay a recorded conversation and compare",
        description=(__doc__ or "").partition("\n\n")[0],
    )
    parser.add_argument("folder", type=paths.user_path, metavar="FOLDER", help="a recorded conversation")
    add_engine_options(parser)
    parser.add_argument("--json", action="store_true", help="end the output with one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay and print the differences."""
    from app.main import engine_factory, load_turn_end_detector
    from app.session.replay import replay

    settings = start_settings(arguments)
    result = replay(arguments.folder, engine_factory(settings), end_of_turn=load_turn_end_detector)
    for difference in result["differences"]:
        print(_line(difference))
    print(f"turns: {result['turns']}, {'all the same' if result['is_same'] else 'not the same'}")
    if arguments.json:
        print(json.dumps(result))
    return 0 if result["is_same"] else 1


def _line(difference: dict[str, Any]) -> str:
    what, then, now = difference["what"], difference["recorded"], difference["replayed"]
    if what == "reply":  # tokens: pairs of ids: too long for a line
        then, now = (f"{len(tokens or [])} tokens" for tokens in (then, now))
        return f"{difference['turn']}. the reply has other codes ({then} recorded, {now} now)"
    return f"{difference['turn']}. {what}: {then!r} recorded, {now!r} now"
