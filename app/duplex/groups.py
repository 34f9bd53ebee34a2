"""The groups of built-in scenarios. Light enough to be imported by a command line."""

from __future__ import annotations

from typing import Literal, get_args

Group = Literal["pauses", "interruptions", "backchannels", "echo", "noise"]
GROUPS: tuple[Group, ...] = get_args(Group)
ECHO_DB = (6.0, 12.0, 20.0)
"""Echo return losses."""
NOISE_SNR_DB = (20.0, 10.0, 0.0)
"""Speech against noise."""
