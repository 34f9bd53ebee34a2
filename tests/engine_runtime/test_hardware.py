from __future__ import annotations

import pytest
import torch

from engine_runtime import hardware


def test_the_header_of_a_report_names_what_times_depend_on() -> None:
    found = hardware.environment()
    assert found["torch"] == torch.__version__
    assert found["torch_threads"] == torch.get_num_threads()
    assert int(found["cores"]) >= 1
    assert found["device"] == "cpu"
    assert found["processor"]


def test_accelerators_are_those_that_torch_can_use() -> None:
    assert len(hardware.accelerators()) == torch.cuda.device_count()


def test_only_usable_devices_are_given() -> None:
    assert hardware.usable_device("cpu") == torch.device("cpu")
    with pytest.raises(hardware.AcceleratorError, match="Use --device cpu"):
        hardware.usable_device("cuda:77")
    with pytest.raises(hardware.AcceleratorError, match="'abacus' is no device"):
        hardware.usable_device("abacus")


def test_the_build_of_torch_is_named() -> None:
    assert torch.__version__ in hardware.torch_build()
    assert ("CUDA" in hardware.torch_build()) == (torch.version.cuda is not None)
