"""The inputs of a shared step: what is set goes to the device when it is sent, and not before."""

from __future__ import annotations

import torch

from engine_runtime.executors.cuda.batch_inputs import ROW_FIELDS, BatchInputs
from engine_runtime.lm.step import ScheduledSequence, Tails

CPU = torch.device("cpu")


def row(token: int, position: int, table: list[int], tails: Tails) -> ScheduledSequence:
    return ScheduledSequence([token], position, table, 0, 0, 0, is_prefill=False, tails=tails)


def on_device(inputs: BatchInputs, *names: str) -> list[list[float]]:
    return [inputs[name].tolist() for name in names]


def test_values_are_staged_until_they_are_sent() -> None:
    inputs = BatchInputs(4, 3, CPU)
    first, second = row(7, 2, [5], Tails(text=False)), row(8, 6, [2, 4], Tails())
    inputs.set_rows([first, second], 4, 10)
    inputs.send()
    inputs.set_rows([row(9, 7, [2, 4], Tails())], 4, 10)
    assert on_device(inputs, "token", "position", "text_position") == [
        [7, 8, 0, 0],
        [2, 6, -1, -1],
        [-1, 6, -1, -1],
    ]
    assert on_device(inputs, "kept_row", "sequence") == [[22, -1, -1, -1], [0, 1, 0, 0]]
    assert inputs.table[:2].tolist() == [[50, 0, 0], [20, 40, 0]]
    inputs.send()
    assert on_device(inputs, "token", "position") == [[9, 0, 0, 0], [7, -1, -1, -1]]
    assert inputs.table[0].tolist() == [20, 40, 0]


def test_two_steps_in_succession_have_different_slots() -> None:
    """The device may take the fields of the first one after those of the second one were sent."""
    waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
    inputs = BatchInputs(4, 3, CPU, lambda host, device: waiting.append((host, device)))
    slots = []
    for token in (7, 8, 9):
        inputs.set_rows([row(token, 2, [5], Tails())], 4, 10)
        slots.append(inputs.send())
        if len(waiting) == 2:  # the step before last has ended
            host, device = waiting.pop(0)
            device.copy_(host)
            assert on_device(inputs, "token")[0][0] == token - 1
            first = 4 * slots[-2]
            assert on_device(inputs, "result_row") == [list(range(first, first + 4))]
    assert slots[0] == slots[2] != slots[1]


def test_rows_follow_those_of_the_step_before() -> None:
    inputs = BatchInputs(4, 3, CPU)
    inputs.set_rows([row(7, place, [place], Tails()) for place in range(3)], 4, 10)
    slot = inputs.send()
    assert on_device(inputs, "follows") == [[-1] * 4]
    inputs.set_rows([row(0, place, [place], Tails()) for place in range(2)], 4, 10)
    inputs.follow(slot, [2, 0])
    assert inputs.send() != slot
    written = dict(enumerate(on_device(inputs, "result_row")[0]))
    assert on_device(inputs, "follows") == [[4 * slot + 2, 4 * slot, -1, -1]]
    assert not {4 * slot, 4 * slot + 2} & set(written.values())
    inputs.set_rows([row(7, 3, [0], Tails())], 4, 10)
    inputs.send()
    assert on_device(inputs, "follows") == [[-1] * 4]


def test_a_step_may_be_all_padding() -> None:
    inputs = BatchInputs(4, 3, CPU)
    inputs.set_rows([row(5, place, [place], Tails(text=False)) for place in range(3)], 4, 10)
    inputs.follow(0, [0, 1, 2])
    inputs.pad_all()
    inputs.send()
    assert {name: inputs[name].unique().tolist() for name in (*ROW_FIELDS, "follows")} == {
        "token": [0],
        "position": [-1],
        "text_position": [-1],
        "audio_position": [-1],
        "kept_row": [-1],
        "sequence": [0],
        "follows": [-1],
    }


def test_only_a_table_that_has_changed_is_copied() -> None:
    inputs, table = BatchInputs(2, 3, CPU), [1]
    inputs.set_rows([row(3, 3, table, Tails())], 4, 10)
    inputs.send()
    inputs.table.zero_()
    inputs.set_rows([row(3, 3, table, Tails())], 4, 10)
    inputs.send()
    assert inputs.table[0].tolist() == [0, 0, 0]
    table.append(2)
    inputs.set_rows([row(3, 4, table, Tails())], 4, 10)
    inputs.send()
    assert inputs.table[0].tolist() == [10, 20, 0]


def test_groups_are_consecutive_rows_of_one_sequence() -> None:
    inputs = BatchInputs(16, 3, CPU)
    prefill = ScheduledSequence([1] * 9, 3, [1, 2, 3], 0, 0, 0, is_prefill=True)
    inputs.set_rows([row(7, 2, [0], Tails()), prefill, row(8, 0, [4], Tails())], 4, 10)
    inputs.send()
    groups = on_device(inputs, "group_row", "group_count", "group_first")
    assert [values[:6] for values in groups] == [
        [0, 1, 5, 9, 10, 0],
        [1, 4, 4, 1, 1, 0],
        [0, 1, 1, 1, 10, 0],  # the first new row of the sequence, also in its later groups
    ]
    inputs.pad_all()
    inputs.send()
    assert not inputs["group_count"].any()
    assert not inputs["group_first"].any()
