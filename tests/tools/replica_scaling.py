"""How many conversations several replicas of Ray Serve hold, and one of them: the same deployment, scaled
down to one replica without loading again.

python -m tests.tools.replica_scaling --users 160,128 [--replicas 2] [--single 64,68] [--log FILE] [options of
`moss-voice bench --server`] -- [options of `moss-voice serve`]

In: numbers of users for all replicas, tried in this order until one is served: TTFA p95 <= 300 ms and no
reply with a gap, as `moss-voice bench --server` reports them. Then `--single` for one replica, until one is
not served; without it the equal share of what was served, and the least number of users at which the ratio
would miss its target. Out: a line for each measurement, as soon as it is there, with the conversations of
each replica and the processor time of the processes, in cores; at last the ratio.

    python -m tests.tools.replica_scaling --users 192,160 --question-seconds 5-10 --reply-tokens 62-125 \
        -- --bundle moss-speech --random-weights 0 --device cuda --conversations 96 --context-tokens 1024
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

TARGET_SHARE = 0.95
"""Of as many times one replica as there are replicas: 1.9 times for two."""
TARGET_TTFA_MS = 300.0
_SAMPLED_S = 5.0
_AFTER_S = 75.0
"""Until a measurement is over once its users ask nothing new: the longest reply, and the closing."""
_TAIL_S = 25.0
"""The same, usually."""
_SCALING_S = 35.0
"""To one replica, usually; at most:"""
_RESCALED_S = 60.0
_SETTLED_S = 10.0
"""For HAProxy, which takes other replicas later than Ray reports them, and then counts conversations anew."""
_ENDED_S = 60.0
_LEAST_CPU = 0.02
_REPLICA = "ray::ServeReplica"
_CONVERSATIONS = re.compile(r'moss_voice_conversations\{replica="(\w+)"\} (\d+)')
_BEGAN_S = time.monotonic()


def say(text: str) -> None:
    """To whoever started the tool, with the seconds since then."""
    sys.stdout.write(f"{time.monotonic() - _BEGAN_S:6.1f}  {text}\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Measured:
    """One number of users on one number of replicas."""

    replicas: int
    users: int
    report: dict[str, Any] | None
    """Of `moss-voice bench --server --json`; None if a reply was none."""
    problem: str = ""
    conversations: tuple[int, ...] = ()
    """Of each replica, once all users are there."""
    cores: dict[str, float] = field(default_factory=dict)

    @property
    def is_served(self) -> bool:
        report = self.report
        return report is not None and report["gaps"] == 0 and report["ttfa_ms"]["p95"] <= TARGET_TTFA_MS

    def line(self) -> str:
        """For a reader."""
        head = f"{self.replicas} replicas, {self.users} users: "
        spread = f"conversations {', '.join(map(str, self.conversations)) or 'unknown'}"
        cores = ", ".join(f"{name} {share:.2f}" for name, share in self.cores.items())
        if self.report is None:
            return f"{head}not served: {self.problem}; {spread}; cores: {cores}"
        ttfa, late = self.report["ttfa_ms"], self.report["lateness_ms"]
        network = self.report["network_ms"] or {"p50": math.nan, "p95": math.nan}
        return (
            f"{head}{'served' if self.is_served else 'not served'}: TTFA p50 {ttfa['p50']:.0f}, p95 "
            f"{ttfa['p95']:.0f}, max {ttfa['max']:.0f} ms; network p50 {network['p50']:.0f}, p95 "
            f"{network['p95']:.0f} ms; {self.report['gaps']} gaps in {self.report['replies_with_gaps']} of "
            f"{self.report['replies']} replies, longest {late['max']:.0f} ms; {spread}; cores: {cores}"
        )


class Service:
    """A running `moss-voice serve --ray`."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self.address}/health", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def conversations(self) -> tuple[int, ...]:
        """Of each replica."""
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return tuple(int(count) for _, count in sorted(_CONVERSATIONS.findall(text)))

    def num_processes(self) -> int:
        """Processes of replicas, also of those that are ending."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return sum(_command_of(process).startswith(_REPLICA) for process in children)

    def await_replicas(self, count: int) -> None:
        """Until so many are there, without a conversation, and no others are ending."""
        end_s = time.monotonic() + _RESCALED_S
        while True:
            try:
                found: Any = self.health()
            except OSError as error:
                found = {"error": str(error)}
            is_idle = (found.get("replicas"), found.get("conversations")) == (count, 0)
            if is_idle and self.num_processes() == count:
                time.sleep(_SETTLED_S)
                return
            if time.monotonic() > end_s:
                raise TimeoutError(f"there are not {count} idle replicas, but {found}")
            time.sleep(0.5)


@contextmanager
def ray_service(options: list[str], replicas: int, ready_s: float, log: IO[str]) -> Iterator[Service]:
    """A server on a free port; what it prints goes to `log`. It is asked to end, then killed."""
    command = [sys.executable, "-m", "app", "serve", "--ray", "--port", "0", "--replicas", str(replicas)]
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    address, is_listening = "", threading.Event()

    def follow() -> None:
        nonlocal address
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            log.flush()
            if "listening on" in line:
                address = line.split("://")[1].split("/")[0]
                is_listening.set()
            elif "engine_ready" in line or "rror" in line:
                say(line.rstrip())
        is_listening.set()

    threading.Thread(target=follow, daemon=True).start()
    try:
        if not is_listening.wait(ready_s) or not address:
            raise TimeoutError(f"the server is not ready after {ready_s:g} s, or has ended; see its log")
        yield Service(process, address)
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        try:
            process.wait(_ENDED_S)
        except subprocess.TimeoutExpired:
            process.kill()
        for child in children:
            if child.is_running():
                child.kill()


def scale(replicas: int) -> None:
    """Change the number of replicas of the running application, by Ray's interface for external scalers."""
    import ray
    from ray.serve._private.common import DeploymentID
    from ray.serve.context import _get_global_client

    from app.server.ray_replica import APPLICATION, DEPLOYMENT

    ray.init(address="auto", namespace="serve", configure_logging=False, log_to_driver=False)
    try:
        controller = _get_global_client()._controller
        ray.get(controller.update_deployment_replicas.remote(DeploymentID(DEPLOYMENT, APPLICATION), replicas))
    finally:
        ray.shutdown()


def measure(service: Service, replicas: int, users: int, minutes: float, bench: list[str]) -> Measured:
    """Let so many users talk."""
    command = [sys.executable, "-m", "app", "bench", "--server", f"ws://{service.address}", "--json"]
    command += ["--users", str(users), "--minutes", f"{minutes:g}", *bench]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    conversations: tuple[int, ...] = ()
    cores: dict[str, float] = {}
    try:
        # All users have come by then, and none has left.
        process.wait(max(minutes * 60 - _SAMPLED_S, 1.0))
    except subprocess.TimeoutExpired:
        cores = _cores(service, process.pid)
        try:
            conversations = service.conversations()
        except OSError as error:
            say(f"no metrics: {error}")
    try:
        output, _ = process.communicate(timeout=minutes * 60 + _AFTER_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output = "it did not end"
    lines = output.strip().splitlines() or ["it printed nothing"]
    if process.returncode == 0:
        return Measured(replicas, users, json.loads(lines[-1]), "", conversations, cores)
    return Measured(replicas, users, None, lines[-1], conversations, cores)


def _cores(service: Service, users_pid: int) -> dict[str, float]:
    """The processor time of the processes of the service and of the users, in cores, largest first."""
    root = psutil.Process(service.process.pid)
    before = [(process, _cpu_s(process)) for process in [root, *root.children(recursive=True)]]
    before.append((users := psutil.Process(users_pid), _cpu_s(users)))
    began_s = time.monotonic()
    time.sleep(_SAMPLED_S)
    shares = []
    for process, before_s in before:
        try:
            share = (_cpu_s(process) - before_s) / (time.monotonic() - began_s)
        except psutil.Error:
            continue
        name = "users" if process is users else _command_of(process)
        if share >= _LEAST_CPU:
            shares.append((share, f"{name.rsplit('/', 1)[-1].split('.')[0]} {process.pid}"))
    return {name: share for share, name in sorted(shares, reverse=True)}


def _command_of(process: psutil.Process) -> str:
    """Its program, as Ray names its processes there; empty for one that has ended."""
    try:
        words: list[str] = process.cmdline()
        return words[0] if words else str(process.name())
    except psutil.Error:
        return ""


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def target_ratio(replicas: int) -> float:
    return TARGET_SHARE * replicas


def single_users(served: int, replicas: int) -> list[int]:
    """For one replica: the equal share, and the least number with which the ratio would miss the target."""
    return [served // replicas, math.floor(served / target_ratio(replicas)) + 1]


def run(arguments: argparse.Namespace, service: Service) -> list[Measured]:
    """All measurements, as far as time allows."""
    found: list[Measured] = []
    each_s = arguments.minutes * 60 + _TAIL_S
    reserved_s = _SCALING_S + each_s * len(arguments.single or single_users(0, arguments.replicas))

    def take(replicas: int, users: int) -> Measured | None:
        left_s = arguments.seconds - (time.monotonic() - _BEGAN_S)
        if left_s < each_s + (reserved_s if replicas > 1 and found else 0.0):
            say(f"{replicas} replicas, {users} users: not measured, {left_s:.0f} s are left")
            return None
        found.append(measured := measure(service, replicas, users, arguments.minutes, arguments.bench))
        say(measured.line())
        return measured

    for users in arguments.users:
        if (measured := take(arguments.replicas, users)) is None or measured.is_served:
            break
    served = max((one.users for one in found if one.is_served), default=min(arguments.users))
    say("scaling to one replica")
    scale(1)
    service.await_replicas(1)
    for users in arguments.single or single_users(served, arguments.replicas):
        if (measured := take(1, users)) is None or not measured.is_served:
            break
    return found


def verdict(found: list[Measured], replicas: int) -> tuple[str, bool]:
    """The ratio in words, and whether the target is met."""
    several = max((one.users for one in found if one.is_served and one.replicas > 1), default=0)
    single = max((one.users for one in found if one.is_served and one.replicas == 1), default=0)
    failed = min((one.users for one in found if one.replicas == 1 and one.users > single), default=None)
    if not several or not single:
        return f"no ratio: several replicas serve {several} users, one serves {single}", False
    text = (
        f"several replicas serve {several} users, one serves {single}: {several / single:.2f} times as many"
    )
    if failed is not None:
        text += f"; one does not serve {failed}, so the ratio is at least {several / (failed - 1):.2f}"
    return text, several / single >= target_ratio(replicas)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--users", type=_numbers, required=True, metavar="N[,N...]")
    parser.add_argument("--single", type=_numbers, default=[], metavar="N[,N...]")
    parser.add_argument("--minutes", type=float, default=0.5, help="in which users begin turns")
    parser.add_argument("--ready-seconds", type=float, default=300.0, help="until the replicas are loaded")
    parser.add_argument("--seconds", type=float, default=3_600.0, help="in which measurements are begun")
    parser.add_argument("--log", type=Path, default=Path("replica_scaling.log"), help="of the server")
    parser.add_argument("--json", type=Path, help="file for all reports")
    words = [*sys.argv[1:], "--"]
    end = words.index("--")
    arguments, bench = parser.parse_known_args(words[:end])
    arguments.bench, serve = bench, words[end + 1 : -1]
    os.environ["RAY_AUTH_MODE"] = "token"  # `serve --ray` has made one; this is for the scaling
    found: list[Measured] = []
    with (
        arguments.log.open("w") as log,
        ray_service(serve, arguments.replicas, arguments.ready_seconds, log) as service,
    ):
        service.await_replicas(arguments.replicas)
        say(f"{arguments.replicas} replicas are ready")
        found = run(arguments, service)
        if arguments.json:
            arguments.json.write_text(json.dumps([vars(one) for one in found]))
        text, is_met = verdict(found, arguments.replicas)
        say(text)
    return 0 if is_met else 1


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main())
