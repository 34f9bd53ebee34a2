"""Ways to cut a matrix into programs: all of them sizes that Triton takes, the one by rule among them."""

from __future__ import annotations

import pytest

from tests.doubles.interpreted_triton import HAS_TRITON, needs_triton

pytestmark = needs_triton
if HAS_TRITON:
    from engine_runtime.executors.cuda.autotune import candidates
    from engine_runtime.executors.cuda.triton_operations import ConfigKey, default_launch


@pytest.mark.parametrize("weight_format", ["native", "fp8", "int8", "int4"])
@pytest.mark.parametrize("columns", [256, 704, 4096, 12288])
def test_candidates_are_different_and_start_with_the_rule(weight_format: str, columns: int) -> None:
    key = ConfigKey(weight_format, (1024, columns), is_gated=False)
    found = candidates(key)
    assert found[0] == default_launch(key)
    assert len(set(found)) == len(found) > 1
    for launch in found:
        assert launch.warps & (launch.warps - 1) == 0
        assert launch.rows & (launch.rows - 1) == 0
