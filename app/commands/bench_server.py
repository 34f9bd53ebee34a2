"""moss-voice bench --server: simulated users talk to a Realtime server at the pace of real time.

Times are printed only if every reply is one: complete, with audible speech, and for nano with the expected
words.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from app import paths
from app.commands.option_types import LARGEST_COUNT, integer
from app.server_address import read_key
from engine_runtime.errors import MossVoiceError

if TYPE_CHECKING:
    from app.remote.dialect import ServerSession
    from app.remote.load_user import LoadQuestion, LoadReply

_EXPECTED = {
    "03-three-plus-four.wav": "seven",
    "05-after-monday.wav": "tuesday",
    "06-capital-of-france.wav": "paris",
    "07-opposite-of-hot.wav": "cold",
    "08-colour-of-grass.wav": "green",
}
"""What nano answers to the sample questions, each of which can be asked at any time."""
_MINUTES = 0.5
_NANO = "nano"
_APART_S = 0.37
"""Between the first questions of two users."""


def add_server_bench_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options beside --server."""
    parser.add_argument(
        "--users",
        type=integer(1, LARGEST_COUNT),
        default=1,
        metavar="N",
        help="with --server: users who talk at once, for --minutes (default: %(default)s)",
    )


def run_server(arguments: argparse.Namespace) -> int:
    """Talk, check every reply, print. MossVoiceError names the first reply that is none."""
    from app.main import server_address

    address = server_address(arguments.server, read_key(arguments.server_key_file))
    from app.remote.load_user import LoadUser

    users = [
        LoadUser(address, partial(questions_at, place), start_s=place * _APART_S)
        for place in range(arguments.users)
    ]

    async def converse() -> None:
        until_s = asyncio.get_running_loop().time() + (arguments.minutes or _MINUTES) * 60
        await asyncio.gather(*(user.converse(until_s) for user in users))

    asyncio.run(converse())
    document = report([user.replies for user in users])
    for line in lines_of(document):
        print(line)
    if arguments.json:
        print(json.dumps(document))
    return 0


def questions_at(place: int, session: ServerSession) -> list[LoadQuestion]:
    """The questions of the user at this place: all of them, in another order for each."""
    from app.audio.resample import Resampler
    from app.audio.wav import read_wav
    from app.remote.load_user import LoadQuestion

    found = []
    for file in paths.sample_questions():
        if file.name in _EXPECTED:
            pcm, own = read_wav(file)
            resampler = Resampler(own, session.input_format.sample_rate)
            spoken = np.concatenate([resampler.push(pcm), resampler.finish()])
            expected = _EXPECTED[file.name] if session.model == _NANO else ""
            found.append(LoadQuestion(file.name, spoken, expected))
    if not found:
        raise MossVoiceError(f"There are no sample questions in {paths.assets_dir() / 'samples'}.")
    first = place % len(found)
    return found[first:] + found[:first]


def report(users: list[list[LoadReply]]) -> dict[str, Any]:
    """The measured quantities. MossVoiceError if a reply is none."""
    from engine_runtime.bench import summarize

    replies = [reply for user in users for reply in user]
    for number_, user in enumerate(users, 1):
        for reply in user:
            if reply.problem:
                asked = reply.question or "its connection"
                problem = reply.problem.rstrip(".")
                raise MossVoiceError(
                    f"User {number_} got no reply to {asked}: {problem}. No times are printed."
                )
    if not replies:
        raise MossVoiceError("Nobody asked anything in this time. Choose more --minutes.")
    network = [reply.network_ms for reply in replies if reply.network_ms is not None]
    return {
        "users": len(users),
        "replies": len(replies),
        "audio_s": round(sum(reply.audio_s for reply in replies), 3),
        "ttfa_ms": asdict(summarize([reply.ttfa_ms for reply in replies])),
        "network_ms": asdict(summarize(network)) if network else None,
        "gaps": sum(reply.gaps for reply in replies),
        "replies_with_gaps": sum(reply.gaps > 0 for reply in replies),
        "lateness_ms": asdict(summarize([reply.lateness_ms for reply in replies])),
    }


def lines_of(document: dict[str, Any]) -> list[str]:
    """The report for a reader."""

    def percentiles(name: str) -> str:
        known = document[name]
        return "not reported" if known is None else f"p50 {known['p50']:.1f} ms, p95 {known['p95']:.1f} ms"

    share = ""
    if document["network_ms"] is not None and not math.isclose(document["ttfa_ms"]["p50"], 0.0):
        share = f" ({document['network_ms']['p50'] / document['ttfa_ms']['p50']:.1%} of TTFA at p50)"
    return [
        f"{document['users']} users, {document['replies']} replies, {document['audio_s']:.1f} s of speech",
        f"TTFA       {percentiles('ttfa_ms')}",
        f"network    {percentiles('network_ms')}{share}",
        f"lateness   {percentiles('lateness_ms')}",
        f"gaps       {document['gaps']}, in {document['replies_with_gaps']} replies (without buffering)",
    ]
