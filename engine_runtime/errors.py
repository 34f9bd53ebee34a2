"""User-facing errors. Every message names cause and remedy.

MossVoiceError
├── BundleError          a bundle that cannot be used: missing file, wrong hash, unknown key, wrong shape
│   └── MelMismatchError two stages disagree about the mel spectrogram between them
├── FetchError           a released model that cannot be downloaded or found
├── AudioInputError      a WAV or device without usable audio
├── AudioDeviceError     a sound device that is missing, busy or lost
├── LanguageError        a question in a script that the model does not know
├── OutOfBlocksError     the KV pool holds no free block for the conversation
├── FlowCacheError       no room in the flow's caches for another reply beside those being spoken
├── ContextLengthError   a prompt longer than the model's context
├── ExecutorError        a forward step that was refused or failed, names the tensor
├── EngineError          a TensorRT engine that cannot be built or loaded, or does not belong to the bundle
└── ExportError          a file that could not be written (disk full, no permission)

`redact` takes credentials out of any text before it leaves the program: a log, a report, a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

_USERINFO = re.compile(r"(?<=://)[^\s/?#]*@")
_QUERY = re.compile(r"(://[^\s?#\"'<>]*\?)[^\s#\"'<>]+")
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
_BEARER = re.compile(r"(?i)\b(bearer)\s+[\w.~+/=-]{8,}")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_QUOTED = re.compile(r"""(?<!\w)(['"])(?:\\.|(?!\1)[^\\])*\1(?!\w)""", re.DOTALL)
"""A value as `repr` writes it, such as the name of a device; it may hold the end of a sentence. A backslash
matches in one way only: in two, a value that was cut off after n of them would take 2**n steps."""


@dataclass(frozen=True, init=False)
class Problem:
    """What is wrong and what to do: two templates with `{name}` fields, and the values of the fields.

    A template follows the rules of `str.format` and is the id of its message: the window translates it and
    formats the translation. A value may be a Problem, which is translated, too. Values are data: braces and
    full stops in them change nothing.
    """

    cause: str
    remedy: str
    values: Mapping[str, object] = field(hash=False)

    def __init__(self, cause: str, remedy: str = "", /, **values: object) -> None:
        """An exception among the values is kept as its problem or text alone: its traceback holds every
        frame, with all tensors in it."""
        object.__setattr__(self, "cause", cause)
        object.__setattr__(self, "remedy", remedy)
        object.__setattr__(self, "values", {name: _data_of(value) for name, value in values.items()})

    @property
    def what_is_wrong(self) -> str:
        """The cause, in English."""
        return self.cause.format_map(self.values)

    @property
    def what_to_do(self) -> str:
        """The remedy, in English; "" if there is none."""
        return self.remedy.format_map(self.values)

    def __str__(self) -> str:
        return f"{self.what_is_wrong} {self.what_to_do}".strip()


class MossVoiceError(Exception):
    """Base of all errors shown to users without a traceback.

    Attributes:
        code: what the server calls it: "engine_failed" unless the question is what cannot be answered.
        problem: cause, remedy and values.
    """

    code = "engine_failed"

    def __init__(self, cause: str = "", remedy: str | None = None, /, **values: object) -> None:
        """`cause` and `remedy` are templates of a `Problem`. Without `remedy` and values the first sentence
        of `cause` is the cause and the others are the remedy."""
        super().__init__(cause, remedy)
        if values:
            self.problem = Problem(cause, remedy or "", **values)
        else:
            parts = (cause, remedy) if remedy is not None else (*split_sentences(cause, 1), "")[:2]
            self.problem = Problem(*(part.replace("{", "{{").replace("}", "}}") for part in parts))

    @classmethod
    def from_problem(cls, problem: Problem) -> Self:
        """The error that says the same."""
        return cls(problem.cause, problem.remedy, **problem.values)

    @property
    def what_is_wrong(self) -> str:
        """The cause."""
        return self.problem.what_is_wrong

    @property
    def what_to_do(self) -> str:
        """The remedy, "" if there is none."""
        return self.problem.what_to_do

    def __str__(self) -> str:
        return str(self.problem)


class BundleError(MossVoiceError):
    """A model bundle is incomplete, damaged or inconsistent."""


class MelMismatchError(BundleError):
    """The mel of one stage is not the mel that the next stage was trained on."""


class FetchError(MossVoiceError):
    """A released model cannot be downloaded, or its files are not in the given folder."""


class AudioInputError(MossVoiceError):
    """Audio that cannot be used as speech input."""


class LanguageError(MossVoiceError):
    """A typed question in a script of no language that the model knows."""

    code = "unsupported_language"


class AudioDeviceError(MossVoiceError):
    """A sound device is missing, busy or was lost."""


class OutOfBlocksError(MossVoiceError):
    """No KV block is free or can be evicted."""


class FlowCacheError(MossVoiceError):
    """The flow's caches have too little memory for another reply beside the active ones."""


class ContextLengthError(MossVoiceError):
    """A single prompt is longer than the context of the model."""


class ExecutorError(MossVoiceError):
    """A forward step was rejected or failed."""


class EngineError(MossVoiceError):
    """A TensorRT engine cannot be built, read or loaded, or was built for something else; or its library is
    missing."""


class ExportError(MossVoiceError):
    """A file could not be written."""


def _data_of(value: object) -> object:
    if isinstance(value, MossVoiceError):
        return value.problem
    return str(value) if isinstance(value, BaseException) else value


def split_sentences(text: str, most: int = 0) -> list[str]:
    """The sentences of a message, with at most `most` splits (0: all). Quoted values are not split."""
    values = [match.span() for match in _QUOTED.finditer(text)]
    parts: list[str] = []
    start = 0
    for end in _SENTENCE_END.finditer(text):
        if len(parts) == most > 0:
            break
        if not any(first < end.start() < last for first, last in values):
            parts.append(text[start : end.start()])
            start = end.end()
    return [*parts, text[start:]]


def redact(text: str) -> str:
    """`text` with user names, passwords and queries of URLs (download signatures) and tokens of the model hub
    removed."""
    text = _USERINFO.sub("", text)
    text = _QUERY.sub(r"\1...", text)
    text = _HUB_TOKEN.sub("hf_...", text)
    return _BEARER.sub(r"\1 ...", text)
