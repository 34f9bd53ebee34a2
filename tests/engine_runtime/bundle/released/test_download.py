"""Downloads from a local hub, with the real huggingface_hub."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import huggingface_hub.file_download
import pytest

from engine_runtime.bundle.released.download import (
    _headers,
    _hub,
    check,
    download,
    find_offline,
    is_offline,
)
from engine_runtime.bundle.released.layout import find_released
from engine_runtime.errors import FetchError
from tests.doubles.hub_server import COMMIT, HubServer, repositories_in

pytestmark = pytest.mark.slow

Usage = namedtuple("Usage", "total used free")
FLOW = "flow/flow-chunk-5.pt"


@pytest.fixture
def hub(released_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    repositories = repositories_in(released_folder)
    repositories["fnlp/MOSS-Speech-Codec"]["flow/flow.pt"] = bytes(5000)
    with HubServer(repositories) as server:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        # What the library makes of HF_ENDPOINT when it is imported.
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        for module in (huggingface_hub.constants, huggingface_hub.file_download):  # 0.x copies it
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server


def test_everything_that_is_needed_is_loaded_and_checked(
    hub: HubServer, tmp_path: Path, released_folder: Path
) -> None:
    said: list[str] = []
    seen: list[tuple[int, int]] = []
    remote = download(tmp_path / "to", say=said.append, progress=lambda *bytes_: seen.append(bytes_))
    total = sum(file.size for repository in remote for file in repository.files)
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)
    hashes = check(tmp_path / "to", remote)
    assert "of which" in said[0]
    assert "free there" in said[0]
    assert "without a licence file" in said[1]
    released = find_released(*(repository.folder(tmp_path / "to") for repository in remote))
    for file in released.files:
        original = released_folder / file.relative_to(tmp_path / "to")
        assert file.read_bytes() == original.read_bytes()
    assert not (released.codec / "flow" / "flow.pt").exists()
    assert released.codec / FLOW in hashes
    assert {repository.commit for repository in remote} == {COMMIT}
    download(tmp_path / "to", say=said.append)
    assert "0.0 MB are still to be loaded" in said[2]


def test_what_was_begun_is_gone_on_with(hub: HubServer, tmp_path: Path) -> None:
    content = hub.repositories["fnlp/MOSS-Speech-Codec"][FLOW]
    begun = tmp_path / "MOSS-Speech-Codec" / f"{FLOW}.part"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(content[: len(content) // 2])
    said: list[str] = []
    check(tmp_path, download(tmp_path, say=said.append))
    assert hub.ranges == [f"bytes={len(content) // 2}-"]
    assert (tmp_path / "MOSS-Speech-Codec" / FLOW).read_bytes() == content
    assert not begun.exists()
    everything, missing = said[0].split(": ")[1].split(" MB")[:2]
    assert float(missing.split()[-1]) < float(everything) - 0.4


def test_a_connection_that_breaks_keeps_what_came(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.cut_off = {FLOW}
    with pytest.raises(FetchError, match="existing files are kept"):
        download(tmp_path, say=lambda text: None)
    assert (tmp_path / "MOSS-Speech-Codec" / f"{FLOW}.part").stat().st_size > 1 << 16
    hub.cut_off = set()
    check(tmp_path, download(tmp_path, say=lambda text: None))


@pytest.mark.parametrize("file", [FLOW, "config.json"])
def test_a_file_that_comes_damaged_is_removed(hub: HubServer, tmp_path: Path, file: str) -> None:
    hub.damaged = {file}
    remote = download(tmp_path, say=lambda text: None)
    with pytest.raises(FetchError, match="arrived damaged"):
        check(tmp_path, remote)
    gone = [r.folder(tmp_path) / file for r in remote if file in {entry.name for entry in r.files}]
    assert not all(path.exists() for path in gone)
    for path in gone:
        path.unlink(missing_ok=True)
    hub.damaged = set()
    check(tmp_path, download(tmp_path, say=lambda text: None))


def test_a_disk_that_is_too_small(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10, 9, 1_000_000))
    with pytest.raises(FetchError, match=r"has 1\.0 MB free, but 2\.\d MB are needed"):
        download(tmp_path / "not" / "yet", say=lambda text: None)
    assert not (tmp_path / "not").exists()


def test_a_checkpoint_that_is_linked_to_is_not_touched(hub: HubServer, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.json").write_text("mine")
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "MOSS-Speech").symlink_to(own)
    with pytest.raises(FetchError, match="Remove the link"):
        download(tmp_path / "to", say=lambda text: None)
    assert [file.name for file in own.iterdir()] == ["config.json"]
    assert (own / "config.json").read_text() == "mine"


def test_a_repository_that_changed_its_layout(hub: HubServer, tmp_path: Path) -> None:
    del hub.repositories["fnlp/MOSS-Speech-Codec"]["flow/hift.pt"]
    with pytest.raises(FetchError, match=r"lacks flow/hift\.pt"):
        download(tmp_path, say=lambda text: None)


def test_a_repository_that_is_not_there(hub: HubServer, tmp_path: Path) -> None:
    hub.repositories.clear()
    with pytest.raises(FetchError, match="HF_ENDPOINT and HF_TOKEN"):
        download(tmp_path, say=lambda text: None)


def test_no_connection(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FetchError, match="Check the connection"):
        download(tmp_path, say=lambda text: None)


def test_offline_takes_what_is_there(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download(tmp_path, say=lambda text: None)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert is_offline()
    assert find_offline(tmp_path) == (tmp_path / "MOSS-Speech", tmp_path / "MOSS-Speech-Codec")
    with pytest.raises(FetchError, match=r"neither in .* nor complete in the cache"):
        find_offline(tmp_path / "elsewhere")


def test_offline_takes_the_cache_of_other_programs(hub: HubServer, tmp_path: Path) -> None:
    cached = {
        huggingface_hub.snapshot_download(name, cache_dir=tmp_path / "cache") for name in hub.repositories
    }
    found = find_offline(tmp_path / "elsewhere")
    assert {str(folder) for folder in found} == cached
    assert len(find_released(*found).lm_weights) == 3


HOSTILE_NAMES = [
    "model/../../../../outside/model.safetensors",
    "model/../../model.safetensors",
    "/model.safetensors",
    "/etc/model.safetensors",
    "../model.safetensors",
    "model\\..\\..\\x.safetensors",
    "model:stream.safetensors",
    "C:model.safetensors",
    "model\0.safetensors",
    "model\n.safetensors",
    "model.safetensors\n",
    "model-\u202e.safetensors",
    "model" + 5000 * "a" + ".safetensors",
    "flow/../../flow-chunk-5.pt",
    "",
]


def _everything_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_names_of_the_hub_lead_nowhere_else(hub: HubServer, tmp_path: Path) -> None:
    download(tmp_path / "honest" / "a" / "b" / "to", say=lambda text: None)
    expected = _everything_below(tmp_path / "honest")
    hub.asked_for.clear()
    for files in hub.repositories.values():
        files |= dict.fromkeys(HOSTILE_NAMES, b"evil" * 300)
    check(to := tmp_path / "hostile" / "a" / "b" / "to", download(to, say=lambda text: None))
    assert _everything_below(tmp_path / "hostile") == expected
    assert not hub.asked_for & set(HOSTILE_NAMES)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"path": "config.json"}, "two files of the same name"),
        ({"path": "model-A.safetensors"}, "two files of the same name"),
        ({"path": "model-b.safetensors", "size": -1}, "model-b.safetensors has an impossible size"),
        ({"path": "model-b.safetensors", "size": 10**400}, "impossible size"),
        ({"path": "model-b.safetensors", "size": "5"}, "impossible size"),
        ({"path": "model-b.safetensors", "oid": "../x"}, "impossible size or hash"),
        (
            {"path": "model-b.safetensors", "lfs": {"oid": "x", "size": 1, "pointerSize": 1}},
            "impossible size",
        ),
    ],
)
def test_a_list_that_cannot_be_right(
    hub: HubServer, tmp_path: Path, entry: dict[str, object], expected: str
) -> None:
    sound = {"type": "file", "size": 5, "oid": 40 * "0"}
    hub.listed = [sound | {"path": "model-a.safetensors"}, sound | entry]
    with pytest.raises(FetchError, match=expected):
        download(tmp_path / "to", say=lambda text: None)
    assert not (tmp_path / "to").exists()


def test_a_list_without_end(hub: HubServer, tmp_path: Path) -> None:
    hub.listed = [{"type": "file", "size": 5, "oid": 40 * "0", "path": f"{n}.txt"} for n in range(1_000)]
    with pytest.raises(FetchError, match="lists 1000 files or more"):
        download(tmp_path / "to", say=lambda text: None)
    hub.listed = [{"type": "file", "path": "x" * 4_000_000}]
    with pytest.raises(FetchError, match=r"invalid: it is longer than 4\.0 MB"):
        download(tmp_path / "to", say=lambda text: None)


@pytest.mark.parametrize("entry", [{"type": "file"}, "file", {"type": "file", "path": 1}, None, {}])
def test_entries_that_are_no_files_are_passed_over(hub: HubServer, tmp_path: Path, entry: Any) -> None:
    hub.listed = [entry]
    check(tmp_path, download(tmp_path, say=lambda text: None))


def test_a_commit_that_was_asked_for_is_the_one_that_comes(hub: HubServer, tmp_path: Path) -> None:
    name = next(iter(hub.repositories))
    (found, _) = download(tmp_path, say=lambda text: None, commits={name: COMMIT})
    assert found.commit == COMMIT
    with pytest.raises(FetchError, match="another commit than was asked for"):
        download(tmp_path, say=lambda text: None, commits={name: 40 * "f"})


def test_a_token_is_not_sent_without_tls(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + 34 * "x")
    said: list[str] = []
    download(tmp_path, say=said.append)
    assert hub.authorizations == set()
    assert "token of the model hub is not sent" in said[0]


@pytest.mark.parametrize(
    ("endpoint", "is_sent"),
    [("https://huggingface.co", True), ("https://mirror.example", True), ("http://huggingface.co", False)],
)
def test_where_a_token_may_go(monkeypatch: pytest.MonkeyPatch, endpoint: str, is_sent: bool) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + 34 * "x")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    assert any(name.lower() == "authorization" for name in _headers(_hub())) == is_sent


def test_a_commit_that_is_no_hash(hub: HubServer, tmp_path: Path) -> None:
    hub.commit = '"]\n[lm]'
    with pytest.raises(FetchError, match="commit has no hash"):
        download(tmp_path / "to", say=lambda text: None)


@pytest.mark.parametrize("file", [FLOW, "preprocessor_config.json"])
@pytest.mark.parametrize("is_begun", [False, True])
def test_no_more_is_written_than_was_stated(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, is_begun: bool
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1 << 12)
    begun = tmp_path / "MOSS-Speech-Codec" / f"{file}.part"
    if is_begun:
        begun.parent.mkdir(parents=True)
        begun.write_bytes(hub.repositories["fnlp/MOSS-Speech-Codec"][file][:3])
    hub.longer = {file: 3_000_000}
    with pytest.raises(FetchError, match=rf"{file} of .* is longer than the \d+ bytes .* and was removed"):
        download(tmp_path, say=lambda text: None)
    assert not list(tmp_path.rglob(f"{Path(file).name}*"))
    hub.longer = {}
    check(tmp_path, download(tmp_path, say=lambda text: None))


def test_links_in_the_folder_lead_nothing_out(hub: HubServer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    codec = tmp_path / "to" / "MOSS-Speech-Codec"
    codec.mkdir(parents=True)
    (codec / "config.json.part").symlink_to(outside / "written")
    (codec / "preprocessor_config.json").symlink_to(outside / "replaced")
    (outside / "replaced").write_text("mine")
    check(tmp_path / "to", download(tmp_path / "to", say=lambda text: None))
    assert _everything_below(outside) == {"replaced"}
    assert (outside / "replaced").read_text() == "mine"
    assert not (codec / "preprocessor_config.json").is_symlink()


def test_a_folder_that_is_a_link_is_not_followed(hub: HubServer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "to" / "MOSS-Speech-Codec").mkdir(parents=True)
    (tmp_path / "to" / "MOSS-Speech-Codec" / "flow").symlink_to(outside)
    with pytest.raises(FetchError, match=r"flow is a link to .*outside.*Remove the link"):
        download(tmp_path / "to", say=lambda text: None)
    assert not list(outside.iterdir())


def test_no_password_in_what_is_said(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://anna:pass@word@127.0.0.1:9")
    with pytest.raises(FetchError, match=r"from http://127\.0\.0\.1:9: ") as found:
        download(tmp_path, say=lambda text: None)
    assert "anna" not in str(found.value)
    assert "word" not in str(found.value)
