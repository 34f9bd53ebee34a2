"""moss-voice talk: answer the questions of a recording, or a typed one, without window and sound card.

The recording goes through the same voice activity detection, turn-taking and engine as a microphone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app import paths
from app.commands.shared_options import (
    add_engine_options,
    add_reply_option,
    add_server_options,
    add_transcribe_option,
    add_turn_options,
    start_settings,
)
from app.export import check_names
from app.progress import note, progress_bar
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import Modality

_SHOWN = (
    ("endpointing", "endpointing_ms", 0, " ms"),
    ("TTFA", "ttfa_ms", 0, " ms"),
    ("network", "network_ms", 1, " ms"),
    ("playback hold", "playback_hold_ms", 0, " ms"),
    ("confirmed to sound", "confirm_to_sound_ms", 0, " ms"),
    ("voice-to-voice", "voice_to_voice_ms", 0, " ms"),
    ("RTF total", "rtf_total", 2, ""),
    ("RTF steady", "rtf_steady", 2, ""),
)


class UsageError(MossVoiceError):
    """Options that exclude each other."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "talk", help="answer a recording or a typed question", description=__doc__.partition("\n\n")[0]
    )
    add_engine_options(parser)
    add_turn_options(parser)
    add_server_options(parser)
    parser.add_argument(
        "--in",
        dest="question",
        type=paths.user_path,
        metavar="FILE",
        help="recording with questions (WAV or FLAC)",
    )
    parser.add_argument("--text", help="a typed question instead of a recording")
    parser.add_argument("--out", type=paths.user_path, metavar="WAV", help="write the replies alone")
    add_transcribe_option(parser)
    add_reply_option(parser)
    parser.add_argument(
        "--record",
        type=paths.user_path,
        metavar="PATH",
        help="record both sides: a new folder with stereo sound, texts, decisions and timings, or the sound "
        "alone if the name ends in .wav",
    )
    parser.add_argument(
        "--trace", type=paths.user_path, metavar="JSON", help="write the timings as a Chrome trace"
    )
    parser.add_argument(
        "--no-hold",
        action="store_true",
        help="play the recording straight through, also during replies; speech over a reply interrupts it",
    )
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="play the recording in real time, as is always done with a server",
    )
    parser.add_argument("--json", action="store_true", help="end the output with one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Hold the conversation and print it."""
    if (arguments.question is None) == (arguments.text is None):
        raise UsageError('Give either a recording (--in question.wav) or a typed question (--text "...").')
    if arguments.out is not None and Modality(arguments.reply) is Modality.TEXT:
        raise UsageError("--out writes reply speech, and --reply text has none.", "Leave out one of them.")
    if arguments.text is not None and not _is_unicode(arguments.text):
        raise UsageError(
            "The question has bytes that are not valid UTF-8.", "Type it again, or check the locale."
        )
    if arguments.no_hold and arguments.question is None:
        raise UsageError(
            "--no-hold applies to recordings only.", "Add a recording with --in, or leave it out."
        )
    settings = start_settings(arguments)
    check_names(
        {"--out": arguments.out, "--record": arguments.record, "--trace": arguments.trace},
        {"--in": arguments.question, "--voice": settings.voice},
    )
    from app.main import engine_source, load_turn_end_detector
    from app.session.headless import run_file
    from app.session.session_settings import SessionSettings

    with progress_bar("talk") as progress:
        result = run_file(
            engine_source(settings),
            wav_in=arguments.question,
            text=arguments.text,
            settings=replace(
                SessionSettings.of(settings, reply=Modality(arguments.reply)),
                holds_samples=not arguments.no_hold,
            ),
            end_of_turn=load_turn_end_detector,
            out=arguments.out,
            record=arguments.record,
            trace=arguments.trace,
            realtime=arguments.realtime or settings.is_remote,
            notice=note,
            progress=progress,
        )
    print_conversation(result, [] if arguments.text is None else [arguments.text])
    if arguments.json:
        print(json.dumps(result))
    return 0


def _is_unicode(text: str) -> bool:
    """False for text with bytes that could not be decoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def print_conversation(result: dict[str, Any], questions: Sequence[str]) -> None:
    """The turns as lines for a reader. `questions` are their words, shown where each is one turn."""
    words = questions if len(questions) == len(result["turns"]) else [""] * len(result["turns"])
    for number, (turn, asked) in enumerate(zip(result["turns"], words, strict=True), 1):
        user, reply, timings = turn["user"], turn["reply"], turn["timings"]
        codes = f", {user['codes']} codes" if user["codes"] else ""
        spoken = f"{user['start_s']:.2f}-{user['end_s']:.2f} s{codes}"
        print(f"{number}. you      {asked or user['text'] or '(speech)'}")
        print(f"            {spoken if user['end_s'] > user['start_s'] else 'typed'}")
        print(f"   reply    {reply['text'] or '(speech)'}")
        print(f"            {_how_much(reply)}")
        shown = [
            f"{label} {timings[key]:.{digits}f}{unit}"
            for label, key, digits, unit in _SHOWN
            if timings.get(key) is not None
        ]
        if shown:
            print(f"            {', '.join(shown)}")
    print(speculation_line(result["speculation"]))
    print(f"under-runs: {result['underruns']}")


def speculation_line(stats: dict[str, Any]) -> str:
    """What speculative replies gained and cost."""
    off = f"off ({stats['off_reason'].replace('_', ' ')}), " if stats["off_reason"] else ""
    return (
        f"speculative replies: {off}{stats['speculated']} made, {stats['confirmed']} confirmed, "
        f"{stats['rolled_back']} rolled back: {stats['engine_ms']:.0f} ms of the engine and "
        f"{stats['audio_s']:.1f} s of speech discarded, ready again within {stats['roll_back_ms']:.0f} ms"
    )


def _how_much(reply: dict[str, Any]) -> str:
    """One line on the reply: kind, length, finish reason."""
    cut = reply["cut"]
    if cut is None:
        spoken = f", {reply['audio_s']:.2f} s" if reply["modality"] == Modality.SPEECH.value else ""
        return f"{reply['modality']}{spoken}, {reply['finish_reason']}"
    heard = f"heard {reply['audio_s']:.2f} of {cut['made_s']:.2f} s"
    return f"{reply['modality']}, {heard}, cut ({cut['reason'].replace('_', ' ')})"
