from __future__ import annotations

from pathlib import Path

from app.gpu_runtime import lock
from app.gpu_runtime.lock import read_lock
from tests.factories.gpu_wheels import make_runtime_wheels
from tests.tools.package_smoke_gpu import LOCK, with_lock


def test_a_copy_of_the_bundle_has_another_lock(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    (bundle / LOCK).parent.mkdir(parents=True)
    (bundle / LOCK).write_text("the shipped one")
    (bundle / "moss-voice").write_bytes(b"program")
    (bundle / "moss-voice-window").symlink_to("moss-voice")
    copy = with_lock(bundle, tmp_path / "copy", make_runtime_wheels(tmp_path / "wheels"))
    assert (bundle / LOCK).read_text() == "the shipped one"
    assert read_lock(copy / LOCK).version("torch") == "2.13.0"
    assert (copy / "moss-voice").samefile(bundle / "moss-voice")
    assert (copy / "moss-voice-window").is_symlink()


def test_the_lock_is_where_the_program_reads_it(repository: Path) -> None:
    assert repository / Path(*LOCK.parts[1:]) == lock.LOCK_FILE
