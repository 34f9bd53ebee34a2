"""Composition root: creates the parts of the program in order, and shuts them down in order.

Start-up of the window: 1. logging (app.cli); 2. the right to use the settings (app.commands.window): a
second start ends here; 3. saved preferences complete the command line; 4. the session is created, nothing is
loaded yet; 5. Qt and the main window, which answers later starts; 6. the session starts its threads, checks
the bundle and loads the engine while the window is visible; 7. the event loop of Qt. Shut-down: window
closed, preferences saved, session stopped (turn cancelled, devices closed, threads joined), Qt ended. Main
thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from app import paths
from app.audio.wav import read_beginning
from app.progress import note, progress_bar
from app.server_address import ServerAddress, parse_address
from app.settings import StartSettings
from engine_runtime import installation
from engine_runtime.errors import MossVoiceError

if TYPE_CHECKING:
    from app.dialog.turn_end import TurnEndDetector
    from app.instance import Instance
    from app.session.engine_slot import EngineSource
    from engine_runtime.bundle.weights import Progress
    from engine_runtime.engine import Engine

_log = logging.getLogger(__name__)


def engine_factory(
    settings: StartSettings,
    reply_codes: int | None = None,
    *,
    progress: Progress | None = None,
    says_notes: bool = True,
) -> Callable[[], Engine]:
    """A factory that loads the engine, called in the thread that will use it. That raises MossVoiceError.

    `reply_codes` is the length of every spoken reply, for random weights, which never end one. `progress`
    receives the share of the files that was loaded; without it a terminal shows a bar. `says_notes`: what
    the user should know of the engine goes to stderr; a session has notices for it.
    """

    def load() -> Engine:
        from engine_runtime.bundle.bundle import Bundle
        from engine_runtime.bundle.released.full_size import describe
        from engine_runtime.engine import Engine

        _log.info("loading %s: %s", settings.bundle, settings.engine)
        with_files, voice = settings.engine.random_weights is None, None
        needs_weights = settings.engine.backend == "torch"
        bundle = (
            Bundle.open(settings.bundle, needs_lm_weights=needs_weights)
            if with_files
            else describe(settings.bundle)
        )
        if reply_codes is not None:
            speech = replace(
                bundle.lm.sampling_speech, do_sample=True, min_new=reply_codes + 1, max_new=reply_codes
            )
            bundle = replace(bundle, lm=replace(bundle.lm, sampling_speech=speech))
        if settings.voice is not None:
            from engine_runtime.codec.voice.recording import SEARCHED_S, VoiceSource

            voice = VoiceSource(*read_beginning(settings.voice, SEARCHED_S), cache=paths.voices_dir())
        with progress_bar("load") as show:
            engine = Engine.load(bundle, settings.engine, voice=voice, progress=progress or show)
        if paths_of_kernels := engine.stages.kernel_paths:
            _log.info("kernels: %s", paths_of_kernels)
        for problem in engine.notes if says_notes else ():
            note(str(problem))
        return engine

    return load


def engine_source(settings: StartSettings, *, progress: Progress | None = None) -> EngineSource:
    """The server of the settings, or their other environment, else a factory of an engine. MossVoiceError for
    an address that cannot be used, or where the client's package is not installed."""
    if not settings.is_remote:
        return engine_factory(settings, progress=progress, says_notes=False)
    if settings.engine_python is not None:
        _require_client()
        from app.remote.engine_process import engine_process_source

        return engine_process_source(settings)
    address = server_address(settings.server, settings.server_key)
    from app.remote.server_engine import remote_source

    _log.info("the engine is the server %s", address.name)
    return remote_source(address, settings.server_voice)


def server_address(text: str, key: str) -> ServerAddress:
    """The server at this address. MossVoiceError for one that cannot be used, or where the client's package
    is not installed."""
    address = parse_address(text, key)
    _require_client()
    return address


def _require_client() -> None:
    """MossVoiceError where the client's package is not installed."""
    if find_spec("websockets") is None:
        raise MossVoiceError(
            "A conversation with a server needs the package websockets, which is not installed.",
            "{remedy}",
            remedy=installation.add("client"),
        )


def load_turn_end_detector() -> TurnEndDetector | None:
    """The end-of-turn detector, or a note and None where it is not installed or damaged. In the thread that
    will use it."""
    from app.dialog.backchannel import backchannel_file, load_backchannel_head
    from app.dialog.smart_turn import SmartTurn
    from app.dialog.turn_end import TurnEndDetector, head_file, load_head

    try:
        return TurnEndDetector(SmartTurn(), load_head(head_file()), load_backchannel_head(backchannel_file()))
    except MossVoiceError as error:
        note(str(error))
        return None


def open_window(
    settings: StartSettings,
    *,
    is_minimised: bool = False,
    is_presenting: bool = False,
    instance: Instance | None = None,
    keeps_settings: bool = True,
) -> int:
    """Run the desktop application until its window is closed; returns the exit status.

    `instance` is the right to use the settings, and answers later starts. Without `keeps_settings` the window
    reads them, and keeps neither changes nor conversations.
    """
    from app.gui.common.preferences import PreferenceStore
    from app.gui.window.run import run_gui
    from app.session.session import Session
    from app.session.session_settings import SessionSettings

    def load(chosen: StartSettings) -> EngineSource:
        try:
            return engine_source(chosen, progress=lambda share: session.note_loading(share))
        except (
            MossVoiceError
        ) as error:  # chosen in the window, which reports it as a model that does not load
            return _failing(error)

    if settings.is_remote:
        engine_source(settings)  # what the command line names is checked before the window opens
    store = PreferenceStore(is_kept=keeps_settings)
    session = Session(
        load(store.load().start_settings(settings)),
        SessionSettings.of(settings),
        end_of_turn=load_turn_end_detector,
    )
    return run_gui(
        session,
        store=store,
        start=settings,
        loader=load,
        is_minimised=is_minimised,
        is_presenting=is_presenting,
        instance=instance,
    )


def _failing(error: MossVoiceError) -> EngineSource:
    def fail() -> Engine:
        raise error

    return fail
