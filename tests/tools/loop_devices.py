"""Runs a command on a machine without a sound card: its microphone hears its loudspeaker.

    python -m tests.tools.loop_devices --loss-db 12 -- python -m app acceptance --out DIR --only duplex

A PulseAudio daemon of its own with null sinks. The microphone is the loudspeaker's monitor, softer by
--loss-db, on one clock as in a laptop. With --headphones the microphone hears nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.doubles.pulse_server import PulseServer

# HOME stays, so that models and settings are found.
_NAMES = ("XDG_RUNTIME_DIR", "PULSE_SERVER", "PULSE_SINK", "PULSE_SOURCE", "PULSE_COOKIE")


def main() -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.loop_devices", description=__doc__)
    parser.add_argument("--loss-db", type=float, default=12.0)
    parser.add_argument("--headphones", action="store_true")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    server = PulseServer(loop_loss_db=None if arguments.headphones else arguments.loss_db)
    try:
        server.start()
        environment = {name: server.environment[name] for name in _NAMES}
        return subprocess.run(arguments.command, env=os.environ | environment, check=False).returncode
    finally:
        server.remove()


if __name__ == "__main__":
    sys.exit(main())
