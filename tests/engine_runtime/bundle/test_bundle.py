from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_runtime.bundle.bundle import Bundle, hash_file
from engine_runtime.bundle.manifest import to_toml
from engine_runtime.bundle.sections import DecliningSection
from engine_runtime.errors import BundleError, MelMismatchError
from engine_runtime.types import MelSpec, SamplingParams
from tests.factories.bundle import write_manifest


@pytest.fixture
def bundle_copy(random_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(random_bundle, tmp_path / "copy"))


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = tomllib.loads((path / "bundle.toml").read_text(encoding="utf-8"))
    change(manifest)
    (path / "bundle.toml").write_text(to_toml(manifest), encoding="utf-8")


def _error(path: Path, change: Callable[[dict[str, Any]], None]) -> str:
    _edit(path, change)
    with pytest.raises(BundleError) as caught:
        Bundle.open(path)
    return str(caught.value)


def test_every_section_is_read(random_bundle: Path) -> None:
    bundle = Bundle.open(random_bundle)
    assert bundle.name == "random"
    assert bundle.lm.weights == (random_bundle / "lm.safetensors",)
    assert bundle.lm.sampling_speech == SamplingParams(
        do_sample=True, temperature=0.9, top_k=20, min_new=14, max_new=24, seed=7
    )
    assert bundle.lm.prompt.user_role == "user"
    assert bundle.flow.mel == bundle.vocoder.mel == MelSpec(24000, 80, 1920, 480, 1920, 0.0, 8000.0)
    assert bundle.flow.mel.frame_rate == 50
    assert bundle.text_tokenizer.is_file()
    assert bundle.total_bytes == sum(f.stat().st_size for f in random_bundle.iterdir() if f.suffix != ".toml")


def test_the_share_of_checked_bytes_is_reported(random_bundle: Path) -> None:
    shares: list[float] = []
    bundle = Bundle.open(random_bundle, verify="sha256", progress=shares.append)
    assert len(shares) == len(bundle.files)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_the_end_of_turns_is_detected_only_where_the_manifest_says_so(bundle_copy: Path) -> None:
    assert not Bundle.open(bundle_copy).lm.detects_turn_end
    _edit(bundle_copy, lambda manifest: manifest["lm"].update(detects_turn_end=True))
    assert Bundle.open(bundle_copy).lm.detects_turn_end
    assert "detects_turn_end" in _error(bundle_copy, lambda m: m["lm"].update(detects_turn_end="yes"))


def test_a_bundle_may_have_a_declining_reply(bundle_copy: Path) -> None:
    assert Bundle.open(bundle_copy).lm.declining is None
    section = {"least_probability": 0.9, "codes": [3, 0], "subtitles": [7, 5]}
    _edit(bundle_copy, lambda manifest: manifest["lm"].update(declining=section))
    assert Bundle.open(bundle_copy).lm.declining == DecliningSection(0.9, (3, 0), (7, 5))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"codes": [3]}, "1 codes and 2 subtitles"),
        ({"codes": [], "subtitles": []}, "0 codes and 0 subtitles"),
        ({"codes": [3, 1 << 20]}, "codes up to 1048576"),
        ({"subtitles": [7, 1 << 20]}, "subtitles up to 1048576"),
        ({"codes": [3, -1]}, "codes = [3, -1], which must be a list of integers"),
        ({"least_probability": 1.5}, "least_probability = 1.5"),
    ],
)
def test_a_declining_reply_that_cannot_be_said(
    bundle_copy: Path, change: dict[str, object], words: str
) -> None:
    section = {"least_probability": 0.9, "codes": [3, 0], "subtitles": [7, 5]} | change
    assert words in _error(bundle_copy, lambda manifest: manifest["lm"].update(declining=section))


def test_networks_get_what_the_sections_say_once(random_bundle: Path) -> None:
    bundle = Bundle.open(random_bundle)
    assert bundle.lm.config["modality_pad"] == bundle.lm.special_ids.modality_pad
    assert bundle.flow.config["look_ahead_codes"] == bundle.flow.look_ahead_codes
    assert bundle.flow.config["steps"] == bundle.flow.steps


def test_weights_may_come_in_shards(bundle_copy: Path) -> None:
    shutil.copy(bundle_copy / "lm.safetensors", bundle_copy / "lm-2.safetensors")
    manifest = tomllib.loads((bundle_copy / "bundle.toml").read_text(encoding="utf-8"))
    manifest["lm"]["weights"] = ["lm.safetensors", "lm-2.safetensors"]
    write_manifest(bundle_copy, manifest)
    assert [file.name for file in Bundle.open(bundle_copy).lm.weights] == [
        "lm.safetensors",
        "lm-2.safetensors",
    ]


def test_a_folder_whose_name_is_not_utf_8(bundle_copy: Path) -> None:
    moved = bundle_copy.rename(bundle_copy.with_name(os.fsdecode(b"b\xfcndel")))
    with pytest.raises(BundleError, match=r"not valid UTF-8\. Rename the folder"):
        Bundle.open(moved)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no bundle folder at"):
        Bundle.open(tmp_path / "nowhere")


def test_a_folder_without_manifest(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"contains no bundle\.toml"):
        Bundle.open(tmp_path)


def test_a_manifest_that_is_not_toml(bundle_copy: Path) -> None:
    (bundle_copy / "bundle.toml").write_text("[bundle\nname = 1", encoding="utf-8")
    with pytest.raises(BundleError, match=r"not valid TOML.*line 1"):
        Bundle.open(bundle_copy)


def test_a_manifest_that_is_not_text(bundle_copy: Path) -> None:
    (bundle_copy / "bundle.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BundleError, match="not valid TOML"):
        Bundle.open(bundle_copy)


def test_a_missing_file_is_named(bundle_copy: Path) -> None:
    (bundle_copy / "flow.safetensors").unlink()
    with pytest.raises(BundleError, match=r"lacks flow\.safetensors.*again"):
        Bundle.open(bundle_copy)


def test_a_truncated_file_is_named_with_both_sizes(bundle_copy: Path) -> None:
    file = bundle_copy / "vocoder.safetensors"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BundleError, match=rf"cut short: {size - 100} bytes .* {size}"):
        Bundle.open(bundle_copy, verify="size")


def test_one_changed_byte_is_found_by_its_hash(bundle_copy: Path) -> None:
    file = bundle_copy / "lm.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(BundleError, match="sha256"):
        Bundle.open(bundle_copy)
    assert Bundle.open(bundle_copy, verify="size").name == "random"


@pytest.mark.parametrize(
    ("section", "key", "expected"),
    [
        (
            "flow",
            "stepz",
            "[flow] has an unknown key 'stepz' (is it 'steps'?)",
        ),
        ("lm", "zzzz", "[lm] has an unknown key 'zzzz' (known are "),
        ("bundle", "lisence", "(is it 'licence'?)"),
    ],
)
def test_an_unknown_key_is_ignored_with_a_warning(
    bundle_copy: Path, section: str, key: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    _edit(bundle_copy, lambda manifest: manifest[section].update({key: 3}))
    (sentence,) = Bundle.open(bundle_copy).unknown_keys
    assert expected in sentence
    assert sentence in caplog.text


def test_a_manifest_of_a_newer_version_of_the_format_is_read(bundle_copy: Path) -> None:
    """With fields and a table that this version does not have."""
    before = Bundle.open(bundle_copy)

    def add(manifest: dict[str, Any]) -> None:
        manifest["lm"]["speculates"] = True
        manifest["lm"]["sampling"]["speech"]["min_p"] = 0.1
        manifest["prompts"] = {"a": {"b": [1, 2]}}

    _edit(bundle_copy, add)
    after = Bundle.open(bundle_copy)
    assert len(after.unknown_keys) == 3
    assert replace(after, unknown_keys=()) == before


def test_a_manifest_of_an_older_version_of_the_format_is_read(bundle_copy: Path) -> None:
    """Without the fields that have been added with a default since."""

    def drop(manifest: dict[str, Any]) -> None:
        for key in ("subtitles", "detects_turn_end", "layout"):
            manifest["lm"].pop(key, None)
        for key in ("graph", "ceiling_prior", "weights_hold_more"):
            manifest["speech_encoder"].pop(key, None)
        manifest["flow"].pop("packet_codes", None)
        manifest.pop("card", None)

    _edit(bundle_copy, drop)
    bundle = Bundle.open(bundle_copy)
    assert bundle.unknown_keys == ()
    assert bundle.flow.packets == (bundle.flow.first_chunk_codes, bundle.flow.chunk_codes)


def test_a_table_of_another_kind_is_refused(bundle_copy: Path) -> None:
    many = {f"key{i}": i for i in range(17)}
    assert "[flow] has 17 unknown keys" in _error(bundle_copy, lambda manifest: manifest["flow"].update(many))


def test_a_misspelt_table_is_named(bundle_copy: Path) -> None:
    def misspell(manifest: dict[str, Any]) -> None:
        manifest["vocader"] = manifest.pop("vocoder")

    text = _error(bundle_copy, misspell)
    assert "the table [vocoder] is missing; is 'vocader' meant to be it? Correct" in text


@pytest.mark.parametrize(
    ("section", "key"), [("flow", "steps"), ("lm", "tokens_per_block"), ("speech_encoder", "sample_rate")]
)
def test_a_missing_key_is_named(bundle_copy: Path, section: str, key: str) -> None:
    text = _error(bundle_copy, lambda manifest: manifest[section].pop(key))
    assert f"[{section}] lacks the key '{key}'" in text


def test_a_missing_table_is_named(bundle_copy: Path) -> None:
    assert "the table [flow.mel] is missing" in _error(
        bundle_copy, lambda manifest: manifest["flow"].pop("mel")
    )


@pytest.mark.parametrize("value", ["4", 4.5, True, [4]])
def test_a_value_of_the_wrong_type(bundle_copy: Path, value: object) -> None:
    text = _error(bundle_copy, lambda manifest: manifest["flow"].update(steps=value))
    assert f"[flow] has steps = {value!r}, which must be an integer" in text


def test_an_integer_is_a_number(bundle_copy: Path) -> None:
    _edit(bundle_copy, lambda manifest: manifest["flow"].update(cfg_rate=1))
    assert Bundle.open(bundle_copy).flow.cfg_rate == 1.0


def test_a_speech_encoder_may_say_where_its_ceiling_starts(bundle_copy: Path) -> None:
    assert Bundle.open(bundle_copy).speech_encoder.ceiling_prior is None
    manifest = bundle_copy / "bundle.toml"
    stated = manifest.read_text(encoding="utf-8")
    for value in ("0.5", "2", "-10"):
        written = stated.replace("[speech_encoder]\n", f"[speech_encoder]\nceiling_prior = {value}\n")
        manifest.write_text(written, encoding="utf-8")
        assert Bundle.open(bundle_copy).speech_encoder.ceiling_prior == float(value)
    for value in ("nan", "-inf", "11"):
        written = stated.replace("[speech_encoder]\n", f"[speech_encoder]\nceiling_prior = {value}\n")
        manifest.write_text(written, encoding="utf-8")
        with pytest.raises(BundleError, match="a number from -10 to 10"):
            Bundle.open(bundle_copy)


def test_another_mel_shows_both(bundle_copy: Path) -> None:
    _edit(bundle_copy, lambda manifest: manifest["flow"]["mel"].update(hop=256, fmax=12000.0))
    with pytest.raises(MelMismatchError) as caught:
        Bundle.open(bundle_copy)
    text = str(caught.value)
    assert "differ in hop, fmax" in text
    assert "hop=256" in text
    assert "hop=480" in text


def test_a_vocoder_built_for_another_mel(bundle_copy: Path) -> None:
    _edit(bundle_copy, lambda manifest: manifest["vocoder"]["config"].update(num_mels=100))
    with pytest.raises(MelMismatchError, match="num_mels = 100"):
        Bundle.open(bundle_copy)


def test_two_different_modality_pads(bundle_copy: Path) -> None:
    assert "leave it out of config" in _error(
        bundle_copy, lambda manifest: manifest["lm"]["config"].update(modality_pad=7)
    )


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("lm", "tokens_per_block", 0, "[lm] has tokens_per_block = 0, which must be an integer from 1"),
        ("flow", "look_ahead_codes", 2, "[flow] says look_ahead_codes"),
        ("flow", "look_ahead_codes", -1, "[flow] has look_ahead_codes = -1, which must be"),
        ("vocoder", "left_context_frames", -2, "which must be an integer from 0 to 1000"),
        ("vocoder", "kind", "griffin", "must be 'bigvgan' or 'hift'"),
        ("bundle", "format", 9, "format 9 is not known"),
    ],
)
def test_values_out_of_range(bundle_copy: Path, section: str, key: str, value: object, expected: str) -> None:
    def change(manifest: dict[str, Any]) -> None:
        if key == "look_ahead_codes":
            manifest[section]["config"][key] = 3
        manifest[section][key] = value

    assert expected in _error(bundle_copy, change)


def test_a_used_file_without_hash(bundle_copy: Path) -> None:
    text = _error(bundle_copy, lambda manifest: manifest["files"].pop("tokenizer.json"))
    assert "tokenizer.json is used but has no entry in [files]" in text


def test_a_graph_without_hash(bundle_copy: Path) -> None:
    (bundle_copy / "encoder.onnx").write_bytes(b"graph")
    text = _error(bundle_copy, lambda manifest: manifest["speech_encoder"].update(graph="encoder.onnx"))
    assert "encoder.onnx is used but has no entry in [files]" in text


def test_files_outside_the_folder_are_refused(bundle_copy: Path) -> None:
    outside = bundle_copy.parent / "outside.bin"
    outside.write_bytes(b"x")
    entry = {"size": 1, "sha256": hash_file(outside)}
    text = _error(bundle_copy, lambda manifest: manifest["files"].update({"../outside.bin": entry}))
    assert "outside the bundle folder" in text


@pytest.mark.parametrize(
    ("section", "key"),
    [("lm", "weights"), ("vocoder", "weights"), ("text_tokenizer", "file"), ("speech_encoder", "graph")],
)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/etc/hostname", "which is outside the bundle folder"),
        ("../outside.bin", "which is outside the bundle folder"),
        ("a/../../outside.bin", "which is outside the bundle folder"),
        ("", "which is no file"),
        (".", "which is no file"),
        ("a\0b", "which is no file"),
    ],
)
def test_names_that_lead_out_of_the_folder(
    bundle_copy: Path, section: str, key: str, name: str, words: str
) -> None:
    text = _error(bundle_copy, lambda manifest: manifest[section].update({key: name}))
    assert f"[{section}] names {name!r}, {words}" in text


def test_names_that_are_too_long(bundle_copy: Path) -> None:
    with pytest.raises(BundleError, match="cannot be opened: File name too long"):
        Bundle.open(bundle_copy / ("x" * 5_000))
    long = "x" * 5_000
    _edit(bundle_copy, lambda manifest: manifest["files"].update({long: {"size": 1, "sha256": "0"}}))
    with pytest.raises(BundleError, match=r"\[files\] names 'xxx.*…, which is no file"):
        Bundle.open(bundle_copy)
    text = _error(bundle_copy, lambda manifest: manifest["bundle"].update(name=long))
    assert "[bundle] has a name of more than 200 characters" in text


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("lm.config", "audio_layers", 10**18),
        ("lm.config", "hidden_size", "wide"),
        ("lm.special_ids", "im_start", -1),
        ("lm.sampling.text", "top_p", 0.0),
        ("lm.sampling.text", "seed", 10**4_000),
        ("speech_encoder.config", "max_positions", 10**9),
        ("flow.config", "max_frames", 10**9),
        ("flow.mel", "fmax", 1e300),
        ("vocoder.config", "upsample_rates", [[5], 4]),
    ],
)
def test_numbers_beyond_any_model_are_refused(bundle_copy: Path, table: str, key: str, value: object) -> None:
    def change(manifest: dict[str, Any]) -> None:
        for name in table.split("."):
            manifest = manifest[name]
        manifest[key] = value

    text = _error(bundle_copy, change)
    assert f"[{table}] has {key} = " in text
    assert "which must be a" in text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("im_end", 5_000, "im_end = 5000, but text_vocab in config is "),
        ("eosp", 80, "eosp = 80, but audio_vocab in config is 80"),
        ("audio_forbidden_from", 81, "audio_forbidden_from = 81, but audio_vocab in config is 80"),
    ],
)
def test_ids_outside_the_vocabulary(bundle_copy: Path, key: str, value: int, words: str) -> None:
    text = _error(bundle_copy, lambda manifest: manifest["lm"]["special_ids"].update({key: value}))
    assert f"[lm.special_ids] has {words}" in text


def test_sampling_needs_a_temperature(bundle_copy: Path) -> None:
    cold = {"do_sample": True, "temperature": 0}
    text = _error(bundle_copy, lambda manifest: manifest["lm"]["sampling"]["text"].update(cold))
    assert "[lm.sampling.text] has temperature = 0 with do_sample = true" in text


VOICE = {
    "speaker_encoder": "tokenizer.json",
    "sample_rate": 16000,
    "n_mels": 80,
    "least_s": 3.0,
    "most_s": 6.0,
}


def test_a_voice_section(bundle_copy: Path) -> None:
    assert Bundle.open(bundle_copy).voice is None
    _edit(bundle_copy, lambda manifest: manifest.update(voice=dict(VOICE)))
    voice = Bundle.open(bundle_copy).voice
    assert voice is not None
    assert voice.speaker_encoder == bundle_copy / "tokenizer.json"
    assert (voice.least_s, voice.most_s) == (3.0, 6.0)


def test_a_voice_section_that_is_wrong(bundle_copy: Path) -> None:
    wrong = VOICE | {"least_s": 7.0}
    assert "in this order" in _error(bundle_copy, lambda manifest: manifest.update(voice=dict(wrong)))
    other = VOICE | {"speaker_encoder": "campplus.onnx"}
    text = _error(bundle_copy, lambda manifest: manifest.update(voice=dict(other)))
    assert "campplus.onnx is used but has no entry in [files]" in text


def test_files_may_be_links(bundle_copy: Path) -> None:
    file = bundle_copy / "lm.safetensors"
    elsewhere = bundle_copy.parent / "elsewhere.safetensors"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert Bundle.open(bundle_copy).name == "random"


def test_hashes_of_a_large_bundle_are_checked_when_asked_for(
    bundle_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = bundle_copy / "lm.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(BundleError, match="sha256"):
        Bundle.open(bundle_copy)
    monkeypatch.setattr("engine_runtime.bundle.bundle._HASHED_AT_MOST", file.stat().st_size)
    assert Bundle.open(bundle_copy).name == "random"
    with pytest.raises(BundleError, match="sha256"):
        Bundle.open(bundle_copy, verify="sha256")


def test_a_hift_vocoder_may_have_an_n_fft_of_its_own(bundle_copy: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["vocoder"].update(kind="hift", config={"n_fft": 16, "in_channels": 80})

    _edit(bundle_copy, change)
    assert Bundle.open(bundle_copy).vocoder.config["n_fft"] == 16
    text = _error(bundle_copy, lambda manifest: manifest["vocoder"]["config"].update(in_channels=100))
    assert "in_channels = 100" in text


def test_a_manifest_is_written_as_it_is_read(bundle_copy: Path) -> None:
    manifest = tomllib.loads((bundle_copy / "bundle.toml").read_text(encoding="utf-8"))
    manifest["bundle"]["description"] = 'A "quoted" \\ model — 模型 😀'
    manifest["files"]["a/b c.bin"] = {"size": 1, "sha256": "0" * 64}
    assert tomllib.loads(to_toml(manifest)) == manifest
