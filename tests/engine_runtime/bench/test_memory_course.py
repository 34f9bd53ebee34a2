from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine_runtime.bench import memory_course
from engine_runtime.bench.memory_course import DriverSample, MemoryCourse

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_on_a_cpu_the_course_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # What malloc returns may be resident already: the process's own memory need not grow with what a test
    # holds.
    resident = iter((500_000_000, 564_000_000))
    memory = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=next(resident)))
    monkeypatch.setattr("engine_runtime.bench.memory_course.psutil.Process", lambda: memory)
    with MemoryCourse(CPU) as course:
        course.mark("load")
    section = course.section()
    before, load = section.rows
    assert (before["phase"], load["phase"]) == ("before", "load")
    assert (before["host_mb"], load["host_mb"]) == (500.0, 564.0)
    assert load["device_mb"] is load["peak_mb"] is None
    assert section.note == "device memory does not apply on a CPU"
    assert course.document()["samples"] == []


@pytest.fixture
def _gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose driver reports 1,000 MiB more with each sample, every hundredth of a second."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\n[ "$4" = --loop-ms=500 ] || exit 1\nmib=1000\nwhile :; do\n'
        'echo "$(date "+%Y/%m/%d %H:%M:%S.%3N"), $mib, 1980, 45, [N/A]"\n'
        "mib=$((mib + 1000))\nsleep 0.01\ndone\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(program))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="a-b"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (6_000_000_000, 24_000_000_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5_000_000_000)


@pytest.mark.slow
@pytest.mark.usefixtures("_gpu")
def test_on_a_gpu_it_is_what_the_driver_counts_also_between_the_phases() -> None:
    with MemoryCourse(GPU) as course:
        for phase in ("load", "replies"):
            number = len(course.samples())
            while len(course.samples()) < number + 3:
                time.sleep(0.01)
            course.mark(phase)
    number = len(course.samples())
    time.sleep(0.05)
    assert len(course.samples()) == number  # nvidia-smi has ended
    section = course.section()
    _, load, replies = section.rows
    assert (load["device_mb"], load["torch_mb"]) == (18_000, 5_000)
    assert float(load["peak_mb"] or 0) >= 2 * 2**20 / 1e3
    assert float(replies["peak_mb"] or 0) > float(load["peak_mb"] or 0)
    assert (replies["sm_mhz"], replies["temperature_c"], replies["power_w"]) == (1980, 45, None)
    assert section.note == ""
    samples = course.document()["samples"]
    assert len(samples) >= 6
    assert [sample[1] for sample in samples] == sorted(sample[1] for sample in samples)


@pytest.mark.slow
@pytest.mark.usefixtures("_gpu")
def test_samples_end_with_a_program_that_is_killed(tmp_path: Path) -> None:
    command = ["sh", "-c", memory_course._UNTIL_STDIN_CLOSES, "sh", str(tmp_path / "nvidia-smi"), *"123"]
    with subprocess.Popen(
        [*command, "--loop-ms=500"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as sampler:
        assert sampler.stdin is not None
        assert sampler.stdout is not None
        assert sampler.stdout.readline()
        sampler.stdin.close()  # as the system does at the end of a process
        while sampler.stdout.readline():  # until the last one that holds the other end is gone
            pass


@pytest.mark.usefixtures("_gpu")
def test_without_nvidia_smi_the_ends_of_the_phases_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with MemoryCourse(GPU) as course:
        course.mark("load")
    section = course.section()
    assert section.rows[1]["device_mb"] == 18_000
    assert section.rows[1]["peak_mb"] is None
    assert "nvidia-smi is missing" in section.note


@pytest.mark.parametrize("line", ["", "2026/11/27 05:00:00.000, 1", "Unable to determine, 1, 2, 3, 4"])
def test_a_line_that_is_no_sample(line: str) -> None:
    assert DriverSample.parse(line) is None
