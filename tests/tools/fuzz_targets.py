"""Targets of the fuzz tests in the process of tests/tools/fuzz_worker.py: one function per kind of input.

Each writes its input into the current folder, which is private to that process, uses it as the program does,
and returns values for the check.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from engine_runtime.work import run_alone

P = ParamSpec("P")
R = TypeVar("R")


def _prepared_by(prepare: Callable[[], object]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`prepare` is called once, and its time and memory are not counted."""

    def mark(target: Callable[P, R]) -> Callable[P, R]:
        is_done = False

        def once() -> None:
            nonlocal is_done
            if not is_done:
                prepare()
                is_done = True

        target.prepare = once  # type: ignore[attr-defined]
        return target

    return mark


# WAV files


def _import_wav() -> None:
    from app.audio import wav  # noqa: F401


@_prepared_by(_import_wav)
def read_wav(content: bytes) -> tuple[int, bytes, bytes]:
    """Rate, the samples at once, and the samples in blocks, as bytes of float32."""
    import numpy as np

    from app.audio.wav import WavReader, read_wav

    file = Path("case.wav")
    file.write_bytes(content)
    pcm, rate = read_wav(file)
    with WavReader(file) as reader:
        blocks = list(reader.blocks(7))
    return rate, pcm.tobytes(), np.concatenate(blocks).tobytes()


# bundle.toml

_BUNDLE = Path("bundle")


def _make_bundle() -> None:
    from engine_runtime import engine  # noqa: F401
    from tests.factories.bundle import make_random_bundle

    make_random_bundle(_BUNDLE)
    for is_deep in (False, True):
        open_bundle((_BUNDLE / "bundle.toml").read_bytes(), is_deep)


@_prepared_by(_make_bundle)
def open_bundle(manifest: bytes, is_deep: bool) -> dict[str, Any]:
    """What the bundle says; its networks are configured, or (deep) loaded and asked."""
    from engine_runtime.bundle.bundle import Bundle
    from engine_runtime.engine import Engine
    from engine_runtime.models.bigvgan import check_config
    from engine_runtime.models.flow import FlowConfig
    from engine_runtime.models.hift import HiFTConfig
    from engine_runtime.models.moss_lm import MossLMConfig
    from engine_runtime.models.whisper_vq import WhisperVQConfig
    from engine_runtime.types import Modality, ReplyDone

    (_BUNDLE / "bundle.toml").write_bytes(manifest)
    bundle = Bundle.open(_BUNDLE, verify="size")
    MossLMConfig.from_dict(bundle.lm.config)
    WhisperVQConfig.from_dict(bundle.speech_encoder.config)
    FlowConfig.from_dict(bundle.flow.config)
    (check_config if bundle.vocoder.kind == "bigvgan" else HiFTConfig.from_dict)(bundle.vocoder.config)
    if is_deep:
        engine = Engine.load(bundle)
        try:
            turn = run_alone(engine.open_turn(engine.new_conversation(), 1, Modality.TEXT))
            run_alone(turn.push_text("What?"))
            last = list(run_alone(turn.commit(Modality.TEXT)))[-1]
            assert isinstance(last, ReplyDone), last
            assert last.finish_reason in ("stop", "length"), last
        finally:
            engine.close()
    return {
        "name": bundle.name,
        "kv_blocks": bundle.lm.kv_blocks,
        "shared_layers": bundle.lm.config["shared_layers"],
        "sample_rate": bundle.speech_encoder.sample_rate,
        "steps": bundle.flow.steps,
        "hop": bundle.vocoder.mel.hop,
        "max_new": bundle.lm.sampling_text.max_new,
    }


# safetensors files


def _import_weights() -> None:
    from app.commands import inspect  # noqa: F401
    from engine_runtime.bundle import weights  # noqa: F401


@_prepared_by(_import_weights)
def load_weights(content: bytes, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """The values of tensors of these shapes, float32; and what the file holds by itself."""
    from app.commands.inspect import count_parameters
    from engine_runtime.bundle.weights import stored_tensors, stream_tensors

    file = Path("case.safetensors")
    file.write_bytes(content)
    stored = {name: tensor.shape for name, tensor in stored_tensors([file]).items()}
    parameters = count_parameters(file)
    loaded = {name: tensor.float().numpy().tobytes() for name, tensor in stream_tensors(file, shapes)}
    return {"stored": stored, "parameters": parameters, "loaded": loaded}


# tokenizer.json


def _import_tokenizer() -> None:
    from engine_runtime.lm import chat_template as prompt  # noqa: F401


TEXTS = ("", "What is two plus three?", "模型 😀\n\0", "<|im_start|>user", "x" * 2_000)


@_prepared_by(_import_tokenizer)
def use_tokenizer(content: bytes, special: dict[str, int], text_vocab: int) -> list[tuple[list[int], str]]:
    """Ids of some texts, and the text of those ids."""
    from engine_runtime.bundle.bundle import PromptTexts, SpecialIds
    from engine_runtime.lm.chat_template import IncrementalText, Prompt, TextTokenizer
    from engine_runtime.types import Modality

    file = Path("tokenizer.json")
    file.write_bytes(content)
    ids = SpecialIds(**special)
    tokenizer = TextTokenizer(file, ids, text_vocab)
    prompt = Prompt(tokenizer, ids, PromptTexts("Answer with speech.", "Answer with text."))
    rows = [*prompt.system(Modality.TEXT), *prompt.user_text("What?"), *prompt.end_turn()]
    assert all(0 <= row.text < text_vocab for row in rows), rows
    found = []
    for text in TEXTS:
        encoded = tokenizer.encode(text)
        found.append((encoded, tokenizer.decode(encoded)))
        parts = IncrementalText(tokenizer)
        shown = "".join(map(parts.push, encoded[:50])) + parts.finish()
        assert shown == parts.text
    return found


# window.ini


def _import_preferences() -> None:
    from app.gui.common import preferences  # noqa: F401


@_prepared_by(_import_preferences)
def use_settings(content: bytes) -> dict[str, Any]:
    """The preferences of a file, used as the window does at its start, and what they are once saved."""
    import dataclasses

    from app.gui.common.preferences import PreferenceStore
    from app.settings import StartSettings

    file = Path("window.ini")
    file.write_bytes(content)
    store = PreferenceStore(file)
    loaded = store.load()
    loaded.session_settings()
    loaded.start_settings(StartSettings())
    for key in ("geometry", "splitter"):
        store.kept_bytes(key)
    is_saved = store.save(loaded)
    again = PreferenceStore(file).load()
    return {"loaded": dataclasses.asdict(loaded), "is_saved": is_saved, "again": dataclasses.asdict(again)}


# command lines


def _prepare_cli() -> None:
    """NOTE: no engine is loaded, no window opened, nothing fetched or measured: what is tried is what comes
    before."""
    from app import main
    from app.commands import doctor, fetch, window
    from engine_runtime.bench import ceilings
    from engine_runtime.codec import loading
    from engine_runtime.engine import Engine
    from engine_runtime.errors import BundleError
    from tests.factories.bundle import make_random_bundle

    def stop(*arguments: object, **named: object) -> None:
        raise BundleError("Here the engine would be loaded.", "Stop.")

    def ended(*arguments: object) -> int:
        return 0

    Engine.load = stop  # type: ignore[assignment, method-assign]
    loading.load_speech_encoder = stop  # type: ignore[assignment]
    ceilings.CPU_COPY_BYTES, ceilings.CPU_MATRIX = 4_096, 16  # what `bench` measures before it loads
    main.open_window = ended  # type: ignore[assignment]
    for module in (doctor, fetch, window):
        module.run = ended  # type: ignore[attr-defined]
    make_random_bundle(Path("cli/bundle"))
    home = Path("cli/home")
    home.mkdir()
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        os.environ[f"XDG_{name}_HOME"] = str(home.resolve() / name)
    os.environ["HOME"] = str(home.resolve())
    for words in (
        "talk --text x",
        "talk --in speech.wav",
        "verify",
        "verify --encoder",
        "bench",
        "demo",
        "inspect",
        "trt convert x",
    ):
        run_command(words.split())


@_prepared_by(_prepare_cli)
def run_command(words: list[str]) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command line, in a folder that holds a file of each kind."""
    from app.audio.wav import write_wav
    from app.cli import main

    folder = Path("cli/work").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    import numpy as np

    write_wav(folder / "speech.wav", np.full(8_000, 0.1, np.float32), 16_000)
    (folder / "text.wav").write_text("no audio")
    (folder / "folder").mkdir()
    (folder / "link.wav").symlink_to("speech.wav")
    (folder / "bundle").symlink_to(folder.parent / "bundle")
    os.mkfifo(folder / "pipe")
    before = Path.cwd()
    os.chdir(folder)
    out, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            status = _status(lambda: main(words))
    finally:
        os.chdir(before)
    return status, out.getvalue(), errors.getvalue()


def _status(run: Callable[[], int]) -> int:
    try:
        return run()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else -1
