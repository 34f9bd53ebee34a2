"""Another Python environment, such as one with TensorRT-LLM: how its interpreter is started and examined.

In: the path of an interpreter. Out: commands, and the variables that a process of it gets. Any thread.
"""

from __future__ import annotations

import os

# Python's own variables would point the child to the modules of this process.
_NOT_INHERITED = ("PYTHONHOME", "PYTHONPATH", "PYTHONEXECUTABLE")
SERVER_PACKAGES = ("fastapi", "uvicorn", "websockets", "prometheus_client")
"""Packages that `moss-voice serve` imports."""
_EXAMINATION = f"""
import json, sys
from importlib import metadata, util
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
try:
    from app import version as own
    program = getattr(own, "VERSION", None) or own.program_version()  # a function in 0.1.0
except ImportError:
    program = None
print(json.dumps({{
    "python": sys.version.split()[0],
    "moss-voice": program,
    "tensorrt-llm": version("tensorrt-llm"),
    "missing": [name for name in {SERVER_PACKAGES!r} if util.find_spec(name) is None],
}}))
"""


def examination(python: str) -> list[str]:
    """A command that prints one JSON object: the versions of Python, this program and TensorRT-LLM in that
    environment (null for what is missing), and which packages of a server are missing. Quick."""
    return isolated(python, "-c", _EXAMINATION)


def isolated(python: str, *words: str) -> list[str]:
    """A command of that interpreter. -P: a folder named app in the current one is not the program."""
    return [python, "-P", *words]


def inherited_variables() -> dict[str, str]:
    """The environment variables of this process for one of that interpreter."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
