"""moss-voice demo: run a conversation of the sample questions, without window and sound card.

Writes questions.wav, reply.wav (the replies alone), session.wav (both sides, stereo), trace.json and
latency.png, the latency view of the window.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from app import paths
from app.commands.shared_options import add_engine_options, add_turn_options, start_settings
from app.commands.talk import print_conversation
from engine_runtime.errors import ExportError
from engine_runtime.timing import TimingEvent


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "demo", help="hold a sample conversation without a window", description=__doc__.partition("\n\n")[0]
    )
    add_engine_options(parser)
    add_turn_options(parser)
    parser.add_argument(
        "--out-dir",
        type=paths.user_path,
        metavar="DIR",
        default=Path("moss-voice-demo"),
        help="folder for the files (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the conversation, draw the latency view, print the file names."""
    folder: Path = arguments.out_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(
            "The folder {folder} cannot be created: {reason}.",
            "Choose another one with --out-dir.",
            folder=folder,
            reason=error.strerror,
        ) from error
    from app.commands.conversation import hold_sample_conversation
    from app.gui.latency.export import Measured, save_timings_picture
    from app.sample_questions import load_samples
    from engine_runtime.hardware import device_name, usable_device

    timings: list[TimingEvent] = []
    settings = start_settings(arguments)
    result = hold_sample_conversation(settings, folder, timings=timings)
    measured = Measured.now(result["bundle"], device_name(usable_device(settings.engine.device)))
    save_timings_picture(folder / "latency.png", timings, measured)
    labels = {sample.path: sample.english for sample in load_samples(paths.assets_dir() / "samples")}
    print_conversation(result, [labels.get(path, path.stem) for path in paths.sample_questions()])
    print(f"replies:       {folder / 'reply.wav'}")
    print(f"both sides:    {folder / 'session.wav'}")
    print(f"latency view:  {folder / 'latency.png'}")
    print(f"Chrome trace:  {folder / 'trace.json'}")
    return 0
