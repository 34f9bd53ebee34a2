// A RealtimeSession of @openai/agents asks a recorded and a typed question, and interrupts a third reply.
// node client.mjs URL KEY PCM   (PCM: 24 kHz, 16 bit, mono, no header). Prints one JSON document.
import { readFileSync } from 'node:fs';
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession } from '@openai/agents/realtime';

const [url, apiKey, file] = process.argv.slice(2);
const BLOCK = 4800; // bytes, 100 ms
const transport = new OpenAIRealtimeWebSocket({ url, useInsecureApiKey: true });
const session = new RealtimeSession(new RealtimeAgent({ name: 'assistant', instructions: 'Answer briefly.' }), {
  transport,
  model: 'nano',
  tracingDisabled: true,
});
const errors = [];
let bytes = 0;
session.on('error', (error) => errors.push(JSON.stringify(error)));
session.on('audio', (event) => (bytes += event.data.byteLength));
const finished = () =>
  new Promise((resolve) => {
    const listener = (event) => {
      if (event.type === 'response.done') {
        session.off('transport_event', listener);
        resolve();
      }
    };
    session.on('transport_event', listener);
  });

await session.connect({ apiKey, url });
const spoken = finished();
const pcm = readFileSync(file);
for (let start = 0; start < pcm.length; start += BLOCK) {
  const block = pcm.subarray(start, start + BLOCK);
  session.sendAudio(block.buffer.slice(block.byteOffset, block.byteOffset + block.length));
}
await spoken;
const typed = finished();
session.sendMessage('and plus two');
await typed;
const truncated = new Promise((resolve) => {
  session.on('transport_event', (event) => {
    if (event.type === 'conversation.item.truncated') resolve(event.audio_end_ms);
  });
});
session.once('audio', () => session.interrupt());
session.sendMessage('count from one to ten');
const heardMs = await truncated;
const replies = session.history
  .filter((item) => item.role === 'assistant')
  .map((item) => item.content.map((part) => part.transcript ?? part.text).join(''));
console.log(JSON.stringify({ replies: replies.slice(0, 2), bytes, heardMs, errors }));
session.close();
process.exit(0);
