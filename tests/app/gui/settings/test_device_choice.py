"""The fields of device and weight format: what fits, and what is recommended."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication

from app.gui.common.preferences import Preferences
from app.gui.settings.device_choice import DeviceChoice
from app.gui.settings.lookups import DeviceRoom, fitting
from engine_runtime.options import WeightFormat

GB = 10**9
CPU = DeviceRoom("cpu", "a processor", 32 * GB, 20 * GB, {("native", False): 40 * GB})


def gpu(free_gb: float, index: int = 0) -> DeviceRoom:
    """A GPU with this much free memory, and the sizes of a model of nine billion parameters."""
    sizes: dict[WeightFormat, float] = {"native": 24.0, "fp8": 17.0, "int8": 17.5, "int4": 13.0}
    smaller: dict[WeightFormat, float] = {"native": 23.0, "fp8": 13.0, "int8": 13.5, "int4": 8.0}
    needs = {(form, False): round(size * GB) for form, size in sizes.items()}
    needs |= {(form, True): round(size * GB) for form, size in smaller.items()}
    return DeviceRoom(f"cuda:{index}", "a GPU", 24 * GB, round(free_gb * GB), needs)


@pytest.fixture
def choice(qapp: QApplication) -> DeviceChoice:
    choice = DeviceChoice()
    choice.show_preferences(Preferences())
    return choice


@pytest.mark.parametrize(
    ("free_gb", "form"),
    [
        (80, ("native", False)),
        (22, ("fp8", False)),
        (15, ("fp8", True)),
        (13, ("fp8", True)),
        (10, ("int4", True)),
        (6, None),
    ],
)
def test_the_most_accurate_format_that_fits_is_recommended(
    choice: DeviceChoice, free_gb: float, form: tuple[str, bool] | None
) -> None:
    assert fitting(gpu(free_gb)) == form
    choice.show_rooms([CPU, gpu(free_gb)])
    choice.recommend()
    assert choice.device == ("cpu" if form is None else "cuda:0")
    if form is not None:
        assert choice.chosen_format == form
        assert "Choose a smaller" not in choice.note.text()


def test_the_gpu_with_the_most_room_is_recommended(choice: DeviceChoice) -> None:
    choice.show_rooms([CPU, gpu(15), gpu(23, index=1)])
    choice.recommend()
    assert (choice.device, choice.chosen_format) == ("cuda:1", ("fp8", False))


def test_what_does_not_fit_is_said(choice: DeviceChoice) -> None:
    assert choice.note.text() == ""
    assert not choice.weights_box.isEnabled()
    choice.show_rooms([CPU, gpu(22)])
    assert choice.note.text() == (
        "The model needs about 40.0 GB, but there are only 32.0 GB of memory. "
        "Choose a smaller model or weight format."
    )
    choice.show_preferences(Preferences(device="cuda:0", weights="fp8"))
    assert choice.weights_box.isEnabled()
    assert "17.0 GB of 22.0 GB" in choice.note.text()
    choice.weights_box.setCurrentText("native")
    assert "Choose a smaller model" in choice.note.text()
    assert choice.edited(Preferences()) == Preferences(device="cuda:0")


def test_a_device_that_is_not_there_stays_chosen(choice: DeviceChoice) -> None:
    wanted = Preferences(device="cuda:5", weights="int4", saves_memory=True)
    choice.show_preferences(wanted)
    choice.show_rooms([CPU])
    assert choice.edited(Preferences()) == wanted
    assert "not available" in choice.note.text()
