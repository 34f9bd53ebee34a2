"""The server and its client in a package, on a bare machine: part of package_smoke.

In: the bundle of an archive. Out: checks. `serve` and `talk --server` are two processes of the packaged
program. The bare machine has no Python for `--engine-python`: a shell script stands for the interpreter of
another environment, and starts the packaged program in its place. Main thread.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.tools.bare_root import HOME, BareRoot, CompletedRun, Mount
from tests.tools.checks import Checks, require

FOLDER = Path("/srv/other folder")
_QUESTION, _ANSWER = "what is the capital of france", "paris"
_SERVE = """\
"$0" serve --port 0 --conversations 1 2>log & server=$!
until url=$(grep -o 'ws://.*' log); do kill -0 $server || {{ cat log >&2; exit 9; }}; sleep 0.1; done
"$0" talk --server "$url" --text {question} --out reply.wav; status=$?
kill $server; wait $server || {{ echo "the server ended with status $?" >&2; exit 8; }}
exit $status
"""
_ENGINE = """\
"$0" talk "$@" || exit $?
for second in 1 2 3 4 5 6 7 8 9 10; do grep -q moss-voice /proc/[0-9]*/comm || exit 0; sleep 1; done
echo "the child is still there" >&2; exit 7
"""


def check_server(checks: Checks, root: BareRoot, bundle: Path) -> None:
    """A conversation with a server of the packaged program, and with an engine in a child process."""
    mounts = (Mount(bundle, FOLDER, is_read_only=True),)
    program = str(FOLDER / "moss-voice")

    def run(*words: str) -> CompletedRun:
        return root.run(list(words), mounts=mounts, has_loopback=True)

    with checks.check("archive: a conversation over loopback with moss-voice serve") as notes:
        ended = run("sh", "-c", _SERVE.format(question=shlex.quote(_QUESTION)), program)
        notes.append(answer(ended))
        require(root.inside(HOME / "reply.wav").stat().st_size > 50_000, "reply.wav is too short")
    with checks.check("archive: the engine in a child process of another environment") as notes:
        python = root.inside(HOME / "python")
        python.write_text(interpreter(program))
        python.chmod(0o755)
        words = ["--engine-python", str(HOME / "python"), "--text", _QUESTION]
        ended = run("sh", "-c", _ENGINE, program, *words)
        notes.append(answer(ended))


def interpreter(program: str) -> str:
    """A script that runs `-P -m app ...` with the packaged program in place of an interpreter."""
    return f'#!/bin/sh\nshift 3\nexec {shlex.quote(program)} "$@"\n'


def answer(ended: CompletedRun) -> str:
    """The line of the reply; CheckFailed unless it is the right one, and nothing left the machine."""
    require(ended.status == 0, f"exit status {ended.status}: {(ended.stderr or ended.stdout).strip()[-500:]}")
    require("Traceback" not in ended.stderr, ended.stderr[-500:])
    require(ended.unroutable == 0, f"{ended.unroutable} attempts to use the network")
    lines = [line.strip() for line in ended.stdout.splitlines() if line.strip().startswith("reply")]
    require(bool(lines) and _ANSWER in lines[0].lower(), ended.stdout[-500:])
    return lines[0].removeprefix("reply").strip()
