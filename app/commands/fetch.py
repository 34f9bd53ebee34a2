"""moss-voice fetch: download a released model and create a bundle from it.

Downloads the checkpoints, or uses existing folders, and writes the bundle.toml that all other commands read.
Notes and progress go to stderr, the bundle's folder to stdout. --remove deletes what was fetched.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from app import paths
from app.commands.talk import UsageError
from app.installed_models import RELEASED, remove
from app.progress import line_printer, progress_bar, progress_lines, say

MODELS = (RELEASED,)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "fetch", help="download a released model, or use existing files", description=__doc__
    )
    parser.add_argument("model", choices=MODELS, metavar="MODEL", help=f"one of: {', '.join(MODELS)}")
    parser.add_argument(
        "--to",
        type=paths.user_path,
        metavar="DIR",
        help="folder of the bundle (default: with the user's data)",
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=paths.user_path,
        metavar="DIR",
        help="use this checkpoint instead of downloading; it is linked to, not copied",
    )
    parser.add_argument(
        "--codec-from",
        type=paths.user_path,
        metavar="DIR",
        help="the codec's folder, if it is not next to that of --from",
    )
    parser.add_argument(
        "--offline", action="store_true", help="use earlier downloads and send nothing (HF_HUB_OFFLINE)"
    )
    parser.add_argument(
        "--commits",
        nargs=2,
        type=_commit,
        metavar=("LM", "CODEC"),
        help="download these commits of the two repositories, as 40 hex digits (default: the newest ones)",
    )
    parser.add_argument("--remove", action="store_true", help="delete the model that was fetched")
    parser.add_argument("--json", action="store_true", help="print progress and result as lines of JSON")
    parser.set_defaults(run=run)


def _commit(text: str) -> str:
    if re.fullmatch(r"[0-9a-f]{40}", text) is None:
        raise argparse.ArgumentTypeError(f"{text} is not a commit: give its 40 hex digits")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Get the files, create the bundle, print its folder; or remove it."""
    if arguments.codec_from is not None and arguments.source is None:
        raise UsageError("--codec-from needs --from.", "Give both, or neither to download.")
    if arguments.remove:
        if arguments.source is not None or arguments.to is not None or arguments.offline:
            raise UsageError("--remove excludes --from, --to and --offline.", "Leave them out.")
        remove(paths.user_bundles_dir() / arguments.model)
        return 0
    from engine_runtime.bundle.released import assembly, download, layout

    shown = progress_lines if arguments.json else progress_bar
    to: Path = arguments.to or paths.user_bundles_dir() / arguments.model
    commits: dict[str, str] = {}
    hashes: dict[Path, str] = {}
    if arguments.source is not None:
        lm, codec = layout.locate(arguments.source, arguments.codec_from)
        say(layout.LICENCE_NOTE)
    elif arguments.offline or download.is_offline():
        lm, codec = download.find_offline(to)
        say(layout.LICENCE_NOTE)
    else:
        wanted = (layout.LM_REPOSITORY, layout.CODEC_REPOSITORY)
        remote = download.download(
            to,
            say=say,
            progress=line_printer("download") if arguments.json else None,
            commits=dict(zip(wanted, arguments.commits or (), strict=False)),
        )
        with shown("check") as progress:
            hashes = download.check(to, remote, progress)
        lm, codec = (repository.folder(to) for repository in remote)
        commits = {repository.name: repository.commit for repository in remote}
    released = layout.find_released(lm, codec)
    with shown("hash") as progress:
        bundle = assembly.assemble(released, to, commits=commits, hashes=hashes, progress=progress)
    say(f"{bundle.name}: {download.size_in_words(bundle.total_bytes)} in {len(bundle.files)} files.")
    say(f"Talk to it with: moss-voice --bundle {bundle.path} --voice RECORDING.wav")
    print(json.dumps({"bundle": str(bundle.path)}) if arguments.json else bundle.path)
    return 0
