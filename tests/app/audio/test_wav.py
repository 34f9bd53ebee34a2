"""Valid and invalid sound files of all kinds."""

from __future__ import annotations

import errno
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile

from app.audio.wav import WavReader, WavWriter, check_wav, read_beginning, read_wav, write_wav
from engine_runtime.errors import AudioInputError, ExportError


@pytest.fixture
def tone() -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(4_000) / 16_000)).astype(np.float32)


@pytest.mark.parametrize(
    ("subtype", "tolerance"),
    [
        ("PCM_U8", 1 / 100),
        ("PCM_16", 1e-4),
        ("PCM_24", 1e-6),
        ("PCM_32", 1e-6),
        ("FLOAT", 0.0),
        ("DOUBLE", 1e-7),
        ("ULAW", 1 / 30),
    ],
)
@pytest.mark.parametrize("container", ["WAV", "WAVEX"])
def test_all_sample_formats(
    tmp_path: Path, tone: np.ndarray, subtype: str, tolerance: float, container: str
) -> None:
    path = tmp_path / "tone.wav"
    soundfile.write(path, tone, 16_000, subtype=subtype, format=container)
    pcm, rate = read_wav(path)
    assert rate == 16_000
    assert pcm.dtype == np.float32
    assert np.abs(pcm - tone).max() <= tolerance


def _flac(path: Path, tone: np.ndarray) -> bytearray:
    soundfile.write(path, np.stack([tone, tone], axis=1), 16_000, subtype="PCM_24", format="FLAC")
    return bytearray(path.read_bytes())


def test_flac_is_read_as_wav_is(tmp_path: Path, tone: np.ndarray) -> None:
    path = tmp_path / "tone.flac"
    _flac(path, tone)
    pcm, rate = read_wav(path)
    assert rate == 16_000
    assert np.abs(pcm - tone).max() < 1e-6
    with WavReader(path, channel=1) as reader:
        reader.skip(1_000)
        assert np.array_equal(np.concatenate(list(reader.blocks(700))), pcm[1_000:])


def test_a_damaged_flac_file_is_refused(tmp_path: Path, tone: np.ndarray) -> None:
    path = tmp_path / "tone.flac"
    content = _flac(path, tone)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(AudioInputError, match="cannot be read"):
        read_wav(path)
    content[8 + 14 : 8 + 18] = bytes(4)  # the number of samples, 0 where an encoder wrote to a pipe
    path.write_bytes(content)
    with pytest.raises(AudioInputError, match="length"):
        read_wav(path)


def test_other_formats_that_libsndfile_reads_are_refused(tmp_path: Path, tone: np.ndarray) -> None:
    for name in ("AIFF", "OGG"):
        soundfile.write(tmp_path / "tone", tone, 16_000, format=name)
        with pytest.raises(AudioInputError, match="not a WAV or FLAC"):
            read_wav(tmp_path / "tone")


def test_channels_are_mixed_by_their_mean(tmp_path: Path, tone: np.ndarray) -> None:
    soundfile.write(tmp_path / "stereo.wav", np.stack([tone, -0.5 * tone], axis=1), 96_000, subtype="FLOAT")
    pcm, rate = read_wav(tmp_path / "stereo.wav")
    assert rate == 96_000
    assert np.allclose(pcm, 0.25 * tone, atol=1e-6)


def test_non_finite_and_loud_samples_are_tamed(tmp_path: Path) -> None:
    wild = np.array([np.nan, np.inf, -np.inf, 7.0, -7.0, 0.25], dtype=np.float32)
    soundfile.write(tmp_path / "wild.wav", wild, 16_000, subtype="FLOAT")
    assert read_wav(tmp_path / "wild.wav")[0].tolist() == [0, 1, -1, 1, -1, 0.25]


def test_a_file_that_is_too_long_is_rejected_by_its_header(tmp_path: Path, tone: np.ndarray) -> None:
    file = tmp_path / "tone.wav"
    write_wav(file, tone, 4_000 * 4)
    check_wav(file, max_seconds=0.25)
    for look in (check_wav, read_wav):
        with pytest.raises(AudioInputError, match=r"\b0 s\b.*\b0 s\b"):
            look(file, max_seconds=0.2)


def test_blocks_are_the_file(tmp_path: Path, tone: np.ndarray) -> None:
    write_wav(tmp_path / "tone.wav", tone, 16_000)
    with WavReader(tmp_path / "tone.wav") as reader:
        blocks = list(reader.blocks(999))
        assert len(reader.read(10)) == 0
    assert [len(block) for block in blocks] == [999, 999, 999, 999, 4]
    assert np.array_equal(np.concatenate(blocks), read_wav(tmp_path / "tone.wav")[0])


@pytest.mark.slow
def test_an_hour_is_streamed_and_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "hour.wav"
    seconds = 3_600
    with path.open("wb") as file:  # sparse: an hour of silence that takes no disk
        size = seconds * 16_000 * 2
        file.write(b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt ")
        file.write(
            struct.pack("<IHHIIHH", 16, 1, 1, 16_000, 32_000, 2, 16) + b"data" + struct.pack("<I", size)
        )
        file.truncate(44 + size)
    with WavReader(path) as reader:
        assert reader.seconds == seconds
        tracemalloc.start()
        count = sum(len(block) for block in reader.blocks(16_000))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert count == seconds * 16_000
    assert peak < 2_000_000
    with pytest.raises(AudioInputError, match="3600 s"):
        read_wav(path)


def bad_files(good: bytes) -> dict[str, tuple[bytes, str]]:
    """Name -> (content, words of the error)."""
    rate_at, bits_at, channels_at = 24, 34, 22
    return {
        "empty": (b"", "is empty"),
        "no audio": (good[:40] + struct.pack("<I", 0), "no audio"),
        "text": (b"this is not audio at all, only text", "is not a WAV or FLAC file"),
        "mp3": (b"ID3\x04" + bytes(200), "is not a WAV or FLAC file"),
        "only riff": (good[:12], "No 'data' chunk"),
        "no data chunk": (good[:36], "No 'data' chunk"),
        "cut in the data": (good[: len(good) // 2], "is truncated"),
        "no fmt": (good[:12] + good[36:], "No 'data' chunk"),
        "odd rate": (good[:rate_at] + struct.pack("<I", 4_000) + good[rate_at + 4 :], "4000 Hz"),
        "high rate": (good[:rate_at] + struct.pack("<I", 192_000) + good[rate_at + 4 :], "192000 Hz"),
        "odd bits": (good[:bits_at] + struct.pack("<H", 77) + good[bits_at + 2 :], "cannot be read"),
        "no channels": (
            good[:channels_at] + struct.pack("<H", 0) + good[channels_at + 2 :],
            "Channel count is zero",
        ),
        "compressed": (good[:20] + struct.pack("<H", 85) + good[22:], "cannot be read"),
    }


@pytest.mark.parametrize("kind", list(bad_files(bytes(100))))
def test_bad_files_say_what_is_wrong(tmp_path: Path, tone: np.ndarray, kind: str) -> None:
    write_wav(tmp_path / "good.wav", tone, 16_000)
    content, words = bad_files((tmp_path / "good.wav").read_bytes())[kind]
    path = tmp_path / "bad.wav"
    path.write_bytes(content)
    with pytest.raises(AudioInputError, match=words) as caught:
        read_wav(path)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith((".", "speech.wav"))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(AudioInputError, match="no file"):
        WavReader(tmp_path / "missing.wav")
    with pytest.raises(AudioInputError, match="folder"):
        WavReader(tmp_path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "linked pipe", "device"])
def test_only_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "pipe.wav"
    os.mkfifo(path)
    if kind == "linked pipe":
        path = tmp_path / "link.wav"
        path.symlink_to("pipe.wav")
    elif kind == "device":
        path = Path("/dev/zero")
    for look in (WavReader, check_wav, read_wav):
        with pytest.raises(AudioInputError, match="pipe") as caught:
            look(path)
    assert str(path) in str(caught.value)


def test_a_link_to_a_file_is_read(tmp_path: Path, tone: np.ndarray) -> None:
    write_wav(tmp_path / "tone.wav", tone, 16_000)
    (tmp_path / "link.wav").symlink_to("tone.wav")
    assert len(read_wav(tmp_path / "link.wav")[0]) == len(tone)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x" * 5_000, "cannot be opened: File name too long"),
        ("x\0.wav", "cannot be opened: embedded null byte"),
        ("tone.wav/below.wav", "There is no file"),
        ("loop.wav", "cannot be opened: Too many levels"),
    ],
)
def test_names_that_cannot_be_opened(tmp_path: Path, tone: np.ndarray, name: str, words: str) -> None:
    write_wav(tmp_path / "tone.wav", tone, 16_000)
    (tmp_path / "loop.wav").symlink_to("loop.wav")
    with pytest.raises(AudioInputError, match=words):
        WavReader(tmp_path / name)


def test_a_file_from_a_pipe_has_no_length(tmp_path: Path, tone: np.ndarray) -> None:
    write_wav(tmp_path / "good.wav", tone, 16_000)
    content = (tmp_path / "good.wav").read_bytes()
    (tmp_path / "pipe.wav").write_bytes(content[:40] + struct.pack("<I", 0xFFFFFFFF) + content[44:])
    assert len(read_wav(tmp_path / "pipe.wav")[0]) == len(tone)
    (tmp_path / "killed.wav").write_bytes(content[:40] + struct.pack("<I", 0) + content[44:])
    with pytest.raises(AudioInputError, match="length"):
        read_wav(tmp_path / "killed.wav")


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def test_a_long_format_chunk_is_skipped_to_its_end(tmp_path: Path, tone: np.ndarray) -> None:
    path = tmp_path / "good.wav"
    write_wav(path, tone, 16_000)
    content = path.read_bytes()
    path.write_bytes(content[:12] + _chunk(b"fmt ", content[20:36] + bytes(9_001)) + content[36:])
    assert len(read_wav(path)[0]) == len(tone)


@pytest.mark.timeout(20)
def test_chunks_without_end_take_no_time(tmp_path: Path, tone: np.ndarray) -> None:
    path = tmp_path / "good.wav"
    write_wav(path, tone, 16_000)
    start, audio = path.read_bytes()[:36], path.read_bytes()[36:]
    for name in (b"junk", b"data"):
        path.write_bytes(start + _chunk(name, b"") * 2_000_000 + audio)
        with pytest.raises(AudioInputError):
            read_wav(path)


def test_the_beginning_of_a_long_file(tmp_path: Path, tone: np.ndarray) -> None:
    path = tmp_path / "tone.wav"
    write_wav(path, tone, 16_000)
    pcm, rate = read_beginning(path, 0.1)
    assert (len(pcm), rate) == (1_600, 16_000)
    assert np.array_equal(pcm, read_wav(path)[0][:1_600])
    assert len(read_beginning(path, 60.0)[0]) == len(tone)


@pytest.mark.slow
def test_many_channels_take_no_more_memory_than_their_mean(tmp_path: Path) -> None:
    path = tmp_path / "many.wav"
    channels, seconds, rate = 32, 20, 48_000
    with path.open("wb") as file:  # sparse: 245 MB that take no disk
        size = seconds * rate * channels * 8
        layout = struct.pack("<HHIIHH", 3, channels, rate, rate * channels * 8, channels * 8, 64)
        file.write(b"RIFF" + struct.pack("<I", 36 + size) + b"WAVE" + _chunk(b"fmt ", layout))
        file.write(b"data" + struct.pack("<I", size))
        file.truncate(44 + size)
    tracemalloc.start()
    pcm, _ = read_wav(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(pcm) == seconds * rate
    assert peak < pcm.nbytes + 8_000_000


def test_other_chunks_are_skipped(tmp_path: Path, tone: np.ndarray) -> None:
    write_wav(tmp_path / "good.wav", tone, 16_000)
    content = (tmp_path / "good.wav").read_bytes()
    extra = b"LIST" + struct.pack("<I", 5) + b"hello\0"
    (tmp_path / "extra.wav").write_bytes(content[:12] + extra + content[12:])
    assert np.array_equal(read_wav(tmp_path / "extra.wav")[0], read_wav(tmp_path / "good.wav")[0])


def test_stereo_is_written(tmp_path: Path, tone: np.ndarray) -> None:
    write_wav(tmp_path / "out.wav", np.stack([tone, tone * 0], axis=1), 24_000)
    samples, rate = soundfile.read(tmp_path / "out.wav", dtype="float32")
    assert rate == 24_000
    assert samples.shape == (4_000, 2)
    assert np.abs(samples[:, 0] - tone).max() < 1e-4


def test_an_unfinished_file_is_not_left_behind(tmp_path: Path, tone: np.ndarray) -> None:
    (tmp_path / "out.wav").write_bytes(b"what was there before")

    def write_and_fail() -> None:
        with WavWriter(tmp_path / "out.wav", 16_000) as writer:
            writer.write(tone)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_fail()
    assert [path.name for path in tmp_path.iterdir()] == ["out.wav"]
    assert (tmp_path / "out.wav").read_bytes() == b"what was there before"


def test_full_disk_is_an_export_error(
    tmp_path: Path, tone: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk:
        def __init__(self, file: object) -> None:
            self._file = file

        def write(self, content: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None:
            self._file.close()  # type: ignore[attr-defined]

    opened = os.fdopen
    monkeypatch.setattr("app.export.os.fdopen", lambda *arguments: FullDisk(opened(*arguments)))
    with pytest.raises(ExportError, match="disk is full"):
        write_wav(tmp_path / "out.wav", tone, 16_000)
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_is_an_export_error(tmp_path: Path, tone: np.ndarray) -> None:
    with pytest.raises(ExportError, match="no folder"):
        write_wav(tmp_path / "missing" / "out.wav", tone, 16_000)


def test_no_permission_is_an_export_error(
    tmp_path: Path, tone: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("app.export.os.open", refuse)
    with pytest.raises(ExportError, match="no permission"):
        write_wav(tmp_path / "out.wav", tone, 16_000)


def test_the_shape_must_fit_the_channels(tmp_path: Path, tone: np.ndarray) -> None:
    with pytest.raises(ValueError, match="2 channels"):
        WavWriter(tmp_path / "out.wav", 16_000, channels=2).write(tone)
