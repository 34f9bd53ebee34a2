"""The package openai-agents in Python."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from agents import FunctionTool
from agents.realtime import RealtimeAgent, RealtimeModelSendRawMessage, RealtimeRunner

from tests.tools.client_conformance.drivers.driver import MODEL, Driver, Json, run, show


class OpenAIAgents(Driver):
    """A RealtimeSession, which keeps the history, truncates and calls functions by itself."""

    session: Any

    async def connect(self, url: str, key: str, **settings: Any) -> None:
        self.settings = {"url": url, "key": key} | settings
        turns = settings["turns"]
        heard: Json = {"turn_detection": None if turns is None else {"type": turns}}
        if settings.get("transcription"):
            heard["transcription"] = {"model": "whisper-1"}
        agent = RealtimeAgent(
            name="assistant", instructions=settings.get("instructions"), tools=self._tools(settings)
        )
        config = {"model_settings": {"audio": {"input": heard}}, "tracing_disabled": True}
        model = {"url": f"{url}/v1/realtime?model={MODEL}", "api_key": key}
        self.session = await RealtimeRunner(agent, config=config).run(model_config=model)
        await self.session.enter()
        self._listener = asyncio.create_task(self._listen())

    async def hear(self, pcm: str) -> None:
        await self.session.send_audio(base64.b64decode(pcm))

    async def commit(self) -> None:
        await self.session.send_audio(bytes(4_800), commit=True)
        await self._send("response.create", {})

    async def note(self, text: str) -> None:
        await self._create("user", text)

    async def ask(self, text: str) -> None:
        await self.session.send_message(text)

    async def reconnect(self, history: list[tuple[str, str]]) -> None:
        await self.session.close()
        await self.connect(**self.settings)
        for role, text in history:
            await self._create(role, text)

    async def _create(self, role: str, text: str) -> None:
        part = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
        item = {"type": "message", "role": role, "content": [part]}
        await self._send("conversation.item.create", {"item": item})

    async def _send(self, kind: str, values: Json) -> None:
        message = {"type": kind, "other_data": values}
        await self.session.model.send_event(RealtimeModelSendRawMessage(message=message))

    def _tools(self, settings: Json) -> list[Any]:
        tool = settings.get("tool")
        if tool is None:
            return []

        async def invoke(context: Any, arguments: str) -> str:
            show("call", arguments)
            return str(tool["output"])

        return [
            FunctionTool(
                name=tool["name"],
                description=tool["description"],
                params_json_schema=tool["parameters"],
                on_invoke_tool=invoke,
                strict_json_schema=False,
            )
        ]

    async def _listen(self) -> None:
        async for event in self.session:
            if event.type == "error":
                show("error", str(event.error))
            elif event.type == "audio":
                show("audio", len(event.audio.data))
            elif event.type == "history_updated":
                self._show_latest(event.history)

    def _show_latest(self, history: list[Any]) -> None:
        for role, kind in (("assistant", "text"), ("user", "heard")):
            items = [item for item in history if getattr(item, "role", "") == role]
            for part in items[-1].content if items else ():
                if words := getattr(part, "transcript", None):
                    show(kind, words)


if __name__ == "__main__":
    run(OpenAIAgents)
