"""`moss-voice serve --ray`: deploys replicas with Ray Serve, and takes them down again.

1. Addresses, keys, certificate and the authentication of the cluster are checked; 2. Ray is started on this
machine, its files in a folder of this user alone, or joined where RAY_ADDRESS names a cluster; 3. Ray Serve
listens and starts the replicas, each of which loads an engine. At SIGTERM or SIGINT: the replicas drain and
end, and Ray if it was started here. A second signal ends it at once.
Ray places, restarts and scales; nothing here watches a replica. Main thread.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from app.progress import note
from app.server.access import check_address, check_cluster, check_tls
from app.server.ray_replica import APPLICATION, HAPROXY, Replicas, application
from app.server.run import ServeError, free_port, url_of
from app.server.service import HANG_UP_S, ServeSettings
from app.session.end_of_turn_worker import DetectorFactory
from app.session.engine_slot import EngineFactory

_NOBODY = "http://127.0.0.1:9"
_HARD_STOP = "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"
_LEAST_DRAIN = "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"
_LEAST_DRAIN_S = 5
_STATISTICS_PORTS = ("RAY_SERVE_HAPROXY_STATS_PORT", 8_404), ("RAY_SERVE_HAPROXY_METRICS_PORT", 9_101)
"""HAProxy opens them on every address, whatever --host says, and demands no key there."""
_LOGGING = {"enable_access_log": False, "log_level": "WARNING"}


def serve_with_ray(
    settings: ServeSettings,
    replicas: Replicas | None,
    factory: EngineFactory,
    detector_factory: DetectorFactory,
    set_up: Callable[[], None],
    on_listening: Callable[[str], None],
    *,
    on_gpu: bool = False,
) -> int:
    """Serve until a signal asks for the end; returns the exit status. Without `replicas` there is one for
    each GPU of the cluster, or one on the CPU. `factory`, `detector_factory` and `set_up` are pickled and
    called in the replicas, `on_listening` gets the address here. MossVoiceError if it cannot be served."""
    check_address(settings.host, settings.access)
    check_tls(settings.tls_certificate, settings.tls_key)
    _check_haproxy(settings)
    before: dict[int, Any] = {}
    is_own = "RAY_ADDRESS" not in os.environ
    if not is_own:
        check_cluster()
    # Ray listens in another process, and would report a failure in its log only.
    port = free_port(settings) if is_own else settings.port
    folder = _private_folder() if is_own else None  # after what may refuse to start, so that none is left
    is_started = False
    try:
        _begin(folder, settings.limits.session_s)
        if replicas is None:
            count = _gpus() if on_gpu else 1
            replicas = Replicas(count, count, on_gpu)
        serve.start(
            proxy_location="HeadOnly" if is_own else "EveryNode",
            http_options={
                "host": settings.host,
                "port": port,
                "ssl_certfile": _text(settings.tls_certificate),
                "ssl_keyfile": _text(settings.tls_key),
            },
            logging_config=_LOGGING,
        )
        app = application(settings, replicas, factory, detector_factory, set_up)
        try:
            handle = serve.run(
                app,
                name=APPLICATION,
                logging_config=_LOGGING,
                # A fixed number of replicas can be changed while they serve; Ray refuses both ways at once.
                external_scaler_enabled=replicas.least == replicas.most,
            )
        except (RuntimeError, RayServeException) as error:
            raise ServeError(
                "Ray cannot start the replicas: {error}",
                "The reason is above, or in the logs of Ray ({logs}).",
                error=error,
                logs=_session(folder) / "session_latest" / "logs" / "serve",
            ) from error
        is_started = True
        asked = threading.Event()
        # Up to here a signal ends the start by an exception.
        before = {number: signal.signal(number, _asker(asked)) for number in (signal.SIGINT, signal.SIGTERM)}
        on_listening(url_of(settings, settings.host, port))
        asked.wait()
        with suppress(TimeoutError):
            handle.broadcast("drain").results(timeout_s=settings.drain_s + HANG_UP_S)
        return 0
    finally:
        if ray.is_initialized():
            if folder is not None:
                serve.shutdown()
            else:
                serve.delete(APPLICATION)
            ray.shutdown()
        if folder is not None and is_started:  # otherwise its logs say why not
            shutil.rmtree(folder, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_haproxy(settings: ServeSettings) -> None:
    """ServeError for TLS, which Ray does not configure in HAProxy. States which ports HAProxy adds."""
    if os.environ.get(HAPROXY) != "1":
        return
    if settings.tls_certificate is not None:
        raise ServeError(
            "With {variable}=1 Ray serves without TLS, whatever certificate it gets.",
            "Terminate TLS in a proxy in front of it, or unset the variable.",
            variable=HAPROXY,
        )
    ports = " and ".join(os.environ.get(name, str(port)) for name, port in _STATISTICS_PORTS)
    note(f"HAProxy also listens on every address, without a key: ports {ports} (statistics). Close them.")


def _private_folder() -> Path:
    """A new folder that only this user can enter, for the files and sockets of Ray and HAProxy.

    Ray makes its own folders writable for everybody, the one that it is given among them, so they have to lie
    below this one. Not in TMPDIR: the name of a socket has at most 107 bytes.
    """
    return Path(tempfile.mkdtemp(prefix="moss-voice-", dir="/tmp"))


def _session(folder: Path | None) -> Path:
    """Where Ray keeps sockets and logs."""
    return Path("/tmp/ray") if folder is None else folder / "ray"


def haproxy_files(folder: Path, environ: MutableMapping[str, str]) -> None:
    """Keep the configuration, the administrator's socket and the state of HAProxy in `folder`, unless
    `environ` names other places. Ray's own are below /tmp/haproxy-serve, which any user can make first."""
    names = {
        "CONFIG_FILE_LOC": "haproxy.cfg",
        "SOCKET_PATH": "admin.sock",
        "METRICS_SOCKET_PATH": "metrics.sock",
        "SERVER_STATE_BASE": "",
        "SERVER_STATE_FILE": "server-state",
    }
    for name, file in names.items():
        environ.setdefault(f"RAY_SERVE_HAPROXY_{name}", str(folder / file))


def _begin(folder: Path | None, session_s: float) -> None:
    """Start Ray with its files in `folder`, or join the cluster of RAY_ADDRESS."""
    is_own = folder is not None
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # When replicas come or go, another HAProxy takes over, and the one before ends with its last conversation
    # or, by Ray's default, after 2 minutes.
    os.environ.setdefault(_HARD_STOP, str(math.ceil(session_s)))
    # Behind HAProxy, a replica that ends stays at least this long (by default 30 s), for balancers that do
    # not try another one when they are refused.
    os.environ.setdefault(_LEAST_DRAIN, str(_LEAST_DRAIN_S))
    # Ray runs its workers with the lowest priority but four; an engine must have each step in time.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray listens on every address and runs what it is sent, by those who have its token: it makes and demands
    # one unless this variable is set. Only this user can read it.
    if folder is not None:
        os.environ.pop("RAY_AUTH_MODE", None)
        haproxy_files(folder, os.environ)
        # It asks the metadata services of three clouds where it runs, over HTTP, with statistics off, too.
        # Its processes use HTTP for nothing else outside themselves; nobody listens on this port.
        os.environ["http_proxy"] = _NOBODY
    mask = os.umask(0o077)
    try:
        ray.init(
            address="local" if is_own else None,
            include_dashboard=False if is_own else None,
            configure_logging=False,
            _temp_dir=None if folder is None else str(_session(folder)),
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ServeError(
            "Ray cannot be started or joined: {error}.", "Check RAY_ADDRESS.", error=error
        ) from error
    finally:
        os.umask(mask)


def _gpus() -> int:
    found = int(ray.cluster_resources().get("GPU", 0))
    if found == 0:
        raise ServeError("Ray finds no GPU.", "Use --device cpu, or see `moss-voice doctor`.")
    return found


def _asker(asked: threading.Event) -> Callable[[int, FrameType | None], None]:
    """The first signal asks for the end, the second one ends at once."""

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            # Ray's own processes would end without this one, and HAProxy would not.
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
            os._exit(1)
        asked.set()

    return ask


def _text(path: object) -> str | None:
    return None if path is None else str(path)
