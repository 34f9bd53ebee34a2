"""Processes that spin beside a measurement: there when it begins, gone when it ends, however it ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import psutil
import pytest

from engine_runtime.bench import busy
from engine_runtime.bench.busy import busy_processes
from engine_runtime.bench.measuring import BenchError


def test_they_spin_within_the_block_and_are_gone_behind_it() -> None:
    with busy_processes(2) as processes:
        assert len(processes) == 2
        used = [psutil.Process(process.pid).cpu_times().user for process in processes]
        give_up = time.monotonic() + 20
        while any(
            psutil.Process(process.pid).cpu_times().user <= before
            for process, before in zip(processes, used, strict=True)
        ):
            assert time.monotonic() < give_up
    assert all(process.returncode is not None for process in processes)


def test_none_is_none() -> None:
    with busy_processes(0) as processes:
        assert processes == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BenchError("no")])
def test_an_interrupt_ends_them(error: BaseException) -> None:
    kept: list[subprocess.Popen[bytes]] = []
    with contextlib.suppress(type(error)), busy_processes(1) as processes:
        kept = processes
        raise error
    assert kept[0].returncode is not None


def test_they_end_with_the_program_that_started_them() -> None:
    code = (
        "import os\nfrom engine_runtime.bench.busy import busy_processes\n"
        "with busy_processes(1) as processes:\n    print(processes[0].pid, flush=True)\n    os._exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid, give_up = int(done.stdout), time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_one_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "_PROGRAM", "raise SystemExit(3)")
    with pytest.raises(BenchError, match="did not start"), busy_processes(2):
        pytest.fail("the block ran")
