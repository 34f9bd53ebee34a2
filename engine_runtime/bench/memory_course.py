"""The memory of a machine in the course of a measurement, phase by phase.

In: the names of phases, at their ends. Out: a table of resident memory and, on a GPU, of device memory as the
driver counts it: that of every program and library on it, also where torch knows nothing of it, as with a
TensorRT engine. A child process, the driver's nvidia-smi, takes a sample every half second, so that nothing
is asked of the driver while times are measured. Runs in the thread of its caller.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any, Self

import psutil
import torch

from engine_runtime.hardware import driver_query, used_memory
from engine_runtime.table import Cell, Section

INTERVAL_MS = 500
COLUMNS = {
    "phase": "in the order of the run; before: what was there before an engine was loaded",
    "until_s": "its end, in seconds from the start of the course",
    "host_mb": "resident memory of the process at its end (10^6 bytes)",
    "device_mb": "used device memory at its end, by the driver: of all programs (10^6 bytes)",
    "torch_mb": "the part of it that torch holds for this process",
    "peak_mb": f"most device memory in use during the phase, of samples every {INTERVAL_MS} ms",
    "sm_mhz": "mean clock of the multiprocessors in these samples",
    "temperature_c": "highest temperature",
    "power_w": "mean power",
}
_QUERY = ("timestamp", "memory.used", "clocks.sm", "temperature.gpu", "power.draw")
_UNTIL_STDIN_CLOSES = '"$@" & sampler=$!; cat > /dev/null; kill $sampler; wait'
"""Shell script that runs its arguments until its standard input is closed, so that nvidia-smi also ends if
this program is killed."""
_TIME = "%Y/%m/%d %H:%M:%S.%f"


@dataclass(frozen=True, slots=True)
class DriverSample:
    """One line of nvidia-smi: `at_s` is the time of day in seconds, None what the GPU does not report."""

    at_s: float
    memory_mb: float | None
    sm_mhz: float | None
    temperature_c: float | None
    power_w: float | None

    @classmethod
    def parse(cls, line: str) -> DriverSample | None:
        """None for an incomplete line, such as the last one of a process that was stopped."""
        at, *values = (value.strip() for value in line.split(","))
        try:
            at_s = datetime.strptime(at, _TIME).timestamp()
        except ValueError:
            return None
        numbers = [_number(value) for value in values]
        if len(numbers) != len(_QUERY) - 1:
            return None
        mib, *others = numbers
        return cls(at_s, None if mib is None else mib * 2**20 / 1e6, *others)


@dataclass(frozen=True, slots=True)
class _Mark:
    phase: str
    at_s: float
    host_mb: float
    device_mb: float | None
    torch_mb: float | None


class MemoryCourse:
    """A context manager; the phases are named with `mark` within its block."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started_s = time.time()
        self._marks: list[_Mark] = []
        self._sampler: subprocess.Popen[bytes] | None = None
        self._lines: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Start to take samples, and note what is in use now."""
        query = driver_query(self._device, *_QUERY)
        if query is not None:
            self._lines = tempfile.TemporaryFile()
            command = ["sh", "-c", _UNTIL_STDIN_CLOSES, "sh", *query, f"--loop-ms={INTERVAL_MS}"]
            self._sampler = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=self._lines, stderr=subprocess.DEVNULL
            )
        self.mark("before")
        return self

    def __exit__(self, *_: object) -> None:
        if self._sampler is not None:
            assert self._sampler.stdin is not None
            self._sampler.stdin.close()
            self._sampler.wait()

    def mark(self, phase: str) -> None:
        """The end of a phase, which began with the one before it."""
        device_mb = torch_mb = None
        if self._device.type == "cuda":
            device_mb = used_memory(self._device) / 1e6
            torch_mb = torch.cuda.memory_reserved(self._device) / 1e6
        host_mb = psutil.Process().memory_info().rss / 1e6
        self._marks.append(_Mark(phase, time.time(), host_mb, device_mb, torch_mb))

    def section(self) -> Section:
        """The phases so far."""
        section, samples = Section("memory in the course of the run", COLUMNS), self.samples()
        began_s = self._started_s
        for mark in self._marks:
            within = [sample for sample in samples if began_s <= sample.at_s < mark.at_s]
            row: dict[str, Cell] = {
                "phase": mark.phase,
                "until_s": mark.at_s - self._started_s,
                "host_mb": mark.host_mb,
                "device_mb": mark.device_mb,
                "torch_mb": mark.torch_mb,
                "peak_mb": max(_known(within, "memory_mb"), default=None),
                "sm_mhz": _mean(_known(within, "sm_mhz")),
                "temperature_c": max(_known(within, "temperature_c"), default=None),
                "power_w": _mean(_known(within, "power_w")),
            }
            section.rows.append(row)
            began_s = mark.at_s
        if self._device.type != "cuda":
            section.note = "device memory does not apply on a CPU"
        elif not samples:
            section.note = "no samples between the phases: nvidia-smi is missing or printed none"
        return section

    def document(self) -> dict[str, Any]:
        """The table, and every sample: seconds from the start, MB, MHz, degrees, watts."""
        samples = [
            [
                sample.at_s - self._started_s,
                sample.memory_mb,
                sample.sm_mhz,
                sample.temperature_c,
                sample.power_w,
            ]
            for sample in self.samples()
        ]
        return self.section().document() | {"samples": samples}

    def samples(self) -> list[DriverSample]:
        """What nvidia-smi has printed so far."""
        if self._lines is None:
            return []
        self._lines.seek(0)
        lines = self._lines.read().decode(errors="replace").splitlines()
        return [sample for line in lines if (sample := DriverSample.parse(line)) is not None]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A]
        return None


def _known(samples: list[DriverSample], name: str) -> list[float]:
    return [value for sample in samples if (value := getattr(sample, name)) is not None]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
