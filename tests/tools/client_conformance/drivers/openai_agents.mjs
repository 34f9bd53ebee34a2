// The npm package @openai/agents: a RealtimeSession, which keeps the history, truncates and calls functions.
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession, tool as functionTool } from '@openai/agents/realtime';
import { MODEL, content, run, show } from './driver.mjs';

let session;
let settings;

const wordsOf = (history, role) => {
  const item = history.filter((one) => one.type === 'message' && one.role === role).at(-1);
  return item?.content.map((part) => part.transcript ?? part.text ?? '').join('');
};

async function connect(given) {
  settings = given;
  const { url: base, key, turns, instructions, tool, transcription } = given;
  const url = `${base}/v1/realtime?model=${MODEL}`;
  const tools = tool
    ? [
        functionTool({
          name: tool.name,
          description: tool.description,
          parameters: { additionalProperties: true, ...tool.parameters },
          strict: false,
          execute: (values) => {
            show('call', JSON.stringify(values));
            return tool.output;
          },
        }),
      ]
    : [];
  const input = { turnDetection: turns && { type: turns } };
  if (transcription) input.transcription = { model: 'whisper-1' };
  session = new RealtimeSession(new RealtimeAgent({ name: 'assistant', instructions, tools }), {
    transport: new OpenAIRealtimeWebSocket({ url, useInsecureApiKey: true }),
    model: MODEL,
    tracingDisabled: true,
    config: { audio: { input } },
  });
  session.on('error', ({ error }) => show('error', JSON.stringify(error?.error ?? error) ?? String(error)));
  session.on('audio', ({ data }) => show('audio', data.byteLength));
  session.on('history_updated', (history) => {
    for (const [role, kind] of [['assistant', 'text'], ['user', 'heard']]) {
      const words = wordsOf(history, role);
      if (words) show(kind, words);
    }
  });
  await session.connect({ apiKey: key, url });
}

await run({
  connect,
  hear: ({ pcm }) => {
    const data = Buffer.from(pcm, 'base64');
    session.sendAudio(data.buffer.slice(data.byteOffset, data.byteOffset + data.length));
  },
  commit: () => {
    session.transport.sendEvent({ type: 'input_audio_buffer.commit' });
    session.transport.requestResponse();
  },
  note: ({ text }) => session.transport.sendMessage(text, {}, { triggerResponse: false }),
  ask: ({ text }) => session.sendMessage(text),
  reconnect: async ({ history }) => {
    session.close();
    await connect(settings);
    const item = ([role, text], place) => ({
      itemId: `earlier_${place}`,
      type: 'message',
      role,
      status: 'completed',
      content: content(role, text),
    });
    session.updateHistory(history.map(item));
  },
});
