"""The steps of an acceptance that concern TensorRT-LLM: the small model first, which takes minutes, then the
model.

In: the plan, with the interpreter of another environment if the library is not installed in this one. Out: a
list of `AcceptanceStep`s, which run `moss-voice trt` there. They are skipped where there is no library. Main
thread.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from app import paths
from app.commands.acceptance_plan import Plan, document_of, require_success, verdict_of
from app.commands.acceptance_program import bench
from app.commands.acceptance_steps import AcceptanceStep, Figure, StepOutcome
from app.settings import serve_options
from engine_runtime.tensorrt.llm import library

GROUP = "trt"
_TINY = "nano"
_ADVICE = "See the table at the end of packaging/TENSORRT.md, and the step's files in the folder logs."


def trt_steps(plan: Plan) -> list[AcceptanceStep]:
    """All of them, in order."""
    return [replace(step, why_not=lambda: _why_not(plan)) for step in _steps(plan)]


def _steps(plan: Plan) -> list[AcceptanceStep]:
    chosen = (plan.trt_format, str(plan.engine_python))
    of_model = plan.inputs(*chosen)
    return [
        AcceptanceStep(
            "trt-tiny",
            "the shipped small model: convert, quantize, build, inspect, verify",
            lambda did: _tiny(plan, did),
            inputs=plan.inputs(*chosen, "tiny"),
        ),
        AcceptanceStep(
            "trt-convert",
            "a checkpoint of the model",
            lambda did: _convert(plan, did),
            ("files", "tensors", "trt-tiny"),
            of_model,
        ),
        AcceptanceStep(
            "trt-quantize",
            f"the checkpoint in {plan.trt_format}",
            lambda did: _quantize(plan, did),
            ("trt-convert",),
            plan.inputs(*chosen, plan.calibration_prompts, plan.wav_inputs()),
        ),
        AcceptanceStep(
            "trt-build",
            "an engine of that",
            lambda did: _build(plan, did),
            ("trt-quantize",),
            of_model,
        ),
        AcceptanceStep(
            "trt-inspect",
            "precision, limits and tensors of the engine",
            lambda did: _inspect(plan, did),
            ("trt-build",),
            of_model,
        ),
        AcceptanceStep(
            "trt-verify",
            "the engine against torch",
            lambda did: _verify(plan, did),
            ("trt-build",),
            plan.inputs(*chosen, plan.wav_inputs()),
        ),
        AcceptanceStep(
            "trt-bench",
            "latency and throughput with the engine, against their targets",
            lambda did: _bench(plan, did),
            ("trt-build", "trt-verify"),
            plan.inputs(*chosen, plan.runs),
        ),
    ]


def _why_not(plan: Plan) -> str:
    """Why none of these steps can run here."""
    if plan.is_random:
        return "random weights have no files to convert"
    if plan.engine_python is None and library.installed_version("tensorrt-llm") is None:
        return "TensorRT-LLM is not installed here, and --engine-python names no environment with it"
    return ""


def _tiny(plan: Plan, did: list[str]) -> StepOutcome:
    """Runs every tool once, so that anything the library rejects is known within minutes. Without a report on
    the quantized checkpoint: the format costs a small model more than a large one."""
    bundle, folder = paths.bundles_dir() / _TINY, plan.out / "trt-tiny"
    shutil.rmtree(folder, ignore_errors=True)
    device = f"--device={plan.settings.engine.device}"
    plain, quantized = str(folder / "checkpoint"), str(folder / f"checkpoint-{plan.trt_format}")
    _trt(plan, did, "convert", str(bundle), f"--to={plain}")
    words = [f"--to={quantized}", f"--format={plan.trt_format}", f"--bundle={bundle}", device]
    _trt(plan, did, "quantize", plain, *words, "--prompts=22", "--no-report")
    figures = list[Figure]()
    for checkpoint in (quantized, plain):
        engine = str(folder / Path(checkpoint).name.replace("checkpoint", "engine"))
        _trt(plan, did, "build", checkpoint, f"--to={engine}", "--json")
        document = document_of(_trt(plan, did, "inspect", engine, device, "--json"))
        figures += _engine_figures(document, f"{document['precision']} engine: ")
    words = [engine, f"--bundle={bundle}", device, "--json"]
    outcome = verdict_of(plan.run(did, GROUP, "verify", *words, python=plan.engine_python), _ADVICE)
    return replace(outcome, figures=(*figures, *outcome.figures))


def _convert(plan: Plan, did: list[str]) -> StepOutcome:
    to = _checkpoint(plan)
    _trt(plan, did, "convert", str(plan.bundle), f"--to={to}")
    return StepOutcome.judge([Figure("checkpoint, GB", _gigabytes(to))], _ADVICE)


def _quantize(plan: Plan, did: list[str]) -> StepOutcome:
    to = _quantized(plan)
    shutil.rmtree(to, ignore_errors=True)  # of an earlier run; the calibration is beside the plain checkpoint
    words = [
        f"--to={to}",
        f"--format={plan.trt_format}",
        f"--bundle={plan.bundle}",
        f"--prompts={plan.calibration_prompts}",
    ]
    words += [f"--device={plan.settings.engine.device}", *plan.wav_words(), "--json"]
    result = plan.run(did, GROUP, "quantize", str(_checkpoint(plan)), *words, python=plan.engine_python)
    outcome = verdict_of(
        result, f"Calibrate with recordings of your own users: --wavs DIR. {_ADVICE}", table="heads"
    )
    return replace(outcome, figures=(Figure("checkpoint, GB", _gigabytes(to)), *outcome.figures))


def _build(plan: Plan, did: list[str]) -> StepOutcome:
    shutil.rmtree(_engine(plan), ignore_errors=True)
    words = [f"--to={_engine(plan)}", f"--timing-cache={plan.out / 'timing.cache'}", "--json"]
    document = document_of(_trt(plan, did, "build", str(_quantized(plan)), *words))
    figures = [Figure(name.replace("_", " "), value) for name, value in document.items() if _is_plain(value)]
    return StepOutcome.judge(figures, _ADVICE)


def _inspect(plan: Plan, did: list[str]) -> StepOutcome:
    device = f"--device={plan.settings.engine.device}"
    document = document_of(_trt(plan, did, "inspect", str(_engine(plan)), device, "--json"))
    return StepOutcome.judge(_engine_figures(document, ""), _ADVICE)


def _engine_figures(document: dict[str, Any], prefix: str) -> list[Figure]:
    names = (
        "library",
        "bytes",
        "load_seconds",
        "activation_bytes",
        "fused_layers",
        "contract",
        "inputs",
        "outputs",
    )
    return [Figure(prefix + name.replace("_", " "), document[name]) for name in names]


def _verify(plan: Plan, did: list[str]) -> StepOutcome:
    """The reference takes a few GB beside nothing: the engine is closed before."""
    options = replace(plan.settings, bundle=plan.bundle, engine=_without_formats(plan))
    words = [str(_engine(plan)), *serve_options(options), *plan.wav_words(), "--json"]
    advice = f"The first token that differs points to the cause. {_ADVICE}"
    return verdict_of(plan.run(did, GROUP, "verify", *words, python=plan.engine_python), advice)


def _bench(plan: Plan, did: list[str]) -> StepOutcome:
    engine = replace(_without_formats(plan), backend="trtllm", engine=_engine(plan))
    words = serve_options(replace(plan.settings, bundle=plan.bundle, engine=engine))
    return bench(plan, did, words, plan.engine_python)


def _without_formats(plan: Plan) -> Any:
    """The options of the engine without those that are fixed when an engine is built."""
    return replace(
        plan.settings.engine, weight_format="native", kv_dtype="native", rounds_tails=False, dtype=None
    )


def _trt(plan: Plan, did: list[str], step: str, *words: str) -> Any:
    """Run a step of `moss-voice trt`. MossVoiceError, its own, if it fails."""
    result = plan.run(did, GROUP, step, *words, python=plan.engine_python)
    require_success(result)
    return result


def _checkpoint(plan: Plan) -> Path:
    return plan.out / GROUP / "checkpoint"


def _quantized(plan: Plan) -> Path:
    return plan.out / GROUP / f"checkpoint-{plan.trt_format}"


def _engine(plan: Plan) -> Path:
    return plan.out / GROUP / f"engine-{plan.trt_format}"


def _gigabytes(folder: Path) -> float:
    return round(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e9, 3)


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool)
