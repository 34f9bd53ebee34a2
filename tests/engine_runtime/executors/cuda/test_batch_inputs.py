"""The inputs of a shared step: what is set goes to the device when it is sent, and not before."""

from __future__ import annotations

import numpy as np
import torch

from engine_runtime.executors.cuda.batch_inputs import ROW_FIELDS, BatchInputs
from engine_runtime.lm.step import ScheduledSequence, Tails

CPU = torch.device("cpu")


def row(token: int, position: int, table: list[int], tails: Tails) -> ScheduledSequence:
    return ScheduledSequence([token], position, table, 0, 0, 0, is_prefill=False, tails=tails)


def on_device(inputs: BatchInputs, *names: str) -> list[list[float]]:
    return [inputs[name].tolist() for name in names]


def test_values_are_staged_until_they_are_sent() -> None:
    taken: list[int] = []
    inputs = BatchInputs(4, 3, CPU, lambda host, device: taken.append(int(device.copy_(host).sum())))
    first, second = row(7, 2, [5], Tails(text=False)), row(8, 6, [2, 4], Tails())
    inputs.set_rows([first, second], 4, 10)
    inputs.send()
    # As in a captured step: this is when the device reads, while the next step may be set already.
    inputs.set_rows([row(9, 7, [2, 4], Tails())], 4, 10)
    inputs.take()
    assert on_device(inputs, "token", "position", "text_position") == [
        [7, 8, 0, 0],
        [2, 6, -1, -1],
        [-1, 6, -1, -1],
    ]
    assert on_device(inputs, "kept_row", "sequence") == [[22, -1, -1, -1], [0, 1, 0, 0]]
    assert inputs.table[:2].tolist() == [[50, 0, 0], [20, 40, 0]]
    inputs.send()
    inputs.take()
    assert on_device(inputs, "token", "position") == [[9, 0, 0, 0], [7, -1, -1, -1]]
    assert inputs.table[0].tolist() == [20, 40, 0]


def test_sampled_ids_and_ended_rows_are_set_in_place() -> None:
    inputs = BatchInputs(4, 3, CPU)
    inputs.set_rows([row(0, place, [place], Tails(text=False)) for place in range(3)], 4, 10)
    inputs.set_sampled(np.array([101, 102, 103]), np.array([1, 2, 3]))
    inputs.pad_rows(np.array([1]))
    inputs.send()
    assert on_device(inputs, "token", "seen_audio") == [[101, 102, 103, 0], [1, 2, 3, 0]]
    assert on_device(inputs, "position", "audio_position") == [[0, -1, 2, -1]] * 2
    assert on_device(inputs, "text_position", "kept_row") == [[-1] * 4, [0, -1, 10, -1]]
    inputs.pad_all()
    inputs.send()
    assert {name: inputs[name].unique().tolist() for name in ROW_FIELDS} == {
        "token": [0],
        "position": [-1],
        "text_position": [-1],
        "audio_position": [-1],
        "sequence": [0],
        "kept_row": [-1],
    }


def test_only_a_table_that_has_changed_is_copied() -> None:
    inputs, table = BatchInputs(2, 3, CPU), [1]
    inputs.set_rows([row(3, 3, table, Tails())], 4, 10)
    inputs.send_table()
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
