"""The package semantic-kernel in Python."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    ListenEvents,
    OpenAIRealtimeExecutionSettings,
    OpenAIRealtimeWebsocket,
    SendEvents,
)
from semantic_kernel.contents import AudioContent, ChatHistory, TextContent
from semantic_kernel.contents.realtime_events import RealtimeAudioEvent, RealtimeEvent, RealtimeTextEvent
from semantic_kernel.functions import kernel_function

from tests.tools.client_conformance.drivers.driver import MODEL, Absent, Driver, run, show


class SemanticKernel(Driver):
    """An OpenAIRealtimeWebsocket: events in both directions, functions called by the kernel."""

    service: Any

    async def connect(self, url: str, key: str, history: Any = None, **settings: Any) -> None:
        self.settings = {"url": url, "key": key} | settings
        if settings["turns"] is None:
            raise Absent("turn_detection=None is left out of session.update")
        client = AsyncOpenAI(api_key=key, base_url="http://127.0.0.1/v1", websocket_base_url=f"{url}/v1")
        self.service = OpenAIRealtimeWebsocket(ai_model_id=MODEL, client=client)
        values: dict[str, Any] = {"turn_detection": {"type": settings["turns"]}}
        if settings.get("transcription"):
            values["input_audio_transcription"] = {"model": "whisper-1"}
        if "instructions" in settings:
            values["instructions"] = settings["instructions"]
        kernel = Kernel()
        if tool := settings.get("tool"):
            plugin, _, name = tool["name"].rpartition("-")
            if not plugin:
                raise Absent("the names of functions are those of a plugin, a hyphen and a name")

            def call() -> str:
                show("call", "{}")
                return str(tool["output"])

            described = kernel_function(name=name, description=tool["description"])
            kernel.add_function(plugin, described(call))
            values["function_choice_behavior"] = FunctionChoiceBehavior.Auto()
        await self.service.create_session(
            settings=OpenAIRealtimeExecutionSettings(**values), chat_history=history, kernel=kernel
        )
        self._listener = asyncio.create_task(self._listen())

    async def hear(self, pcm: str) -> None:
        audio = AudioContent(data=base64.b64decode(pcm), data_format="base64")
        await self.service.send(RealtimeAudioEvent(audio=audio))

    async def note(self, text: str) -> None:
        await self.service.send(RealtimeTextEvent(text=TextContent(text=text)))

    async def ask(self, text: str) -> None:
        await self.note(text)
        await self.idle.wait()
        await self.service.send(RealtimeEvent(service_type=SendEvents.RESPONSE_CREATE))

    async def reconnect(self, history: list[tuple[str, str]]) -> None:
        self.idle.set()
        earlier = ChatHistory()
        for role, text in history:
            earlier.add_message({"role": role, "content": text})
        await self.connect(**self.settings, history=earlier)

    async def _listen(self) -> None:
        words = ""
        async for event in self.service.receive():
            if isinstance(event, RealtimeAudioEvent):
                data = event.service_event
                self.play(data.item_id, len(base64.b64decode(data.delta)))
                continue
            if isinstance(event, RealtimeTextEvent):
                words += event.text.text
                show("text", words)
                continue
            match event.service_type:
                case ListenEvents.ERROR:
                    show("error", str(event.service_event.error))
                case ListenEvents.RESPONSE_CREATED:
                    self.idle.clear()
                    words = ""
                case ListenEvents.RESPONSE_DONE:
                    self.idle.set()
                case ListenEvents.CONVERSATION_ITEM_INPUT_AUDIO_TRANSCRIPTION_COMPLETED:
                    show("heard", event.service_event.transcript)
                case ListenEvents.INPUT_AUDIO_BUFFER_SPEECH_STARTED:
                    await self._truncate()

    async def _truncate(self) -> None:
        if heard := self.interrupt():
            item_id, end_ms = heard
            await self.service.send(
                RealtimeEvent(
                    service_type=SendEvents.CONVERSATION_ITEM_TRUNCATE,
                    service_event={"item_id": item_id, "audio_end_ms": end_ms},
                )
            )


if __name__ == "__main__":
    run(SemanticKernel)
