"""Invalid TOML manifests: too large, too deep, numbers with thousands of digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_runtime.bundle.manifest import LARGEST_FILE, Manifest, Table, read_toml
from engine_runtime.errors import BundleError
from engine_runtime.models.limits import Integer, Integers, Real, Switch, shown


def _read(tmp_path: Path, text: str) -> dict[str, object]:
    file = tmp_path / "bundle.toml"
    file.write_text(text, encoding="utf-8")
    return read_toml(file)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 60_000, "nested too deeply"),
        ("a = " + "{a=" * 20_000, "nested too deeply"),
        (".".join("a" * 3_000) + " = 1", "a key has more than 16 parts"),
        ("[" + ". ".join(["'a'"] * 3_000) + "]", "a key has more than 16 parts"),
        ('"\\""=1\n' + ".".join("a" * 3_000) + " = 1", "a key has more than 16 parts"),
        ("a = 1 # '\n" + ".".join("a" * 3_000) + " = 1", "a key has more than 16 parts"),
        ("a = {" + ".".join("b" * 3_000) + " = 1}", "a key has more than 16 parts"),
        ("a = [{b = 1}, {" + " . ".join("b" * 3_000) + " = 1}]", "a key has more than 16 parts"),
        ('a = """\n\\"""" \n"b".' + ".".join("b" * 3_000) + " = 1", "a key has more than 16 parts"),
        ('a = "' + '\\"' * 32_000, "not valid TOML"),
        ("a = 1" + "0" * 5_000, "not valid TOML"),
        ("a = 2000-99-99", "not valid TOML"),
        ("# " + "x" * LARGEST_FILE, "more than the 65536 bytes"),
    ],
    ids=lambda value: value[:12],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BundleError, match=words):
        _read(tmp_path, text)


def test_keys_and_texts_with_points_are_read(tmp_path: Path) -> None:
    text = ".".join("abcdefghijklmnopqrstuvwxyz")
    several = f"""a = 1.5 # {text}
b = '{text}'
c = \"\"\"
{text}\\\"\"\" {text}\"\"\"
d = {{ "{text}" = [1.0, 2.0, 3.0] }}
"""
    assert _read(tmp_path, several)["d"] == {text: [1.0, 2.0, 3.0]}
    assert _read(tmp_path, f'a.b.c = "{text}"\r\n[d."{text}"]\r\n') == {
        "a": {"b": {"c": text}},
        "d": {text: {}},
    }


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read: No such file"):
        read_toml(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("limit", "right", "wrong"),
    [
        (Integer(1, 9), [1, 9], [0, 10, 10**5_000, True, 1.0, "1", None]),
        (Real(0.5, 2), [0.5, 1, 2.0], [0.4, 3, 10**5_000, float("nan"), float("inf"), True, "1"]),
        (Integers(1, 9, 2), [[], [1, 9]], [[1, 2, 3], [0], [[1]], 1, "1"]),
        (Integers(1, 9, 2, depth=2), [[], [[1, 9], []]], [[1], [[1, 2, 3]], [[[1]]]]),
        (Switch(), [True, False], [0, 1, 1.0, "true", None, []]),
    ],
)
def test_limits(limit: Integer | Real | Integers | Switch, right: list[object], wrong: list[object]) -> None:
    assert [value for value in right if not limit.holds(value)] == []
    assert [value for value in wrong if limit.holds(value)] == []


def test_a_value_is_repeated_up_to_a_length() -> None:
    assert shown("x" * 10) == repr("x" * 10)
    assert len(shown("x" * 10_000)) < 80
    assert shown(16**100_000) == "a value too long to be shown"


def test_a_number_that_no_float_holds() -> None:
    table = Table({"a": 10**4_000}, "t", Manifest({}, "m.toml"))
    with pytest.raises(BundleError, match=r"m\.toml: \[t\] has a = 1000.*which must be a number"):
        table.value("a", float)
