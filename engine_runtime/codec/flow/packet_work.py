"""PacketWork: the next packet of a flow stream, as work that equal packets of other streams can join.

In: a stream and a number of codes. Out: the mel. Engine thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from engine_runtime.work import Stage

if TYPE_CHECKING:
    from engine_runtime.codec.flow.paged import PagedFlow, PagedState


@dataclass(frozen=True, slots=True, eq=False)
class PacketWork:
    """The next packet of a stream; its result is the mel. See `Work`."""

    flow: PagedFlow
    state: PagedState
    count: int

    @property
    def stage(self) -> Stage:
        """See `Work`."""
        return "flow"

    @property
    def batch_key(self) -> Hashable:
        """See `Work`."""
        return "flow", id(self.flow), self.flow.shape_of(self.count)

    @property
    def is_ready(self) -> bool:
        """See `Work`: while the device computes packets, the next ones gather."""
        return self.flow.is_idle

    def fits(self, batch: Sequence[PacketWork]) -> bool:
        """See `Work`."""
        return len(batch) < self.flow.most_streams

    def run(self) -> Tensor:
        """See `Work`."""
        return self.flow.advance(self.state, self.count)

    def run_together(self, batch: Sequence[PacketWork]) -> list[Tensor]:
        """See `Work`."""
        return self.flow.advance_together([(work.state, work.count) for work in batch])
