"""Conversion of a language model, and bundles that run from the checkpoint."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.bundle.released.assembly import assemble
from engine_runtime.bundle.released.layout import find_released
from engine_runtime.engine import Engine
from engine_runtime.errors import BundleError, ExportError, FetchError
from engine_runtime.executors.cuda.loading import load_lm
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.loading import lm_source
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import Dtype, EngineOptions
from engine_runtime.tensorrt.checkpoint import convert
from engine_runtime.tensorrt.checkpoint.convert import (
    Conversion,
    check_bundle_target,
    find_language_model,
    make_bundle,
)
from engine_runtime.tensorrt.checkpoint.format import (
    expected_tensors,
    is_checkpoint,
    lm_fingerprint,
    read_config,
)
from tests.factories.bundle import write_manifest


def _convert(source: Path, to: Path, dtype: Dtype | None = None) -> Conversion:
    conversion = Conversion.start(find_language_model(source), to, dtype)
    conversion.write()
    conversion.finish()
    return conversion


@pytest.fixture
def released(released_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(released_folder / "MOSS-Speech", tmp_path / "MOSS-Speech")


def test_a_bundle_becomes_the_tensors_of_the_library(random_bundle: Path, tmp_path: Path) -> None:
    conversion = _convert(random_bundle, tmp_path / "checkpoint")
    assert is_checkpoint(tmp_path / "checkpoint")
    assert read_config(tmp_path / "checkpoint") == conversion.config
    assert conversion.config.dtype == "float16"
    ours = load_file(random_bundle / "lm.safetensors")
    theirs = load_file(tmp_path / "checkpoint" / "rank0.safetensors")
    assert {name: (tuple(t.shape), t.dtype) for name, t in theirs.items()} == expected_tensors(
        conversion.config
    )

    def same(name: str, *parts: str) -> bool:
        return torch.equal(theirs[name], torch.cat([ours[part] for part in parts]))

    assert same("vocab_embedding.weight", "model.embed_tokens.weight", "model.audio_embed.weight")
    for theirs_of, ours_of in (
        ("shared_layers.1", "shared_block.layers.1"),
        ("audio_layers.0", "audio_block.layers.0"),
    ):
        attention, mlp = f"model.{ours_of}.self_attn", f"model.{ours_of}.mlp"
        assert same(f"{theirs_of}.attention.qkv.weight", *(f"{attention}.{x}_proj.weight" for x in "qkv"))
        assert same(f"{theirs_of}.attention.dense.weight", f"{attention}.o_proj.weight")
        assert same(f"{theirs_of}.attention.q_layernorm.weight", f"{attention}.q_norm.weight")
        assert same(f"{theirs_of}.mlp.fc.weight", f"{mlp}.gate_proj.weight")
        assert same(f"{theirs_of}.mlp.gate.weight", f"{mlp}.up_proj.weight")
        assert same(f"{theirs_of}.mlp.proj.weight", f"{mlp}.down_proj.weight")
    assert same("lm_head.weight", "text_lm_head.weight")
    about = json.loads((tmp_path / "checkpoint" / "moss_voice.json").read_text("utf-8"))
    assert about == {"bundle": "random", "lm_fingerprint": lm_fingerprint(Bundle.open(random_bundle))}


def test_a_released_folder_in_shards_yields_the_checkpoint_of_its_bundle(
    released_folder: Path, released: Path, tmp_path: Path
) -> None:
    _convert(released, tmp_path / "a")
    _convert(released_folder, tmp_path / "b")  # the folder that holds both repositories
    assert read_config(tmp_path / "a").dtype == "bfloat16"
    assert read_config(tmp_path / "a").max_position_embeddings == 1024
    content = (tmp_path / "a" / "rank0.safetensors").read_bytes()
    assert content == (tmp_path / "b" / "rank0.safetensors").read_bytes()
    about = json.loads((tmp_path / "a" / "moss_voice.json").read_text("utf-8"))
    assert about == {"bundle": "MOSS-Speech", "lm_fingerprint": None}
    stored: dict[str, Tensor] = {}
    for shard in released.glob("*.safetensors"):
        stored |= load_file(shard)
    theirs = load_file(tmp_path / "a" / "rank0.safetensors")
    assert sum(t.numel() for t in stored.values()) == sum(t.numel() for t in theirs.values())
    assert torch.equal(theirs["text_norm.weight"], stored["model.text_norm.weight"])


def test_another_dtype_is_rounded_to(random_bundle: Path, tmp_path: Path) -> None:
    _convert(random_bundle, tmp_path, "bfloat16")
    model = find_language_model(random_bundle)
    assert len(Conversion.start(model, tmp_path, "bfloat16").rounded) == len(model.weights)
    assert not Conversion.start(model, tmp_path / "same").rounded
    assert not Conversion.start(model, tmp_path / "wider", "float32").rounded
    head = load_file(tmp_path / "rank0.safetensors")["audio_lm_head.weight"]
    ours = load_file(random_bundle / "lm.safetensors")["audio_lm_head.weight"]
    assert head.dtype == torch.bfloat16
    assert torch.equal(head, ours.bfloat16())


def test_values_that_a_dtype_cannot_hold_are_named(released: Path, tmp_path: Path) -> None:
    file = next(released.glob("model-00002*.safetensors"))
    tensors = load_file(file)
    name = sorted(tensors)[0]
    tensors[name].view(-1)[3] = 1e30
    save_file(tensors, file)
    with pytest.raises(BundleError, match=rf"{name}.*no numbers in float16"):
        _convert(released, tmp_path / "out", "float16")
    assert not is_checkpoint(tmp_path / "out")
    _convert(released, tmp_path / "other", "bfloat16")


def test_an_interrupted_conversion_is_resumed(random_bundle: Path, tmp_path: Path) -> None:
    conversion = Conversion.start(find_language_model(random_bundle), tmp_path / "checkpoint")

    def interrupted(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conversion.write(interrupted)
    assert not is_checkpoint(tmp_path / "checkpoint")
    shares: list[float] = []
    again = Conversion.start(find_language_model(random_bundle), tmp_path / "checkpoint")
    again.write(shares.append)
    assert 0.5 < shares[0] < shares[-1] == 1.0
    assert not is_checkpoint(tmp_path / "checkpoint")
    again.finish()
    _convert(random_bundle, tmp_path / "at_once")
    for name in ("rank0.safetensors", "config.json", "moss_voice.json"):
        assert (tmp_path / "checkpoint" / name).read_bytes() == (tmp_path / "at_once" / name).read_bytes()


def test_a_finished_one_is_only_checked_again(random_bundle: Path, tmp_path: Path) -> None:
    _convert(random_bundle, tmp_path)
    before = (tmp_path / "rank0.safetensors").stat().st_mtime_ns
    again = Conversion.start(find_language_model(random_bundle), tmp_path)
    again.write(lambda share: pytest.fail("it is there already"))
    again.finish()
    assert (tmp_path / "rank0.safetensors").stat().st_mtime_ns == before
    with (tmp_path / "rank0.safetensors").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x01")
    with pytest.raises(ExportError, match="damaged or of other weights"):
        again.finish()


def test_a_folder_that_holds_something_else_is_not_touched(
    random_bundle: Path, released: Path, tmp_path: Path
) -> None:
    config = (released / "config.json").read_bytes()
    with pytest.raises(ExportError, match="another model"):
        Conversion.start(find_language_model(released), released)
    assert (released / "config.json").read_bytes() == config
    _convert(random_bundle, tmp_path / "checkpoint")
    others: list[tuple[Path, Dtype | None]] = [(released, None), (random_bundle, "float32")]
    for source, dtype in others:
        with pytest.raises(ExportError, match="Choose another folder with --to"):
            _convert(source, tmp_path / "checkpoint", dtype)
    (tmp_path / "checkpoint" / "config.json").write_text("no json")
    with pytest.raises(ExportError, match="Choose another folder with --to"):
        _convert(random_bundle, tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "config.json").unlink()
    with pytest.raises(ExportError, match="from another model or in another format"):
        _convert(random_bundle, tmp_path / "checkpoint", "float32")
    with pytest.raises(ExportError, match="is a file"):
        _convert(random_bundle, tmp_path / "checkpoint" / "rank0.safetensors")


def test_a_disk_without_room_is_reported_first(
    random_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(100, 99, 1))
    with pytest.raises(ExportError, match=r"GB are needed\. Free some space"):
        Conversion.start(find_language_model(random_bundle), tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_shards_that_are_missing_or_cut_short(released: Path) -> None:
    shard = next(released.glob("model-00003*.safetensors"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-100])
    with pytest.raises(BundleError, match=f"{shard.name} is damaged"):
        find_language_model(released)
    shard.unlink()
    with pytest.raises(BundleError, match=f"{shard.name} is missing"):
        find_language_model(released)
    shard.write_bytes(content)
    (released / "model.safetensors.index.json").unlink()
    with pytest.raises(FetchError, match="which names the shards"):
        find_language_model(released)


def test_folders_of_something_else(random_bundle: Path, released: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BundleError, match=r"neither bundle\.toml nor config\.json"):
        find_language_model(tmp_path / "empty")
    with pytest.raises(BundleError, match=r"There is no folder .*nowhere"):
        find_language_model(tmp_path / "nowhere")
    _convert(random_bundle, tmp_path / "checkpoint")
    with pytest.raises(BundleError, match="already a TensorRT-LLM checkpoint"):
        find_language_model(tmp_path / "checkpoint")
    config = json.loads((released / "config.json").read_text("utf-8"))
    (released / "config.json").write_text(json.dumps(config | {"model_type": "qwen3"}))
    with pytest.raises(BundleError, match="type 'qwen3', not 'moss_speech'"):
        find_language_model(released)
    (released / "config.json").write_text(json.dumps(config | {"hidden_size": 128}))
    with pytest.raises(BundleError, match="wrong shape"):
        find_language_model(released)


def test_a_bundle_whose_weights_were_cut_short(random_bundle: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(random_bundle, tmp_path / "bundle")
    weights = bundle / "lm.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(BundleError, match="cut short"):
        find_language_model(bundle)


def test_numbers_that_the_library_does_not_take(random_bundle: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(random_bundle, tmp_path / "bundle")
    weights = {name: t.double() for name, t in load_file(bundle / "lm.safetensors").items()}
    save_file(weights, bundle / "lm.safetensors")
    manifest = tomllib.loads((bundle / "bundle.toml").read_text("utf-8"))
    write_manifest(bundle, manifest)
    with pytest.raises(BundleError, match=r"stored in float64.*--dtype"):
        _convert(bundle, tmp_path / "a")
    _convert(bundle, tmp_path / "a", "float32")


def test_weights_pass_through_memory_in_chunks(
    random_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _convert(random_bundle, tmp_path / "one_shot")
    monkeypatch.setattr(convert, "_CHUNK_BYTES", 1000)
    conversion = Conversion.start(find_language_model(random_bundle), tmp_path / "chunked")
    sizes = [[rows.nbytes for rows in conversion.produce(name)] for name in conversion.file.names]
    assert max(max(parts) for parts in sizes) <= 1000
    assert sum(map(sum, sizes)) == conversion.file.ends[-1]
    assert max(map(len, sizes)) > 50
    conversion.write()
    conversion.finish()
    complete, parts = (tmp_path / name / "rank0.safetensors" for name in ("one_shot", "chunked"))
    assert complete.read_bytes() == parts.read_bytes()


def _made(source: Path, folder: Path) -> Bundle:
    conversion = Conversion.start(find_language_model(source), folder / "checkpoint")
    conversion.write()
    conversion.finish()
    return make_bundle(source, folder / "checkpoint", folder / "bundle")


def _logits(lm: PagedLM, ids: list[int]) -> list[Tensor]:
    """Of a prefill on an empty cache, one on top of it, and single steps."""
    sequence, found = Sequence(), list[Tensor]()
    for part in (ids[:20], ids[20:33], *([merged] for merged in ids[33:])):
        logits = lm.prefill(sequence, part)
        assert logits.text_logits is not None
        assert logits.audio_logits is not None
        found += [logits.text_logits.clone(), logits.audio_logits.clone()]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random_bundle", "nano_bundle"])
def test_the_same_logits_from_the_converted_bundle(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Path = request.getfixturevalue(name)
    converted = _made(source, tmp_path)
    vocab = converted.lm.config["text_vocab"] + converted.lm.config["audio_vocab"]
    ids = torch.randint(vocab, (48,), generator=torch.Generator().manual_seed(3)).tolist()
    mine, other = (_logits(Engine.load(b).stages.lm, ids) for b in (converted, Bundle.open(source)))
    assert len(mine) == 2 * (2 + 15)
    for a, b in zip(mine, other, strict=True):
        assert torch.equal(a, b)


def test_the_executor_for_gpus_takes_the_same_weights(random_bundle: Path, tmp_path: Path) -> None:
    """Its loading, here on the CPU."""
    options, cpu, ids = EngineOptions(kernels="torch"), torch.device("cpu"), list(range(40))
    found = []
    for bundle in (_made(random_bundle, tmp_path), Bundle.open(random_bundle)):
        config, shares = MossLMConfig.from_dict(bundle.lm.config), list[float]()
        source = lm_source(bundle, config, cpu, options, shares.append)
        found.append(_logits(load_lm(bundle.lm, config, cpu, options, source), ids))
        assert shares[-1] == pytest.approx(1.0)
    for mine, other in zip(*found, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.cuda
def test_the_same_logits_on_a_gpu(nano_bundle: Path, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    options, ids = EngineOptions(device="cuda"), list(range(40))
    bundles = (_made(nano_bundle, tmp_path), Bundle.open(nano_bundle))
    mine, other = (_logits(Engine.load(bundle, options).stages.lm, ids) for bundle in bundles)
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_it_says_what_it_is_and_of_which_weights(random_bundle: Path, tmp_path: Path) -> None:
    converted = _made(random_bundle, tmp_path)
    assert converted.lm.layout == "tensorrt-llm"
    assert converted.description.endswith("language model from a TensorRT-LLM checkpoint")
    assert lm_fingerprint(converted) == lm_fingerprint(Bundle.open(random_bundle))
    assert Bundle.open(converted.path, verify="sha256") == converted
    assert "lm.safetensors" not in converted.files
    with pytest.raises(BundleError, match="converted already"):
        find_language_model(converted.path)


@pytest.mark.slow
def test_a_bundle_of_a_fetched_model(released_folder: Path, tmp_path: Path) -> None:
    found = find_released(released_folder / "MOSS-Speech", released_folder / "MOSS-Speech-Codec")
    fetched = assemble(found, tmp_path / "fetched")
    converted = _made(fetched.path, tmp_path)
    assert converted.voice == fetched.voice or converted.voice is not None
    ids = list(range(40))
    mine, other = (_logits(Engine.load(b).stages.lm, ids) for b in (converted, fetched))
    assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def test_making_it_again_changes_nothing_and_no_one_is_overwritten(
    random_bundle: Path, tmp_path: Path
) -> None:
    _made(random_bundle, tmp_path)
    before = (tmp_path / "bundle" / "bundle.toml").read_bytes()
    _made(random_bundle, tmp_path)
    assert (tmp_path / "bundle" / "bundle.toml").read_bytes() == before
    shutil.copytree(random_bundle, tmp_path / "mine")
    with pytest.raises(ExportError, match="holds another bundle"):
        make_bundle(random_bundle, tmp_path / "checkpoint", tmp_path / "mine")
    (tmp_path / "mine" / "bundle.toml").unlink()
    with pytest.raises(FetchError, match="already exists"):
        make_bundle(random_bundle, tmp_path / "checkpoint", tmp_path / "mine")


def test_a_checkpoint_of_another_model_is_refused(random_bundle: Path, tmp_path: Path) -> None:
    bundle = _made(random_bundle, tmp_path).path
    config = (tmp_path / "checkpoint" / "config.json").read_text()
    assert '"rotary_base": 1000000.0' in config
    (tmp_path / "checkpoint" / "config.json").write_text(config.replace("1000000.0", "1000001.0"))
    with pytest.raises(BundleError, match="rope_theta"):
        Engine.load(Bundle.open(bundle, verify="size"))


def test_a_bundle_whose_checkpoint_is_gone_is_made_again(random_bundle: Path, tmp_path: Path) -> None:
    made = _made(random_bundle, tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    assert _made(random_bundle, tmp_path) == made


def test_a_folder_that_is_no_bundle(released_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="moss-voice fetch moss-speech --from DIR"):
        check_bundle_target(released_folder / "MOSS-Speech", tmp_path / "checkpoint", tmp_path / "bundle")
