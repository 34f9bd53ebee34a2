"""The version of this program, for all that states one.

pyproject.toml reads it from here, so that packages, their metadata, `--version` and the window agree.
"""

from __future__ import annotations

VERSION = "0.2.0"
