"""Spoken sample questions: the WAV files of assets/samples with their labels in both languages. Qt-free.

samples.toml holds one `[[sample]]` table per question with `file`, `english` (what is said) and `chinese`
(what it means); `declined` marks one that shows how the model declines. A missing WAV or an invalid table
only removes that sample; WAVs without a table get their file name as label.
"""

from __future__ import annotations

import logging
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SampleQuestion:
    """One spoken question."""

    path: Path
    english: str
    chinese: str
    is_declined: bool = False
    """Whether it is outside the domain of the included bundle, which declines it."""

    def label(self, language: str) -> str:
        """The words of the question: always English, with its meaning for a reader of Chinese (`zh...`)."""
        is_translated = language.startswith("zh") and self.chinese != self.english
        return f"{self.english}（{self.chinese.rstrip('。')}）" if is_translated else self.english


def load_samples(folder: Path) -> list[SampleQuestion]:
    """The questions of a folder, those of samples.toml first and in its order. Never raises."""
    found = [sample for table in _tables(folder / "samples.toml") if (sample := _sample(folder, table))]
    known = {sample.path for sample in found}
    try:
        others = [path for path in sorted(folder.glob("*.wav")) if path not in known]
    except OSError:
        others = []
    for path in others:
        label = path.stem.replace("_", " ").replace("-", " ").strip().capitalize()
        found.append(SampleQuestion(path, label, label))
    return found


def _tables(file: Path) -> list[Any]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8")).get("sample", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        _log.info("no list of sample questions: %s", error)
        return []
    return tables if isinstance(tables, list) else []


def _sample(folder: Path, table: Any) -> SampleQuestion | None:
    name = table.get("file") if isinstance(table, dict) else None
    if not isinstance(name, str) or not (folder / name).is_file():
        _log.warning("a sample question is passed over: %r", table)
        return None
    english = str(table.get("english") or Path(name).stem)
    chinese = str(table.get("chinese") or english)
    return SampleQuestion(folder / name, english, chinese, table.get("declined") is True)
