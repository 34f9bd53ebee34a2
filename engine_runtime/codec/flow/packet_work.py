"""PacketWork: the next packet of a flow stream, as work that equal packets of other streams can join.

In: a stream and a number of codes. Out: the mel. Engine thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from engine_runtime.work import Stage


class PacketFlow(Protocol):
    """The flow as its works call it; see `PagedFlow`."""

    most_streams: int

    @property
    def takes_more(self) -> bool:
        """Whether another call would not wait for more than one."""

    def shape_of(self, count: int) -> int:
        """The captured packet that holds `count` codes."""

    def is_short(self, packet: tuple[Any, int], beside: Sequence[tuple[Any, int]] = ()) -> bool:
        """Whether streams that began earlier hold the memory that a packet needs, beside those of a call."""

    def advance(self, state: Any, count: int) -> Tensor:
        """The next packet of a stream."""

    def advance_together(self, packets: Sequence[tuple[Any, int]]) -> list[Tensor]:
        """The next packets of several streams."""


@dataclass(frozen=True, slots=True, eq=False)
class PacketWork:
    """The next packet of a stream; its result is the mel. See `Work`."""

    flow: PacketFlow
    state: Any
    count: int
    is_in_flight: bool = False

    @property
    def stage(self) -> Stage:
        return "flow"

    @property
    def batch_key(self) -> Hashable:
        return "flow", id(self.flow), self.flow.shape_of(self.count)

    @property
    def is_ready(self) -> bool:
        """While the device computes packets and has the next ones, more of them gather."""
        return self.flow.takes_more

    def waits_for_memory(self, beside: Sequence[PacketWork] = ()) -> bool:
        return self.flow.is_short((self.state, self.count), [(work.state, work.count) for work in beside])

    def fits(self, batch: Sequence[PacketWork]) -> bool:
        return len(batch) < self.flow.most_streams

    def run(self) -> Tensor:
        return self.flow.advance(self.state, self.count)

    def run_together(self, batch: Sequence[PacketWork]) -> list[Tensor]:
        return self.flow.advance_together([(work.state, work.count) for work in batch])
