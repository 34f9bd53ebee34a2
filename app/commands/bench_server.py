"""moss-voice bench --server: simulated users talk to a Realtime server at the pace of real time.

Times are printed only if every reply is valid: complete, with audible speech, and for nano with the expected
words. Where the server counts the speech codes of a reply, its audio has to be as long as these. A model with
random weights never ends a reply: --reply-tokens limits all replies.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from dataclasses import asdict, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from app import paths
from app.commands.live_report import live_report
from app.commands.shared_options import LARGEST_COUNT, integer, span
from app.server_address import read_key
from engine_runtime.errors import MossVoiceError
from engine_runtime.table import Section

if TYPE_CHECKING:
    from app.remote.dialect import ServerSession
    from app.remote.load_user import LoadQuestion, LoadReply
    from engine_runtime.types import Pcm

_EXPECTED = {
    "03-three-plus-four.wav": "seven",
    "05-after-monday.wav": "tuesday",
    "06-capital-of-france.wav": "paris",
    "07-opposite-of-hot.wav": "cold",
    "08-colour-of-grass.wav": "green",
}
"""nano's answers to the sample questions that can be asked at any time."""
_MINUTES = 0.5
_NANO = "nano"
_APART_S = 0.37
"""Between the first questions of two users, at most."""
_SPREAD_S = 15.0
"""Between the first questions of all users, at most."""
_MOST_QUESTION_S = 30
_MOST_TOKENS = 4_096
_CLIENT_FACTS = ("system", "processor", "cores", "python")
_COLUMNS = {
    "users": "who talk at once, at the pace of real time",
    "replies": "replies of all users",
    "audio_s": "audio of these",
    "ttfa_ms": "end of the question to the first audio at the client, median",
    "ttfa_ms_p95": "95th percentile",
    "network_ms": "the part of it outside of the server; - if the server does not report its own, median",
    "network_ms_p95": "95th percentile",
    "network_share": "network_ms / ttfa_ms in percent",
    "late_ms": "longest gap of a reply that is played at once, without buffering, median",
    "late_ms_p95": "95th percentile",
    "gap_ms": "the longest of all",
    "gaps": "how often a client had played everything that had come",
    "replies_with_gaps": "replies in which that happened",
}
_DRAWN_TURNS = 16
"""Lengths that are drawn for a user, who then begins again."""
_TOLERANCE = 0.1
"""Deviation from the audio of the codes, by its share: the codec may hold part of a packet back."""


def add_server_bench_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options beside --server."""
    parser.add_argument(
        "--users",
        type=integer(1, LARGEST_COUNT),
        default=1,
        metavar="N",
        help="with --server: users who talk at once, for --minutes (default: %(default)s)",
    )
    parser.add_argument(
        "--question-seconds",
        type=span(1, _MOST_QUESTION_S),
        metavar="S|MIN-MAX",
        help="with --server: length of each question, drawn for each; the samples are repeated or cut, so no "
        "words are expected (default: as recorded)",
    )
    parser.add_argument(
        "--reply-tokens",
        type=span(1, _MOST_TOKENS),
        metavar="N|MIN-MAX",
        help="with --server: most tokens of each reply, drawn for each, for a model with random weights, "
        "which ends none (default: no limit)",
    )


def run_server(arguments: argparse.Namespace) -> int:
    """Talk, check every reply, print. MossVoiceError names the first invalid reply."""
    from app.main import server_address
    from engine_runtime import hardware

    address = server_address(arguments.server, read_key(arguments.server_key_file))
    from app.remote.load_user import LoadUser

    apart_s = min(_APART_S, _SPREAD_S / arguments.users)
    lengths = arguments.question_seconds, arguments.reply_tokens
    users = [
        LoadUser(address, partial(turns_at, place, *lengths), start_s=place * apart_s)
        for place in range(arguments.users)
    ]

    async def converse() -> None:
        until_s = asyncio.get_running_loop().time() + (arguments.minutes or _MINUTES) * 60
        await asyncio.gather(*(user.converse(until_s) for user in users))

    with live_report("moss-voice bench --server", arguments) as report:
        asyncio.run(converse())
        report.document |= measured([user.replies for user in users])
        client = hardware.environment()
        report.facts({name: client[name] for name in _CLIENT_FACTS})
        report.add(users_section(report.document))
    return 0


def questions_at(place: int, session: ServerSession) -> list[LoadQuestion]:
    """The questions of the user at this place: all of them, in another order for each."""
    from app.remote.load_user import LoadQuestion

    found = [
        LoadQuestion(name, spoken, _EXPECTED[name] if session.model == _NANO else "")
        for name, spoken in _recordings(session.input_format.sample_rate)
    ]
    first = place % len(found)
    return found[first:] + found[:first]


def turns_at(
    place: int,
    question_s: tuple[int, int] | None,
    reply_tokens: tuple[int, int] | None,
    session: ServerSession,
) -> list[LoadQuestion]:
    """The same with lengths that are drawn for the user at this place, from the first to the second value."""
    asked = questions_at(place, session)
    if question_s is None and reply_tokens is None:
        return asked
    drawn = np.random.default_rng(place)
    turns = []
    for number in range(_DRAWN_TURNS):
        # Here neither the question nor the reply is complete.
        turn = replace(asked[number % len(asked)], expected="")
        if question_s is not None:
            samples = round(drawn.uniform(*question_s) * session.input_format.sample_rate)
            turn.pcm = _repeated(turn.name, session.input_format.sample_rate)[:samples]
        if reply_tokens is not None:
            turn.most_tokens = int(drawn.integers(*reply_tokens, endpoint=True))
        turns.append(turn)
    return turns


@lru_cache
def _recordings(rate: int) -> list[tuple[str, Pcm]]:
    """The samples that can be asked at any time, with their names."""
    from app.audio.resample import Resampler
    from app.audio.wav import read_wav

    found = []
    for file in paths.sample_questions():
        if file.name in _EXPECTED:
            pcm, own = read_wav(file)
            resampler = Resampler(own, rate)
            found.append((file.name, np.concatenate([resampler.push(pcm), resampler.finish()])))
    if not found:
        raise MossVoiceError(
            "There are no sample questions in {folder}.", folder=paths.assets_dir() / "samples"
        )
    return found


@lru_cache
def _repeated(name: str, rate: int) -> Pcm:
    """The sample as long as any question may be, by repetition. All users share it."""
    return np.resize(dict(_recordings(rate))[name], _MOST_QUESTION_S * rate)


def measured(users: list[list[LoadReply]]) -> dict[str, Any]:
    """The measured quantities. MossVoiceError if a reply is invalid."""
    from engine_runtime.bench.measuring import summarize

    replies = [reply for user in users for reply in user]
    per_code = [reply.audio_s / reply.codes for reply in replies if reply.codes]
    code_s = float(np.median(per_code)) if per_code else 0.0
    for number_, user in enumerate(users, 1):
        for reply in user:
            if problem := reply.problem or _length_problem(reply, code_s):
                asked = reply.question or "its connection"
                raise MossVoiceError(
                    "User {number} got no reply to {asked}: {problem}.",
                    "No times are printed.",
                    number=number_,
                    asked=asked,
                    problem=problem.rstrip("."),
                )
    if not replies:
        raise MossVoiceError("No user spoke during the run.", "Increase --minutes.")
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


def _length_problem(reply: LoadReply, code_s: float) -> str:
    """Whether the audio of a reply is as long as its speech codes; "" if it is."""
    if reply.codes is None or abs(reply.audio_s - reply.codes * code_s) <= _TOLERANCE * reply.audio_s:
        return ""
    return f"{reply.audio_s:.2f} s of audio for {reply.codes} codes of {code_s:.3f} s"


def users_section(document: dict[str, Any]) -> Section:
    """The same as a table."""
    ttfa, network, lateness = (document[name] for name in ("ttfa_ms", "network_ms", "lateness_ms"))
    row = {name: document[name] for name in ("users", "replies", "audio_s", "gaps", "replies_with_gaps")}
    row |= {"ttfa_ms": ttfa["p50"], "ttfa_ms_p95": ttfa["p95"]}
    if network is not None:
        row |= {"network_ms": network["p50"], "network_ms_p95": network["p95"]}
        if not math.isclose(ttfa["p50"], 0.0):
            row["network_share"] = 100 * network["p50"] / ttfa["p50"]
    row |= {"late_ms": lateness["p50"], "late_ms_p95": lateness["p95"], "gap_ms": lateness["max"]}
    return Section("users of a server", _COLUMNS, [row])
