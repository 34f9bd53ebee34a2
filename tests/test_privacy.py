"""Privacy: network and file access of the program, observed from outside.

The commands run as started by a user, with the shipped bundle, under strace, concurrently. Small programs
that look up a host, connect, listen or write elsewhere verify the observer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.audio.echo_libraries import is_installed
from tests.doubles.hub_server import HubServer, repositories_in
from tests.tools.observer import Observation, Observed, calls_of, network_calls, why_not, written_paths

ROOT = Path(__file__).resolve().parent.parent
QUESTION = ROOT / "assets" / "samples" / "01-hello.wav"
DEMO = """
import sys
from app import cli, paths
questions = paths.sample_questions()[:2]  # more take more time and do nothing else
paths.sample_questions = lambda: questions
sys.exit(cli.main(["demo", "--out-dir", "out"]))
"""
COMMANDS: dict[str, tuple[str | Path, ...]] = {
    "talk": ("-m", "app", "talk", "--in", QUESTION, "--out", "out/reply.wav", "--record", "out/both.wav"),
    "demo": ("-c", DEMO),
    "doctor": ("-m", "app", "doctor", "--report", "out/report.txt"),
    "window": ("-m", "tests.tools.driven_window"),
}
LIVEKIT = """
import numpy
from app.audio.echo_libraries import make_processor
processor = make_processor("livekit", echo_cancellation=True, noise_suppression=True, gain_control=True)
pcm = numpy.random.default_rng(0).standard_normal(32_000).astype("float32") / 10
print(len(processor.process(pcm, pcm)))
"""
CHOSEN_FOLDERS = ("out", "tmp")
OWN_FOLDERS = (
    "home/.cache/moss-voice",
    "home/.config/moss-voice",
    "home/.local/share/moss-voice",
    "home/.local/state/moss-voice",
)
SHARED = (
    *("home/.config/pulse", "home/.cache/fontconfig", "/var/cache/fontconfig"),
    *("/dev/shm/jack", "/dev/shm/sem."),
)
"""Of libraries: clients of PulseAudio and JACK, the cache of fonts, semaphores of multiprocessing."""
TIMEOUT_S = 240.0

_REASON = why_not()
needs_strace = pytest.mark.skipif(_REASON is not None, reason=f"nothing can be observed: {_REASON}")


def _observed(arguments: tuple[str | Path, ...], folder: Path, **variables: str) -> Observed:
    """Python with `arguments`, an empty home folder and a minimal environment (no CI variables, which silence
    some libraries). Sound goes to a null device."""
    for name in ("home", *CHOSEN_FOLDERS):
        (folder / name).mkdir(parents=True)
    (folder / "home" / ".asoundrc").write_text("pcm.!default { type null }\nctl.!default { type null }\n")
    environment = {
        **{name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "QT_QPA_PLATFORM": "offscreen",
        "PULSE_SERVER": f"unix:{folder / 'no-server'}",
        **variables,
    }
    return Observed([sys.executable, *arguments], folder, environment, folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each command."""
    return {name: tmp_path_factory.mktemp(name) for name in COMMANDS}


@pytest.fixture(scope="module")
def observations(folders: dict[str, Path]) -> Iterator[dict[str, Observation]]:
    """What each command did."""
    running = {name: _observed(arguments, folders[name]) for name, arguments in COMMANDS.items()}
    try:
        yield {name: observed.finish(TIMEOUT_S) for name, observed in running.items()}
    finally:
        for observed in running.values():
            observed.kill()


def _elsewhere(observation: Observation, folder: Path) -> set[Path]:
    """What was written outside the program's folders, those that the user named and the temporary one."""
    own = [folder / name for name in OWN_FOLDERS]
    parents = {parent for path in own for parent in path.parents if parent.is_relative_to(folder / "home")}
    allowed = [*own, *(folder / name for name in CHOSEN_FOLDERS)]
    shared = tuple(str(folder / name) for name in SHARED)
    return {
        path
        for path in observation.written - parents
        if not any(path.is_relative_to(own) for own in allowed) and not str(path).startswith(shared)
    }


@pytest.mark.slow
@needs_strace
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_reaches_for_the_network(name: str, observations: dict[str, Observation]) -> None:
    observation = observations[name]
    assert observation.status == 0, observation.output
    assert not observation.network, "\n".join(observation.network)


@pytest.mark.slow
@needs_strace
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_written_elsewhere(
    name: str, observations: dict[str, Observation], folders: dict[str, Path]
) -> None:
    folder, observation = folders[name], observations[name]
    assert not _elsewhere(observation, folder)
    assert folder / OWN_FOLDERS[-1] / "log" / "moss-voice.log" in observation.written


@pytest.mark.slow
@needs_strace
@pytest.mark.skipif(not is_installed("livekit"), reason="livekit is not installed")
def test_livekit_cancels_an_echo_without_network_and_files(tmp_path: Path) -> None:
    observation = _observed(("-c", LIVEKIT), tmp_path).finish(TIMEOUT_S)
    assert (observation.status, observation.output.split()) == (0, ["32000"])
    assert not observation.network, "\n".join(observation.network)
    assert not observation.written


@pytest.mark.slow
@needs_strace
def test_fetch_speaks_to_its_hub_alone(released_folder: Path, tmp_path: Path) -> None:
    repositories = repositories_in(released_folder)
    fetch = ("-m", "app", "fetch", "moss-speech", "--to", "out/bundle")
    with HubServer(repositories) as hub:
        observation = _observed(fetch, tmp_path, HF_ENDPOINT=hub.url).finish(TIMEOUT_S)
        port = hub.url.rpartition(":")[2]
    assert observation.status == 0, observation.output
    assert [call for call in observation.network if call.startswith("connect(")]
    elsewhere = [
        call for call in observation.network if f"htons({port})" not in call and f":{port}]" not in call
    ]
    assert not elsewhere, "\n".join(elsewhere)
    assert not _elsewhere(observation, tmp_path)


@pytest.mark.slow
@needs_strace
@pytest.mark.parametrize(
    "code",
    [
        "socket.getaddrinfo('moss-voice.invalid', 443)",
        "socket.create_connection(('127.0.0.1', 9))",
        "socket.create_connection(('::1', 9))",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
        "socket.create_server(('127.0.0.1', 0))",
        "socket.socket(type=socket.SOCK_DGRAM).bind(('127.0.0.1', 0))",
        "threading.Thread(target=socket.create_connection, args=[('127.0.0.1', 9)]).start()",
        "subprocess.run([sys.executable, '-c', 'import socket; socket.create_server((str(), 0))'])",
    ],
)
def test_the_observer_sees_every_use_of_the_network(code: str, tmp_path: Path) -> None:
    code = f"import socket, subprocess, sys, threading\ntry: {code}\nexcept OSError: pass"
    observation = _observed(("-c", code), tmp_path).finish(TIMEOUT_S)
    assert observation.network, observation.output


@pytest.mark.slow
@needs_strace
def test_services_of_this_machine_are_no_network(tmp_path: Path) -> None:
    code = (
        "import os, pwd, socket\n"
        "server = socket.socket(socket.AF_UNIX); server.bind('tmp/s'); server.listen()\n"
        "socket.socket(socket.AF_UNIX).connect('tmp/s')\n"
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).bind((0, 0))\n"
        "socket.socket().bind(('127.0.0.1', 0))\n"
        "pwd.getpwuid(os.getuid())"
    )
    observation = _observed(("-c", code), tmp_path).finish(TIMEOUT_S)
    assert observation.status == 0, observation.output
    assert not observation.network


@pytest.mark.slow
@needs_strace
@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("open('home/a', 'w')", "home/a"),
        ("os.mkdir('home/folder')", "home/folder"),
        ("os.makedirs('home/.cache/Other/x')", "home/.cache/Other"),
        ("open('out/a', 'w'), os.rename('out/a', 'home/b')", "home/b"),
        ("os.symlink('/dev/null', 'home/link')", "home/link"),
        ("open('out/a', 'w'), os.link('out/a', 'home/second')", "home/second"),
        ("os.open('a', os.O_CREAT | os.O_WRONLY, dir_fd=os.open('home', 0))", "home/a"),
        ("os.chdir('home'), open('a b\\u00e4', 'w')", "home/a bä"),
        ("os.mkfifo('home/fifo')", "home/fifo"),
        ("subprocess.run(['touch', 'home/by-a-child'])", "home/by-a-child"),
    ],
)
def test_the_observer_sees_every_file(code: str, path: str, tmp_path: Path) -> None:
    observation = _observed(("-c", f"import os, subprocess\n{code}"), tmp_path).finish(TIMEOUT_S)
    assert observation.status == 0, observation.output
    assert tmp_path / path in _elsewhere(observation, tmp_path)


@pytest.mark.slow
@needs_strace
def test_own_files_are_allowed(tmp_path: Path) -> None:
    code = (
        "import os, tempfile\n"
        "for folder in ('.cache', '.config', '.local/share', '.local/state'):\n"
        "    os.makedirs(f'home/{folder}/moss-voice')\n"
        "    open(f'home/{folder}/moss-voice/a', 'w')\n"
        "open(tempfile.mkstemp()[1]), open('out/a', 'w'), open(os.devnull, 'w'), open('/etc/passwd')"
    )
    observation = _observed(("-c", code), tmp_path).finish(TIMEOUT_S)
    assert observation.status == 0, observation.output
    assert not _elsewhere(observation, tmp_path)


def test_interrupted_calls_are_put_together() -> None:
    log = (
        '7 openat(AT_FDCWD</w>, "a", O_WRONLY|O_CREAT, 0666 <unfinished ...>\n'
        "8 connect(3<TCP:[1]>, {sa_family=AF_INET, sin_port=htons(53)}, 16 <unfinished ...>\n"
        "7 <... openat resumed>) = 5</w/a>\n"
        "9 +++ exited with 0 +++\n"
        "8 <... connect resumed>) = -1 EINPROGRESS (Operation now in progress)\n"
        '9 openat(AT_FDCWD</w>, "b", O_WRONLY|O_CREAT, 0666) = -1 EACCES (Permission denied)\n'
    )
    calls = list(calls_of(log))
    assert len(network_calls(calls)) == 1
    assert written_paths(calls, Path("/w")) == {Path("/w/a")}
