"""A client of a Realtime server, driven by tests/tools/client_conformance: it connects, listens and asks."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.tools.client_conformance.drivers.driver import Absent, Driver, Json, run, show


class ScriptedClient(Driver):
    """What it shows are the events as they come."""

    async def connect(self, url: str, key: str, turns: str | None, **settings: Any) -> None:
        if turns is None:
            raise Absent("the turns are those of the server")
        self._socket = await connect(f"{url}/v1/realtime", subprotocols=[Subprotocol("realtime")])
        self._listener = asyncio.create_task(self._listen())
        tools = [{"type": "function"} | settings["tool"]] if "tool" in settings else []
        await self._send("session.update", session={"tools": tools})

    async def hear(self, pcm: str) -> None:
        await self._send("input_audio_buffer.append", audio=pcm)

    async def ask(self, text: str) -> None:
        part = {"type": "input_text", "text": text}
        await self._send("conversation.item.create", item={"role": "user", "content": [part]})
        await self._send("response.create")

    async def _send(self, kind: str, **values: Any) -> None:
        await self._socket.send(json.dumps({"type": kind} | values))

    async def _listen(self) -> None:
        async for message in self._socket:
            event: Json = json.loads(message)
            if event["type"] == "response.output_audio.delta":
                self.play(event["item_id"], len(base64.b64decode(event["delta"])))
            elif event["type"] == "response.output_audio_transcript.done":
                show("text", event["transcript"])


if __name__ == "__main__":
    run(ScriptedClient)
