"""A replica of Ray Serve with a scripted engine, and what Ray is asked for; a double stands for Ray."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.server.service import ServeSettings
from engine_runtime.errors import MossVoiceError
from tests.doubles.scripted_engine import ScriptedEngine


class Deployment:
    """What `serve.deployment` makes: the class, its options, and its arguments once bound."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls
        self.chosen: dict[str, Any] = {}
        self.arguments: tuple[Any, ...] = ()

    def options(self, **chosen: Any) -> Deployment:
        self.chosen = chosen
        return self

    def bind(self, *arguments: Any) -> Deployment:
        self.arguments = arguments
        return self


class Handle:
    """All replicas of the deployment: those of the test."""

    def __init__(self, replicas: list[Any]) -> None:
        self._replicas = replicas

    def broadcast(self, method: str) -> Handle:
        assert method == "report"
        return self

    async def results_async(self, timeout_s: float) -> list[Any]:
        return [await replica.report() for replica in self._replicas]


@pytest.fixture
def ray_replica(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, imported with the double in place of Ray; its `replicas` are those that report."""
    replicas: list[Any] = []
    serve = ModuleType("ray.serve")
    vars(serve).update(
        deployment=Deployment,
        ingress=lambda: lambda cls: cls,
        get_replica_context=lambda: SimpleNamespace(
            app_name="moss-voice", replica_id=SimpleNamespace(unique_id="first")
        ),
        get_deployment_handle=lambda deployment, application: Handle(replicas),
    )
    ray, errors, router = (
        ModuleType("ray"),
        ModuleType("ray.exceptions"),
        ModuleType("ray.serve.request_router"),
    )
    vars(ray).update(serve=serve)
    vars(errors).update(RayError=type("RayError", (Exception,), {}))
    vars(router).update(PendingRequest=object, RequestRouter=object, RunningReplica=object)
    for module in (ray, serve, errors, router):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "app.server.ray_replica", raising=False)
    module = import_module("app.server.ray_replica")
    module.replicas = replicas  # type: ignore[attr-defined]
    yield module
    sys.modules.pop("app.server.ray_replica")


def _replica(module: Any, settings: ServeSettings | None = None) -> Any:
    return module.RealtimeReplica(
        settings or ServeSettings(conversations=2),
        lambda: nullcontext(ScriptedEngine()),
        lambda: None,
        lambda: None,
    )


def _options(module: Any, replicas: Any, settings: ServeSettings) -> dict[str, Any]:
    made = module.application(settings, replicas, lambda: None, lambda: None, lambda: None)
    assert made.cls is module.RealtimeReplica
    assert made.arguments[0] is settings
    chosen: dict[str, Any] = made.chosen
    return chosen


def test_a_replica_gets_one_gpu_and_no_core_of_its_own(ray_replica: Any) -> None:
    chosen = _options(ray_replica, ray_replica.Replicas(4, 4, on_gpu=True), ServeSettings(drain_s=7.0))
    assert chosen["num_replicas"] == 4
    assert chosen["ray_actor_options"]["num_gpus"] == 1
    assert chosen["ray_actor_options"]["num_cpus"] < 0.5
    assert chosen["graceful_shutdown_timeout_s"] == 7.0
    assert chosen["max_ongoing_requests"] > 1_000, "a full replica answers; Ray would let the client wait"


def test_scaling_follows_the_conversations(ray_replica: Any) -> None:
    replicas = ray_replica.Replicas(1, 4)
    scaling = _options(ray_replica, replicas, ServeSettings(conversations=8))["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 4)
    assert 1 <= scaling["target_ongoing_requests"] < 8, "another is there before the last place is taken"
    with pytest.raises(ValueError, match="not known"):
        _options(ray_replica, replicas, ServeSettings())


def test_haproxy_chooses_the_replica_itself(ray_replica: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_SERVE_ENABLE_HA_PROXY", raising=False)
    assert "request_router_config" in _options(ray_replica, ray_replica.Replicas(), ServeSettings())
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    assert "request_router_config" not in _options(ray_replica, ray_replica.Replicas(), ServeSettings())


def test_every_replica_is_offered(ray_replica: Any) -> None:
    (rank,) = asyncio.run(ray_replica.LeastConversations().choose_replicas(["a", "b", "c"]))
    assert sorted(rank) == ["a", "b", "c"]


def test_health_and_metrics_are_those_of_all_replicas(ray_replica: Any) -> None:
    replica = _replica(ray_replica)
    ray_replica.replicas += [replica, replica]
    try:
        with TestClient(replica.__serve_build_asgi_app__(), "http://localhost") as client:
            assert client.get("/health").json() == {
                "status": "ready",
                "conversations": 0,
                "capacity": 4,
                "replicas": 2,
            }
            assert 'moss_voice_conversation_limit{replica="first"} 2.0' in client.get("/metrics").text
    finally:
        replica.__del__()


def test_a_replica_reports_for_itself_where_another_has_died(ray_replica: Any) -> None:
    class Dead:
        async def report(self) -> None:
            raise ray_replica.RayError

    replica = _replica(ray_replica)
    ray_replica.replicas += [replica, Dead()]
    try:
        with TestClient(replica.__serve_build_asgi_app__(), "http://localhost") as client:
            assert client.get("/health").json()["replicas"] == 1
    finally:
        replica.__del__()


def test_a_failed_engine_is_not_healthy(ray_replica: Any) -> None:
    replica = _replica(ray_replica)
    asyncio.run(replica.check_health())
    replica._service.host.problem = MossVoiceError("The engine failed.")
    with pytest.raises(MossVoiceError, match="engine failed"):
        asyncio.run(replica.check_health())
    replica.__del__()


def test_a_draining_replica_admits_nobody(ray_replica: Any) -> None:
    replica = _replica(ray_replica)
    asyncio.run(replica.drain())
    try:
        with TestClient(replica.__serve_build_asgi_app__(), "http://localhost") as client:
            assert client.get("/health").status_code == 503
    finally:
        replica.__del__()


def test_an_engine_that_cannot_be_loaded_fails_the_constructor(ray_replica: Any) -> None:
    def fail() -> Any:
        raise MossVoiceError("No such bundle.")

    with pytest.raises(MossVoiceError, match="No such bundle"):
        ray_replica.RealtimeReplica(ServeSettings(), fail, lambda: None, lambda: None)
