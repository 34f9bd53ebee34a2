"""Secrets taken out of text before it leaves the program: into a log, a report, an error message.

In: any text. Out: the same without the user names and passwords of URLs, without their queries (signatures of
downloads) and without tokens of the model hub. Any thread.
"""

from __future__ import annotations

import re

_USERINFO = re.compile(r"(?<=://)[^\s/?#]*@")
_QUERY = re.compile(r"(://[^\s?#\"'<>]*\?)[^\s#\"'<>]+")
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
_BEARER = re.compile(r"(?i)\b(bearer)\s+[\w.~+/=-]{8,}")


def redact(text: str) -> str:
    """`text` without credentials."""
    text = _USERINFO.sub("", text)
    text = _QUERY.sub(r"\1...", text)
    text = _HUB_TOKEN.sub("hf_...", text)
    return _BEARER.sub(r"\1 ...", text)
