"""What follows from the one definition of a setting: its check, its text, its choices."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from engine_runtime.setting import OptionsError, check, setting, settings


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Choices:
    steps: int | None = setting(None, least=1, most=20, option="--flow-steps")
    share: float = setting(0.5, least=0.1)
    colour: Colour = setting(Colour.RED)
    size: Literal["small", "large"] | None = None
    is_on: bool = True
    name: str = setting("cpu", matches=lambda text: text.startswith("c"), decides=("device", "dtype"))
    folder: Path = setting(factory=lambda: Path("here"), compare=False)
    others: tuple[int, ...] = ()
    secret: str = setting("", is_kept=False, repr=False)
    plain: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        check(self)


KNOWN = settings(Choices)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("steps", 5, "5"),
        ("steps", None, ""),
        ("share", 0.25, "0.25"),
        ("colour", Colour.BLUE, "blue"),
        ("size", "large", "large"),
        ("size", None, ""),
        ("is_on", False, "false"),
        ("name", "cuda", "cuda"),
        ("folder", Path("/there"), "/there"),
    ],
)
def test_a_value_is_read_back_from_its_text(name: str, value: Any, text: str) -> None:
    assert KNOWN[name].text(value) == text
    assert KNOWN[name].read(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("steps", text) for text in ("0", "21", "many", "9" * 5_000)),
        *(("share", text) for text in ("0.05", "nan", "")),
        *(("colour", text) for text in ("green", "RED", "")),
        *(("size", text) for text in ("huge", "None")),
        *(("is_on", text) for text in ("no", "False", "")),
        ("name", "gpu"),
        *((name, None) for name in KNOWN),
    ],
)
def test_a_text_of_no_value_is_the_default(name: str, text: str | None) -> None:
    known = KNOWN[name]
    assert known.read(text) == known.default


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"steps": 0}, "steps is 0. Give 1 to 20."),
        ({"steps": 21}, "steps is 21. Give 1 to 20."),
        ({"share": float("nan")}, "share is nan. Give at least 0.1."),
    ],
)
def test_a_number_beyond_its_limits_is_refused_with_them(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        Choices(**given)


def test_limits_are_values_themselves() -> None:
    for steps in (None, 1, 20):
        assert Choices(steps=steps).steps == steps


def test_a_setting_knows_its_field() -> None:
    assert (KNOWN["steps"].kind, KNOWN["steps"].is_optional, KNOWN["steps"].dest) == (int, True, "flow_steps")
    assert KNOWN["size"].choices == ("small", "large")
    assert KNOWN["colour"].choices == (Colour.RED, Colour.BLUE)
    assert (KNOWN["steps"].choices, KNOWN["plain"].choices) == ((), ())
    assert KNOWN["name"].targets == ("device", "dtype")
    assert KNOWN["steps"].targets == ("steps",)
    assert [name for name, known in KNOWN.items() if not known.is_kept] == ["secret"]
    assert KNOWN["folder"].default is KNOWN["plain"].default is MISSING


def test_the_field_is_one_of_the_dataclass() -> None:
    assert "secret" not in repr(Choices(secret="key"))
    assert Choices(folder=Path("a")) == Choices(folder=Path("b"))
    assert Choices() != Choices(share=0.2)
