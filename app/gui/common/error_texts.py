"""Errors of the session in the language of the window.

Session and engine report errors in English, for window, command line and log. Those that can appear in the
window are listed here as templates; a matching text is translated with its values inserted, any other is
shown unchanged.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from PySide6.QtCore import QT_TRANSLATE_NOOP, QCoreApplication

from engine_runtime.errors import split_sentences

_CONTEXT = "Errors"
_COMMAND = re.compile(r"`([^`\n]+)`")

_LISTED: tuple[Any, ...] = (
    QT_TRANSLATE_NOOP("Errors", "There is no engine to answer."),
    QT_TRANSLATE_NOOP("Errors", "Choose a model that works in the settings."),
    QT_TRANSLATE_NOOP("Errors", "The question is empty."),
    QT_TRANSLATE_NOOP("Errors", "Type a question first."),
    QT_TRANSLATE_NOOP("Errors", "This model knows only %1."),
    QT_TRANSLATE_NOOP("Errors", "Ask in %1, or choose another model."),
    QT_TRANSLATE_NOOP("Errors", "English"),
    QT_TRANSLATE_NOOP("Errors", "Chinese"),
    QT_TRANSLATE_NOOP("Errors", "Shorten it, or ask it in parts."),
    QT_TRANSLATE_NOOP("Errors", "The question has %1 characters, more than the %2 that fit."),
    QT_TRANSLATE_NOOP("Errors", "That reply has no sound to play again."),
    QT_TRANSLATE_NOOP("Errors", "Choose a spoken reply of this conversation."),
    QT_TRANSLATE_NOOP("Errors", "No microphone was found."),
    QT_TRANSLATE_NOOP("Errors", "No loudspeaker was found."),
    QT_TRANSLATE_NOOP("Errors", "Connect one; it is used as soon as it is found."),
    QT_TRANSLATE_NOOP("Errors", "The microphone %1 cannot be opened."),
    QT_TRANSLATE_NOOP("Errors", "The loudspeaker %1 cannot be opened."),
    QT_TRANSLATE_NOOP("Errors", "Check that no other program uses it exclusively, or choose another one."),
    QT_TRANSLATE_NOOP("Errors", "The sound device %1 was lost."),
    QT_TRANSLATE_NOOP("Errors", "It is reconnected automatically; check its cable or choose another one."),
    QT_TRANSLATE_NOOP("Errors", "Sound is back: %1."),
    QT_TRANSLATE_NOOP("Errors", "The microphone %1 is not connected; %2 takes its place."),
    QT_TRANSLATE_NOOP("Errors", "The loudspeaker %1 is not connected; %2 takes its place."),
    QT_TRANSLATE_NOOP(
        "Errors", "The microphone %1 delivers silence. Check that it is not muted, or choose another one."
    ),
    QT_TRANSLATE_NOOP(
        "Errors", "The microphone %1 loses sound. Choose a higher device latency in the settings."
    ),
    QT_TRANSLATE_NOOP("Errors", "The microphone %1 is back."),
    QT_TRANSLATE_NOOP("Errors", "The loudspeaker %1 is back."),
    QT_TRANSLATE_NOOP("Errors", "The sound system does not answer (%1)."),
    QT_TRANSLATE_NOOP("Errors", "Check that it runs."),
    QT_TRANSLATE_NOOP("Errors", "The sound system does not respond and cannot be closed."),
    QT_TRANSLATE_NOOP("Errors", "Restart this program to use sound again."),
    QT_TRANSLATE_NOOP("Errors", "Echo cancellation needs the package %1, which is not installed."),
    QT_TRANSLATE_NOOP("Errors", "Echo cancellation needs sound at %1 Hz; it is captured at %2."),
    QT_TRANSLATE_NOOP(
        "Errors", "The loudspeaker does not say when it plays, so its echo cannot be cancelled."
    ),
    QT_TRANSLATE_NOOP("Errors", "Use headphones, so that a reply does not interrupt itself."),
    QT_TRANSLATE_NOOP("Errors", "Sound cannot be used: the PortAudio library is missing."),
    QT_TRANSLATE_NOOP("Errors", "The program stood still for %1 s, as while the computer sleeps."),
    QT_TRANSLATE_NOOP("Errors", "What was being said or played then was dropped; continue as before."),
    QT_TRANSLATE_NOOP("Errors", "The flow's caches are too small for %1 flow steps."),
    QT_TRANSLATE_NOOP("Errors", "Choose fewer, or half precision for the codec."),
    QT_TRANSLATE_NOOP("Errors", "The GPU has too little free memory for %1 flow steps."),
    QT_TRANSLATE_NOOP("Errors", "Choose fewer, or free memory."),
    QT_TRANSLATE_NOOP("Errors", "The model is not loaded yet."),
    QT_TRANSLATE_NOOP("Errors", "Wait until it is ready."),
    QT_TRANSLATE_NOOP("Errors", "The microphone is closed."),
    QT_TRANSLATE_NOOP("Errors", "Press Start before you talk."),
    QT_TRANSLATE_NOOP("Errors", "The microphone is muted."),
    QT_TRANSLATE_NOOP("Errors", "Unmute it before you talk."),
    QT_TRANSLATE_NOOP("Errors", "No microphone is open."),
    QT_TRANSLATE_NOOP(
        "Errors", "This desktop runs on Wayland, which gives no program the keys of other windows."
    ),
    QT_TRANSLATE_NOOP("Errors", "Global hotkeys are supported on X11 only."),
    QT_TRANSLATE_NOOP("Errors", "In the window the keys work without it."),
    QT_TRANSLATE_NOOP("Errors", "A global hotkey needs the package python-xlib, which is not installed."),
    QT_TRANSLATE_NOOP("Errors", "Run: %1"),
    QT_TRANSLATE_NOOP("Errors", "The X server cannot be asked for hotkeys (%1)."),
    QT_TRANSLATE_NOOP("Errors", "This keyboard has no key for %1."),
    QT_TRANSLATE_NOOP("Errors", "Another program uses the hotkey %1."),
    QT_TRANSLATE_NOOP("Errors", "Choose other keys in the settings."),
    QT_TRANSLATE_NOOP("Errors", "There is no file %1."),
    QT_TRANSLATE_NOOP("Errors", "Check the name."),
    QT_TRANSLATE_NOOP("Errors", "%1 is not a WAV or FLAC file."),
    QT_TRANSLATE_NOOP("Errors", "%1 is a folder."),
    QT_TRANSLATE_NOOP("Errors", "Name a recording in it."),
    QT_TRANSLATE_NOOP("Errors", "Bundle %1 has no speaker encoder, so it has one voice only."),
    QT_TRANSLATE_NOOP("Errors", "Choose no voice, or use a bundle whose voice can be chosen."),
    QT_TRANSLATE_NOOP("Errors", "The recording of the voice is silent."),
    QT_TRANSLATE_NOOP("Errors", "Record it again, or choose another one."),
    QT_TRANSLATE_NOOP(
        "Errors", "The recording of the voice holds %1 s of speech, and at least %2 s are needed."
    ),
    QT_TRANSLATE_NOOP("Errors", "Choose a longer one."),
    QT_TRANSLATE_NOOP("Errors", "%1 was not written: the disk is full."),
    QT_TRANSLATE_NOOP("Errors", "Free some space or choose another folder."),
    QT_TRANSLATE_NOOP("Errors", "%1 was not written: no permission."),
    QT_TRANSLATE_NOOP("Errors", "Choose a folder that you may write to."),
    QT_TRANSLATE_NOOP("Errors", "%1 was not written: there is no folder %2."),
    QT_TRANSLATE_NOOP("Errors", "Make it first."),
    QT_TRANSLATE_NOOP("Errors", "%1 was not written: %2 takes no files."),
    QT_TRANSLATE_NOOP("Errors", "%1 is not a recorded conversation (%2)."),
    QT_TRANSLATE_NOOP("Errors", "%1 cannot be read: %2."),
    QT_TRANSLATE_NOOP("Errors", "Choose another one."),
    QT_TRANSLATE_NOOP("Errors", "%1 was deleted while it was written."),
    QT_TRANSLATE_NOOP("Errors", "%1 is being written by another window."),
    QT_TRANSLATE_NOOP("Errors", "MOSS Voice is already running (%1), but its window does not answer."),
    QT_TRANSLATE_NOOP("Errors", "MOSS Voice is already running (%1), but has no window that can be reached."),
    QT_TRANSLATE_NOOP(
        "Errors",
        "End that process (kill -9 %1) and start again, or open a second window that keeps nothing: "
        "moss-voice --new-instance",
    ),
    QT_TRANSLATE_NOOP("Errors", "%1 has reached the greatest length of a WAV file."),
    QT_TRANSLATE_NOOP("Errors", "Start another one."),
    QT_TRANSLATE_NOOP("Errors", "The disk is too slow to record the conversation."),
    QT_TRANSLATE_NOOP("Errors", "Choose another folder."),
    QT_TRANSLATE_NOOP("Errors", "That question is not remembered any more."),
    QT_TRANSLATE_NOOP("Errors", "Ask it again yourself."),
    QT_TRANSLATE_NOOP("Errors", "This conversation was held with the bundle %1, and %2 is loaded."),
    QT_TRANSLATE_NOOP("Errors", "Start the program with that bundle, or begin a new conversation."),
    QT_TRANSLATE_NOOP("Errors", "The history of the conversation is damaged."),
    QT_TRANSLATE_NOOP("Errors", "Begin a new one."),
    QT_TRANSLATE_NOOP("Errors", "%1 cannot be deleted: %2."),
    QT_TRANSLATE_NOOP("Errors", "Check its permissions."),
    QT_TRANSLATE_NOOP("Errors", "%1 is damaged."),
    QT_TRANSLATE_NOOP("Errors", "Choose another conversation."),
    QT_TRANSLATE_NOOP("Errors", "There is no bundle folder at %1."),
    QT_TRANSLATE_NOOP("Errors", "%1 is missing."),
    QT_TRANSLATE_NOOP("Errors", "Copy or download the bundle again."),
    QT_TRANSLATE_NOOP("Errors", "The GPU runtime is not used: %1."),
    QT_TRANSLATE_NOOP("Errors", "it belongs to another version of the program"),
    QT_TRANSLATE_NOOP("Errors", "other users of this computer could have changed its folder"),
    QT_TRANSLATE_NOOP("Errors", "The program runs on the processor; `moss-voice gpu install` repairs it."),
    QT_TRANSLATE_NOOP("Errors", "The GPU runtime is installed, but %1."),
    QT_TRANSLATE_NOOP(
        "Errors", "The program goes on as before; start the installation again to repeat the test."
    ),
    QT_TRANSLATE_NOOP("Errors", "No NVIDIA driver was found, without which no GPU can be used."),
    QT_TRANSLATE_NOOP("Errors", "Install a driver that supports CUDA %1, and see that nvidia-smi works."),
    QT_TRANSLATE_NOOP("Errors", "The NVIDIA driver supports CUDA %1, and %2 is needed."),
    QT_TRANSLATE_NOOP("Errors", "Install a newer driver."),
    QT_TRANSLATE_NOOP("Errors", "The disk of %1 has %2 GB free, and %3 GB are needed."),
    QT_TRANSLATE_NOOP("Errors", "Free some space and start again."),
    QT_TRANSLATE_NOOP("Errors", "The disk of %1 is full."),
    QT_TRANSLATE_NOOP("Errors", "Free some space and start again: what was downloaded is kept."),
    QT_TRANSLATE_NOOP("Errors", "%1 cannot be downloaded: %2."),
    QT_TRANSLATE_NOOP("Errors", "Check the connection and start again: what was downloaded is kept."),
    QT_TRANSLATE_NOOP("Errors", "%1 cannot be loaded from %2: %3."),
    QT_TRANSLATE_NOOP(
        "Errors", "Check the connection and run the same fetch again; existing files are kept."
    ),
    QT_TRANSLATE_NOOP("Errors", "The disk of %1 has %2 free, and %3 are needed."),
    QT_TRANSLATE_NOOP("Errors", "Free some space, or choose a folder on another disk with --to."),
    QT_TRANSLATE_NOOP("Errors", "%1 arrived damaged (%2 of %3 bytes, or a wrong hash) and was removed."),
    QT_TRANSLATE_NOOP("Errors", "Run the same fetch again, the other files stay."),
    QT_TRANSLATE_NOOP("Errors", "weights without a licence file (the code of MOSS-Speech is Apache-2.0)"),
    QT_TRANSLATE_NOOP("Errors", "The connection to %1 was lost."),
    QT_TRANSLATE_NOOP("Errors", "%1 closed the connection (%2)."),
    QT_TRANSLATE_NOOP("Errors", "It is being restored, and the conversation goes on then."),
    QT_TRANSLATE_NOOP("Errors", "The connection to %1 is back."),
    QT_TRANSLATE_NOOP("Errors", "%1 is no address of a server."),
    QT_TRANSLATE_NOOP("Errors", "Write it as ws://127.0.0.1:8000 or wss://voice.example.org."),
    QT_TRANSLATE_NOOP("Errors", "The address of the server holds a password."),
    QT_TRANSLATE_NOOP("Errors", "Give the key by itself."),
    QT_TRANSLATE_NOOP("Errors", "The key of the server has characters that a header cannot carry."),
    QT_TRANSLATE_NOOP("Errors", "Check the key."),
    QT_TRANSLATE_NOOP("Errors", "The key would be sent to %1 without encryption."),
    QT_TRANSLATE_NOOP("Errors", "Use wss://, or an SSH tunnel to a port of this machine."),
    QT_TRANSLATE_NOOP(
        "Errors",
        "What you say goes to %1 without encryption, so that others on the network can listen.",
    ),
    QT_TRANSLATE_NOOP("Errors", "%1 refused the connection."),
    QT_TRANSLATE_NOOP("Errors", "Check that the server runs, and its port."),
    QT_TRANSLATE_NOOP("Errors", "%1 did not answer within %2 s."),
    QT_TRANSLATE_NOOP("Errors", "The host of %1 was not found."),
    QT_TRANSLATE_NOOP("Errors", "Check the address and the network."),
    QT_TRANSLATE_NOOP("Errors", "%1 does not accept the key: %2."),
    QT_TRANSLATE_NOOP("Errors", "Check the key of the server."),
    QT_TRANSLATE_NOOP("Errors", "%1 takes no conversation now: %2."),
    QT_TRANSLATE_NOOP("Errors", "Try again later."),
    QT_TRANSLATE_NOOP("Errors", "The certificate of %1 cannot be verified: %2."),
    QT_TRANSLATE_NOOP(
        "Errors",
        "Use the name that it is made out to; for a certificate of your own set SSL_CERT_FILE.",
    ),
    QT_TRANSLATE_NOOP("Errors", "The server could not answer: %1."),
    QT_TRANSLATE_NOOP("Errors", "Ask again; if it happens again, look at the log of the server."),
    QT_TRANSLATE_NOOP(
        "Errors", "A server cannot continue a conversation that was held with a model on this computer."
    ),
    QT_TRANSLATE_NOOP("Errors", "Choose that model in the settings, or begin a new conversation."),
    QT_TRANSLATE_NOOP("Errors", "%1 cannot be started: %2."),
    QT_TRANSLATE_NOOP("Errors", "The engine in %1 did not start: %2"),
    QT_TRANSLATE_NOOP(
        "Errors",
        "Check that this version of the program is installed there, with the extra serve: `-m app doctor` "
        "examines it.",
    ),
    QT_TRANSLATE_NOOP("Errors", "%1 holds no engine: %2 is missing."),
    QT_TRANSLATE_NOOP("Errors", "Build one with `moss-voice trt build`."),
    QT_TRANSLATE_NOOP("Errors", "%1 holds an incomplete engine: %2 is missing."),
    QT_TRANSLATE_NOOP("Errors", "%1 cannot be read: %2."),
    QT_TRANSLATE_NOOP("Errors", "%1 has no table %2; it is not that of an engine."),
    QT_TRANSLATE_NOOP("Errors", "Rebuild the engine with `moss-voice trt build`."),
    QT_TRANSLATE_NOOP("Errors", "%1 was built from other weights (of bundle %2) than bundle %3 has."),
    QT_TRANSLATE_NOOP(
        "Errors", "Convert and build that bundle, or use the one that the engine was built from."
    ),
    QT_TRANSLATE_NOOP("Errors", "A TensorRT-LLM engine runs on an NVIDIA GPU only."),
    QT_TRANSLATE_NOOP("Errors", "%1 is not available: this machine has %2."),
    QT_TRANSLATE_NOOP(
        "Errors",
        "Give --engine-python the interpreter of an environment, such as ~/moss-trt/bin/python.",
    ),
    QT_TRANSLATE_NOOP(
        "Errors",
        "The engine in %1 was not ready after %2 minutes: %3 Start `%4 -m app serve` in a terminal to see "
        "why.",
    ),
    QT_TRANSLATE_NOOP(
        "Errors",
        "The engine's process has ended with status %1: %2 Start the program again; the log file has "
        "details.",
    ),
    QT_TRANSLATE_NOOP("Errors", "Weights in %1 need the Triton kernels, which cannot run here: %2."),
    QT_TRANSLATE_NOOP(
        "Errors",
        "Install them (sudo apt-get install gcc libc6-dev python3-dev), or choose native weights "
        "(--weights native); --kernels torch runs quantized ones about 30 times slower.",
    ),
    QT_TRANSLATE_NOOP(
        "Errors",
        "Choose native weights (--weights native); "
        "--kernels torch runs quantized ones about 30 times slower.",
    ),
    QT_TRANSLATE_NOOP(
        "Errors",
        "Keys and values in fp8 need a GPU of compute capability 8.9 or later. Choose --kv native.",
    ),
    QT_TRANSLATE_NOOP(
        "Errors", "The GPU runs plain torch, several times slower than the Triton kernels: %1."
    ),
    QT_TRANSLATE_NOOP("Errors", "Install them: sudo apt-get install gcc libc6-dev python3-dev."),
    QT_TRANSLATE_NOOP(
        "Errors", "Triton needs a C compiler and the headers of Python, and one of them is missing"
    ),
    QT_TRANSLATE_NOOP("Errors", "See the log file for details."),
    QT_TRANSLATE_NOOP("Errors", "The engine failed with an unexpected %1: %2."),
    QT_TRANSLATE_NOOP("Errors", "Ask again; if it happens again, see the log file for details."),
)
TEMPLATES: tuple[str, ...] = tuple(map(str, _LISTED))


def in_words(text: str) -> str:
    """The text in the language of the window; in English where no template matches it, or its sentences.
    Commands are in quotation marks instead of backticks."""
    return _COMMAND.sub(r"“\1”", _in_language(text))


def _in_language(text: str) -> str:
    if (whole := _translated(text)) is not None:
        return whole
    first, *rest = split_sentences(text, 1)
    parts = [_translated(part) for part in (first, *rest)]
    return " ".join(part or own for part, own in zip(parts, (first, *rest), strict=True)) if rest else text


def _translated(text: str) -> str | None:
    for template, pattern in _patterns():
        if (match := pattern.fullmatch(text)) is not None:
            translated = QCoreApplication.translate(_CONTEXT, template)
            for index, value in enumerate(match.groups(), start=1):
                translated = translated.replace(f"%{index}", _translated(value) or value)
            return translated
    return None


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    parts = ((template, re.split(r"%\d", template)) for template in TEMPLATES)
    return tuple(
        (template, re.compile("(.+)".join(map(re.escape, fixed)), re.S)) for template, fixed in parts
    )
