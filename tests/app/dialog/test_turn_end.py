"""What prosody makes of the network's answer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from app.dialog.end_of_turn import DEFAULT_EAGERNESS, POLICIES, Stage
from app.dialog.turn_end import TurnEndDetector
from engine_runtime.types import Pcm
from tests.app.dialog.test_prosody import voice
from tests.doubles.scripted_detector import ScriptedDetector

SILENT = np.zeros(16_000, dtype=np.float32)
LEVEL = voice(200, 200)
FALLEN = voice(200, 150, 0.3)


def rated(network: float, pcm: Pcm) -> float:
    return TurnEndDetector(ScriptedDetector(network)).probability(pcm)


@pytest.mark.parametrize("pcm", [SILENT, LEVEL, FALLEN], ids=["silent", "level", "fallen"])
def test_a_surer_network_is_a_surer_answer(pcm: Pcm) -> None:
    answers = [rated(network, pcm) for network in (0.0, 0.01, 0.3, 0.9, 0.99)]
    assert all(0.0 < low < high < 1.0 for low, high in pairwise(answers))
    assert rated(1.0, pcm) < 1.0


@pytest.mark.parametrize("network", [0.05, 0.5, 0.95])
def test_a_voice_that_has_fallen_has_rather_finished(network: float) -> None:
    assert rated(network, FALLEN) > rated(network, LEVEL)


def test_neither_the_network_nor_prosody_decides_alone() -> None:
    policy = POLICIES[DEFAULT_EAGERNESS]
    assert policy is not None
    finished = voice(200, 140, 0.15)
    assert policy.stage(rated(0.99, finished)) is Stage.LIKELY
    assert policy.stage(rated(0.01, finished)) is not Stage.LIKELY
    assert policy.stage(rated(0.99, LEVEL)) is Stage.UNLIKELY


def test_a_turn_without_prosody_is_rated_by_the_network() -> None:
    assert rated(0.99, SILENT) > 0.7
    assert rated(0.01, SILENT) < 0.1
