"""Which language model a checkpoint or an engine was made from.

In: an open bundle. Out: one string that is the same for the same sizes and the same weights, and nothing
else. A checkpoint and an engine carry it in their moss_voice.json, so that an engine of other weights is
refused before it says nonsense. It comes from the manifest: the files themselves need not be there. Any
thread.
"""

from __future__ import annotations

import hashlib
import json

from engine_runtime.bundle import Bundle


def lm_fingerprint(bundle: Bundle) -> str:
    """SHA-256, lower-case hex, of the network's sizes and the hashes of its weight files, in their order."""
    entries = [bundle.files.get(file.relative_to(bundle.path).as_posix()) for file in bundle.lm.weights]
    described = {
        "config": bundle.lm.config,
        "weights": [None if entry is None else entry.sha256.lower() for entry in entries],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
