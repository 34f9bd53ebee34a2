"""Fingerprint of the language model from which a checkpoint or an engine was made.

In: an open bundle. Out: a string that is equal exactly for equal sizes and weights. A checkpoint and an
engine store it in their moss_voice.json, so that an engine of other weights is rejected. It is computed from
the manifest: the files themselves may be missing. If they are a checkpoint, its recorded fingerprint is used.
Any thread.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.errors import BundleError
from engine_runtime.tensorrt.checkpoint.format import ABOUT


def lm_fingerprint(bundle: Bundle) -> str:
    """SHA-256, lower-case hex, of the network's sizes and the hashes of its weight files, in their order."""
    if bundle.lm.layout == "tensorrt-llm":
        return _of_checkpoint(bundle.lm.weights[0].parent / ABOUT)
    entries = [bundle.files.get(file.relative_to(bundle.path).as_posix()) for file in bundle.lm.weights]
    described = {
        "config": bundle.lm.config,
        "weights": [None if entry is None else entry.sha256.lower() for entry in entries],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _of_checkpoint(about: Path) -> str:
    try:
        return str(json.loads(about.read_text(encoding="utf-8"))["lm_fingerprint"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(
            f"{about} does not say which model the checkpoint is of ({error}). Convert the model again."
        ) from error
