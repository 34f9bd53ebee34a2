"""A child process in place of Whisper, without numpy and so at once there: `python -S FILE MODEL SOCKET`.

The name of the model's folder says what it does: `words` answers with the number of samples, the language and
the prompt, `crash` ends at the first request, `crash-once` does so until its folder has a file `crashed`,
`hang` does not answer until its folder has a file `awake`, `garbage` answers without JSON, `refuse` cannot
load its model, `unknown` takes no language.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path


def command(folder: Path, descriptor: int) -> list[str]:
    """The command of a child."""
    return [sys.executable, "-S", __file__, str(folder), str(descriptor)]


def main(folder: Path, descriptor: int) -> None:
    """Answer requests as the name of the folder says."""
    with socket.socket(fileno=descriptor) as line, line.makefile("rwb") as stream:
        if folder.name == "refuse":
            problem = {"cause": "{folder} is no model.", "remedy": "", "values": {"folder": folder.name}}
            stream.write(json.dumps({"problem": problem}).encode() + b"\n")
            return
        while header := stream.readline():
            asked = json.loads(header)
            samples = len(stream.read(4 * asked["samples"])) // 4
            if folder.name == "hang" and not (folder / "awake").exists():
                time.sleep(3_600)
            if folder.name == "crash" or (folder.name == "crash-once" and not (folder / "crashed").exists()):
                (folder / "crashed").touch()
                os._exit(3)
            if folder.name == "garbage":
                stream.write(b"ready\n")
                stream.flush()
                continue
            answer = {"text": f" {samples} {asked['prompt']}", "language": asked["language"] or "en"}
            if folder.name == "unknown":
                answer = {"error": "ValueError: 'xx' is not a language"}
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
