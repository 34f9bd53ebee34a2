"""The steps of an acceptance that concern the program itself, in their order. TensorRT-LLM has its own."""

from __future__ import annotations

import time

from app.commands import acceptance_machine, acceptance_model
from app.commands.acceptance_plan import Plan
from app.commands.acceptance_steps import AcceptanceStep


def program_steps(plan: Plan) -> list[AcceptanceStep]:
    """All of them, in order, but for the soak. What changes without this program, such as the free memory, is
    looked at each time."""
    wavs = plan.wav_inputs()

    def no_files() -> str:
        return "random weights take the place of the files" if plan.is_random else ""

    return [
        AcceptanceStep(
            "environment",
            "driver, GPU, compiler, libraries, sound devices",
            lambda did: acceptance_machine.environment(plan, did),
            inputs=time.time_ns,
        ),
        AcceptanceStep(
            "files",
            "the model's files, their sizes and hashes",
            lambda did: acceptance_model.files(plan, did),
            inputs=plan.inputs(),
            why_not=no_files,
        ),
        AcceptanceStep(
            "tensors",
            "name, shape and dtype of each tensor",
            lambda did: acceptance_model.tensors(plan, did),
            inputs=plan.inputs(),
            why_not=no_files,
        ),
        AcceptanceStep(
            "memory",
            "weight formats that fit into the free memory",
            lambda did: acceptance_machine.memory(plan, did),
            ("files",),
            time.time_ns,
        ),
        AcceptanceStep(
            "kernels",
            "kernels against plain torch on the same weights",
            lambda did: acceptance_model.kernels(plan, did),
            ("files", "tensors"),
            plan.inputs(wavs),
        ),
        AcceptanceStep(
            "verify",
            "weight format, flow steps and streamed codes with spoken questions",
            lambda did: acceptance_model.verify(plan, did),
            ("files", "tensors"),
            plan.inputs(wavs),
            lambda: "random weights give no replies to compare" if plan.is_random else "",
        ),
        AcceptanceStep(
            "bench",
            "latency and throughput against their targets",
            lambda did: acceptance_model.bench_torch(plan, did),
            ("files", "tensors"),
            plan.inputs(plan.runs),
        ),
        AcceptanceStep(
            "duplex",
            "replies aloud through the sound devices: echo, loop latency, self-interruptions",
            lambda did: acceptance_machine.duplex(plan, did),
            ("files", "tensors"),
            plan.inputs(plan.duplex_minutes, plan.headphones),
        ),
    ]


def soak_step(plan: Plan) -> AcceptanceStep:
    """Hours without a pause."""
    return AcceptanceStep(
        "soak",
        "conversations without a pause: memory and cache blocks",
        lambda did: acceptance_model.soak(plan, did),
        ("files", "tensors"),
        plan.inputs(plan.soak_hours),
        lambda: "" if plan.soak_hours else "on request only: --soak-hours 24",
    )
