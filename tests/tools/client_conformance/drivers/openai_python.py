"""The package openai in Python."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from openai import AsyncOpenAI

from tests.tools.client_conformance.drivers.driver import MODEL, Driver, Json, run, show


class OpenAIPython(Driver):
    """Events are sent and received as they are; the application plays, truncates and calls functions."""

    connection: Any

    async def connect(self, url: str, key: str, **settings: Any) -> None:
        self.settings = {"url": url, "key": key} | settings
        client = AsyncOpenAI(api_key=key, base_url="http://127.0.0.1/v1", websocket_base_url=f"{url}/v1")
        self.connection = await client.realtime.connect(model=MODEL).enter()
        turns = settings["turns"]
        heard: Json = {"turn_detection": None if turns is None else {"type": turns}}
        if settings.get("transcription"):
            heard["transcription"] = {"model": "whisper-1"}
        session: Json = {"type": "realtime", "audio": {"input": heard}}
        if "instructions" in settings:
            session["instructions"] = settings["instructions"]
        if tool := settings.get("tool"):
            names = ("name", "description", "parameters")
            session["tools"] = [{"type": "function"} | {name: tool[name] for name in names}]
        await self.connection.session.update(session=session)
        self._listener = asyncio.create_task(self._listen())

    async def hear(self, pcm: str) -> None:
        await self.connection.input_audio_buffer.append(audio=pcm)

    async def commit(self) -> None:
        await self.connection.input_audio_buffer.commit()
        await self.connection.response.create()

    async def note(self, text: str) -> None:
        await self._create("user", text)

    async def ask(self, text: str) -> None:
        await self._create("user", text)
        await self.idle.wait()
        await self.connection.response.create()

    async def reconnect(self, history: list[tuple[str, str]]) -> None:
        self.idle.set()
        await self.connect(**self.settings)
        for role, text in history:
            await self._create(role, text)

    async def _create(self, role: str, text: str) -> None:
        part = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
        item: Any = {"type": "message", "role": role, "content": [part]}
        await self.connection.conversation.item.create(item=item)

    async def _listen(self) -> None:
        async for event in self.connection:
            await self._take(event)

    async def _take(self, event: Any) -> None:
        match event.type:
            case "error":
                show("error", event.error.message)
            case "response.created":
                self.idle.clear()
            case "response.done":
                self.idle.set()
            case "response.output_audio.delta":
                self.play(event.item_id, len(base64.b64decode(event.delta)))
            case "response.output_audio_transcript.done":
                show("text", event.transcript)
            case "conversation.item.input_audio_transcription.completed":
                show("heard", event.transcript)
            case "input_audio_buffer.speech_started":
                if heard := self.interrupt():
                    item_id, end_ms = heard
                    await self.connection.conversation.item.truncate(
                        item_id=item_id, content_index=0, audio_end_ms=end_ms
                    )
            case "response.function_call_arguments.done":
                show("call", event.arguments)
                output = self.settings["tool"]["output"]
                item: Any = {"type": "function_call_output", "call_id": event.call_id, "output": output}
                await self.connection.conversation.item.create(item=item)
                self._answer = asyncio.create_task(self._respond_when_idle())

    async def _respond_when_idle(self) -> None:
        await self.idle.wait()
        await self.connection.response.create()


if __name__ == "__main__":
    run(OpenAIPython)
