"""The package pipecat-ai in Python."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMMessagesAppendFrame,
    LLMRunFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

from tests.tools.client_conformance.drivers.driver import MODEL, Driver, run, show

_RATE = 24_000


class _Ear(FrameProcessor):
    """A part of the pipeline that shows what passes."""

    def __init__(self, idle: asyncio.Event) -> None:
        super().__init__()
        self._idle = idle
        self._words = ""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Show a frame, and pass it on."""
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMFullResponseStartFrame):
            self._words = ""
            self._idle.clear()
        elif isinstance(frame, LLMFullResponseEndFrame):
            self._idle.set()
        elif isinstance(frame, TTSTextFrame):
            self._words += frame.text
            show("text", self._words)
        elif isinstance(frame, TTSAudioRawFrame):
            show("audio", len(frame.audio))
        elif isinstance(frame, TranscriptionFrame):
            show("heard", frame.text)
        await self.push_frame(frame, direction)


class PipecatAI(Driver):
    """A pipeline around OpenAIRealtimeLLMService, which truncates by itself. Notes are appended messages,
    which become items of the system; typed questions are items that the application creates."""

    async def connect(self, url: str, key: str, **settings: Any) -> None:
        self.settings = {"url": url, "key": key} | settings
        turns = settings["turns"]
        heard = events.AudioInput(
            turn_detection=events.TurnDetection(type=turns) if turns else False,
            transcription=events.InputAudioTranscription() if settings.get("transcription") else None,
        )
        properties = events.SessionProperties(
            audio=events.AudioConfiguration(input=heard), instructions=settings.get("instructions")
        )
        self.service = OpenAIRealtimeLLMService(
            api_key=key,
            base_url=f"{url}/v1/realtime",
            settings=OpenAIRealtimeLLMService.Settings(model=MODEL, session_properties=properties),
        )
        context = LLMContext(tools=self._tools(settings.get("tool")))
        pair = LLMContextAggregatorPair(context)
        # Of this connection alone: the pipeline of the one before may still end its reply.
        self.idle = asyncio.Event()
        ears = (_Ear(self.idle), _Ear(self.idle))
        self.worker = PipelineWorker(
            Pipeline([pair.user(), ears[0], self.service, ears[1], pair.assistant()]),
            params=PipelineParams(audio_in_sample_rate=_RATE, audio_out_sample_rate=_RATE),
            idle_timeout_secs=None,
        )
        self.worker.add_event_handler("on_pipeline_error", _show_error)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self.worker)
        self._runner = asyncio.create_task(runner.run())
        await self.worker.queue_frame(LLMRunFrame())
        await self.idle.wait()

    async def hear(self, pcm: str) -> None:
        await self.worker.queue_frame(InputAudioRawFrame(base64.b64decode(pcm), _RATE, 1))

    async def start_turn(self) -> None:
        """What a voice activity detector of its own does at the beginning of a turn."""
        await self.worker.queue_frame(InterruptionFrame())

    async def commit(self) -> None:
        await self.worker.queue_frame(UserStoppedSpeakingFrame())

    async def note(self, text: str) -> None:
        message = {"role": "user", "content": text}
        await self.service.queue_frame(LLMMessagesAppendFrame([message], run_llm=False))

    async def ask(self, text: str) -> None:
        await self._create("user", text)
        await self.idle.wait()
        await self.service.send_client_event(events.ResponseCreateEvent())

    async def reconnect(self, history: list[tuple[str, str]]) -> None:
        await self.worker.cancel()
        await self.connect(**self.settings)
        for role, text in history:
            await self._create(role, text)

    async def _create(self, role: str, text: str) -> None:
        kind = "output_text" if role == "assistant" else "input_text"
        item = events.ConversationItem(
            type="message", role=role, content=[events.ItemContent(type=kind, text=text)]
        )
        await self.service.send_client_event(events.ConversationItemCreateEvent(item=item))

    def _tools(self, tool: Any) -> Any:
        if tool is None:
            return ToolsSchema(standard_tools=[])

        async def call(params: Any) -> None:
            show("call", json.dumps(params.arguments))
            await params.result_callback(tool["output"])

        self.service.register_function(tool["name"], call)
        schema = FunctionSchema(
            name=tool["name"],
            description=tool["description"],
            properties=tool["parameters"]["properties"],
            required=tool["parameters"].get("required", []),
        )
        return ToolsSchema(standard_tools=[schema])


async def _show_error(worker: Any, frame: Any) -> None:
    show("error", str(frame.error))


if __name__ == "__main__":
    run(PipecatAI)
