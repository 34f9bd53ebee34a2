"""The packages livekit-agents and livekit-plugins-openai in Python."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents.llm import FunctionCallOutput, function_tool
from livekit.plugins.openai.realtime import RealtimeModel
from openai.types.beta.realtime.session import TurnDetection

from tests.tools.client_conformance.drivers.driver import MODEL, Driver, run, show

_RATE = 24_000


class LiveKitAgents(Driver):
    """A RealtimeSession of the plugin, which keeps the history and connects again by itself."""

    session: Any

    async def connect(self, url: str, key: str, **settings: Any) -> None:
        self.settings = {"url": url, "key": key} | settings
        turns = settings["turns"]
        values: dict[str, Any] = {"turn_detection": None if turns is None else TurnDetection(type=turns)}
        if not settings.get("transcription"):
            values["input_audio_transcription"] = None
        model = RealtimeModel(
            model=MODEL, api_key=key, base_url=f"{url}/v1", http_session=aiohttp.ClientSession(), **values
        )
        self._connected = asyncio.Event()
        self.session = model.session()
        self.session.on("generation_created", self._follow)
        self.session.on("error", lambda event: show("error", str(event.error)))
        self.session.on("input_speech_started", self._truncate)
        self.session.on("session_reconnected", lambda event: self._connected.set())
        self.session.on("input_audio_transcription_completed", lambda event: show("heard", event.transcript))
        self._tasks: set[asyncio.Task[None]] = set()
        if "instructions" in settings:
            await self.session.update_instructions(settings["instructions"])
        if tool := settings.get("tool"):

            async def call(raw_arguments: dict[str, object]) -> str:
                return str(tool["output"])

            names = ("name", "description", "parameters")
            await self.session.update_tools(
                [function_tool(call, raw_schema={name: tool[name] for name in names})]
            )

    async def hear(self, pcm: str) -> None:
        data = base64.b64decode(pcm)
        self.session.push_audio(rtc.AudioFrame(data, _RATE, 1, len(data) // 2))

    async def commit(self) -> None:
        self.session.commit_audio()
        await self.session.generate_reply()

    async def note(self, text: str) -> None:
        chat = self.session.chat_ctx.copy()
        chat.add_message(role="user", content=text)
        await self.session.update_chat_ctx(chat)

    async def ask(self, text: str) -> None:
        await self.note(text)
        await self.idle.wait()
        await self.session.generate_reply()

    async def reconnect(self, history: list[tuple[str, str]]) -> None:
        await self._connected.wait()
        while len(self.session.chat_ctx.items) < len(history):  # the server has yet to confirm the items
            await asyncio.sleep(0.05)

    def _follow(self, generation: Any) -> None:
        self.idle.clear()
        self._start(self._read(generation))

    def _start(self, work: Any) -> None:
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

    async def _read(self, generation: Any) -> None:
        async for message in generation.message_stream:
            self._start(self._listen(message))
            show("text", "".join([text async for text in message.text_stream]))
        self.idle.set()
        async for call in generation.function_stream:
            show("call", call.arguments)
            chat = self.session.chat_ctx.copy()
            output = self.settings["tool"]["output"]
            chat.items.append(
                FunctionCallOutput(call_id=call.call_id, name=call.name, output=output, is_error=False)
            )
            await self.session.update_chat_ctx(chat)
            await self.session.generate_reply()

    async def _listen(self, message: Any) -> None:
        async for frame in message.audio_stream:
            self.play(message.message_id, len(frame.data) * 2)

    def _truncate(self, event: Any) -> None:
        if heard := self.interrupt():
            item_id, end_ms = heard
            self.session.truncate(message_id=item_id, modalities=["audio"], audio_end_ms=end_ms)


if __name__ == "__main__":
    run(LiveKitAgents)
