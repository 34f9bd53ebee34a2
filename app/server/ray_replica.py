"""One replica of Ray Serve: a process with one GPU (or the CPU), its engine and its conversations.

In: settings and factories, from the process that deploys; requests of Ray's proxies. Out: the same
application as that of `moss-voice serve`. A WebSocket is one request, so it stays with its replica, and the
number of ongoing requests, by which Ray chooses replicas and scales, is that of the conversations. A full
replica refuses with 503. Ray calls the constructor and the methods in the event loop of the replica.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from app.server.http_app import RealtimeApp, Report
from app.server.service import RealtimeService, ServeSettings
from app.session.end_of_turn_worker import DetectorFactory
from app.session.engine_slot import EngineFactory

HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
DEPLOYMENT = "Realtime"
APPLICATION = "moss-voice"
_REPORT_S = 5.0
_MOST_ONGOING = 10_000
"""Requests of one replica: Ray lets those beyond wait, while a replica answers them with the reason."""
_CPUS = 0.1
"""Cores that a replica reserves; its engine takes what it finds. With one each, three replicas on two cores
would wait."""
_SPARE = 0.75
"""Average share of the admitted conversations above which a replica is added."""
_HEALTH_PERIOD_S = 2.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many replicas, and on which device."""

    least: int = 1
    most: int = 1
    """Above `least`, Ray scales by running conversations."""
    on_gpu: bool = False


class LeastConversations(RequestRouter):
    """Offers all replicas to Ray, which takes the one with the fewest requests. Its default compares two at
    random, so a conversation could be refused while a third replica had room."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One rank in random order, which breaks ties."""
        return [random.sample(candidate_replicas, len(candidate_replicas))]


class RealtimeReplica:
    """What Ray runs; see the module."""

    def __init__(
        self,
        settings: ServeSettings,
        factory: EngineFactory,
        detector_factory: DetectorFactory,
        set_up: Callable[[], None],
    ) -> None:
        """Loads the engine. `set_up` is called first, for logging."""
        set_up()
        self._settings = settings
        self._service = RealtimeService(settings, factory, detector_factory, self._all_reports)

    def __serve_build_asgi_app__(self) -> Any:
        """For `serve.ingress`, after the constructor."""
        return self.realtime.asgi

    @property
    def realtime(self) -> RealtimeApp:
        """The connections of this replica."""
        return self._service.app

    async def check_health(self) -> None:
        """Raises if the engine has failed: Ray then starts another replica."""
        if self._service.host.problem is not None:
            raise self._service.host.problem

    async def report(self) -> Report:
        """How this replica is doing."""
        return self.realtime.report(serve.get_replica_context().replica_id.unique_id)

    async def drain(self) -> None:
        """Admit nobody, let responses end, close the connections."""
        await self.realtime.drain(self._settings.drain_s)

    def __del__(self) -> None:
        if hasattr(self, "_service"):  # else it could not be loaded
            self._service.close()

    async def _all_reports(self) -> list[Report]:
        name = serve.get_replica_context().app_name
        replicas = serve.get_deployment_handle(DEPLOYMENT, name)
        try:
            found: list[Report] = await replicas.broadcast("report").results_async(timeout_s=_REPORT_S)
        except (RayError, TimeoutError) as error:  # one has died, or is dying
            _log.warning("a replica did not report", extra={"fields": {"error": type(error).__name__}})
            found = []
        return found or [await self.report()]


def application(
    settings: ServeSettings,
    replicas: Replicas,
    factory: EngineFactory,
    detector_factory: DetectorFactory,
    set_up: Callable[[], None],
) -> serve.Application:
    """What `serve.run` deploys. Everything in it is pickled; the engine is loaded in the replicas."""
    deployment = serve.deployment(serve.ingress()(RealtimeReplica)).options(
        name=DEPLOYMENT,
        **scaling(replicas, settings.conversations),
        ray_actor_options={"num_cpus": _CPUS, "num_gpus": int(replicas.on_gpu)},
        **_routing(),
        max_ongoing_requests=_MOST_ONGOING,
        health_check_period_s=_HEALTH_PERIOD_S,
        graceful_shutdown_timeout_s=settings.drain_s,
        max_constructor_retry_count=replicas.least,
    )
    return deployment.bind(settings, factory, detector_factory, set_up)


def _routing() -> dict[str, Any]:
    # HAProxy takes the replica with the fewest connections itself, and Ray refuses another router beside it.
    if os.environ.get(HAPROXY) == "1":
        return {}
    return {"request_router_config": {"request_router_class": LeastConversations}}


def scaling(replicas: Replicas, conversations: int | None) -> dict[str, Any]:
    """Ray's options for a fixed number of replicas, or for one that follows the conversations. The latter
    needs to know how many of them a replica holds."""
    if replicas.most == replicas.least:
        return {"num_replicas": replicas.least}
    if conversations is None:
        raise ValueError("the conversations of one replica are not known")
    return {
        "autoscaling_config": {
            "min_replicas": replicas.least,
            "max_replicas": replicas.most,
            "target_ongoing_requests": _SPARE * conversations,
        }
    }
