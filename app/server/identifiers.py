"""Ids of the Realtime protocol: unique within the process, and hard to guess. Event loop."""

from __future__ import annotations

import secrets
from itertools import count


class Identifiers:
    """Those of one session."""

    def __init__(self) -> None:
        self._session = secrets.token_hex(8)
        self._counts = count(1)

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return f"sess_{self._session}"

    @property
    def conversation_id(self) -> str:
        """The id of its only conversation."""
        return f"conv_{self._session}"

    def new(self, kind: str) -> str:
        """The next id, as kind_session_number."""
        return f"{kind}_{self._session}_{next(self._counts)}"
