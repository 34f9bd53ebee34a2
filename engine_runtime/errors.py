"""User-facing errors. Every message names cause and remedy: templates with values, see `Problem`.

MossVoiceError
├── BundleError          a bundle that cannot be used: missing file, wrong hash, unknown key, wrong shape
│   └── MelMismatchError two stages disagree about the mel spectrogram between them
├── FetchError           a released model that cannot be downloaded or found
├── AudioInputError      a WAV or device without usable audio
├── AudioDeviceError     a sound device that is missing, busy or lost
├── LanguageError        a question in a script that the model does not know
├── ToolCallError        a call that the model has written and that cannot be run
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
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

Json = dict[str, Any]
_USERINFO = re.compile(r"(?<=://)[^\s/?#]*@")
_QUERY = re.compile(r"(://[^\s?#\"'<>]*\?)[^\s#\"'<>]+")
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
_BEARER = re.compile(r"(?i)\b(bearer)\s+[\w.~+/=-]{8,}")
_LONGEST_SPEC = 5


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

    def with_remedy(self, remedy: str) -> Problem:
        """The same cause with another remedy."""
        return Problem(self.cause, remedy, **self.values)

    def to_json(self) -> Json:
        """For another process of this program, without credentials."""
        values = {name: _json_value(value) for name, value in self.values.items()}
        return {"cause": self.cause, "remedy": self.remedy, "values": values}

    @classmethod
    def from_json(cls, document: Json) -> Self:
        """The problem that `to_json` has written. ValueError for anything else: it may come from another
        program, whose templates must not reach into values or fill the memory."""
        texts, values = [document.get("cause"), document.get("remedy")], document.get("values")
        if not all(isinstance(text, str) for text in texts) or not isinstance(values, dict):
            raise ValueError("this describes no problem")
        cause, remedy = map(str, texts)
        problem = cls(cause, remedy, **{name: _value_of_json(value) for name, value in values.items()})
        for field_name, spec in (*fields_of(problem.cause), *fields_of(problem.remedy)):
            if field_name not in values or "{" in spec or len(spec) > _LONGEST_SPEC:
                raise ValueError(f"{field_name!r:.80} is no value of this problem")
        try:
            str(problem)
        except (TypeError, LookupError) as error:
            raise ValueError("the values do not fit the texts") from error
        return problem

    def __str__(self) -> str:
        return f"{self.what_is_wrong} {self.what_to_do}".strip()


class MossVoiceError(Exception):
    """Base of all errors shown to users without a traceback.

    Attributes:
        code: what the server calls it: "engine_failed" unless the question is what cannot be answered.
        problem: cause, remedy and values.
    """

    code = "engine_failed"

    def __init__(self, cause: str = "", remedy: str = "", /, **values: object) -> None:
        """`cause` and `remedy` are the templates of a `Problem`, `values` their values."""
        super().__init__(cause, remedy)
        self.problem = Problem(cause, remedy, **values)

    @classmethod
    def from_problem(cls, problem: Problem) -> Self:
        """The error with this problem."""
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


class ToolCallError(MossVoiceError):
    """The model has written a call that is none, or of a tool or with arguments that it was not given."""

    code = "invalid_tool_call"


class AudioDeviceError(MossVoiceError):
    """A sound device is missing, busy or was lost."""


class OutOfBlocksError(MossVoiceError):
    """No KV block is free or can be evicted."""


class FlowCacheError(MossVoiceError):
    """The flow's caches have too little memory for another reply beside the active ones."""


class ContextLengthError(MossVoiceError):
    """A prompt is longer than the context of the model."""

    code = "context_length_exceeded"


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


def fields_of(template: str) -> list[tuple[str, str]]:
    """Name and format of each field. ValueError if the text is not a valid template."""
    return [(name, spec or "") for _, name, spec, _ in string.Formatter().parse(template) if name is not None]


def _value_of_json(value: object) -> object:
    if isinstance(value, dict):
        return Problem.from_json(value)
    if isinstance(value, str | int | float):
        return value
    raise ValueError("a value is a text, a number or a problem")


def _json_value(value: object) -> object:
    if isinstance(value, Problem):
        return value.to_json()
    return value if isinstance(value, int | float) else redact(str(value))


def redact(text: str) -> str:
    """`text` with user names, passwords and queries of URLs (download signatures) and tokens of the model hub
    removed."""
    text = _USERINFO.sub("", text)
    text = _QUERY.sub(r"\1...", text)
    text = _HUB_TOKEN.sub("hf_...", text)
    return _BEARER.sub(r"\1 ...", text)
