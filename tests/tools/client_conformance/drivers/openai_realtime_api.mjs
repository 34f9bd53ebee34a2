// The npm package openai-realtime-api: names of before GA; it keeps the items, and calls functions.
import { RealtimeClient } from 'openai-realtime-api';
import { MODEL, Player, Turns, run, show } from './driver.mjs';

let client;
let settings;
const turns = new Turns();
const player = new Player();

const create = (role, text) => {
  const part = { type: role === 'assistant' ? 'text' : 'input_text', text };
  client.realtime.send('conversation.item.create', { item: { type: 'message', role, content: [part] } });
};

async function connect(given) {
  settings = given;
  const { url, key, turns: detection, instructions, tool, transcription } = given;
  const sessionConfig = { turn_detection: detection && { type: detection } };
  if (instructions !== undefined) sessionConfig.instructions = instructions;
  if (!transcription) sessionConfig.input_audio_transcription = null;
  client = new RealtimeClient({ sessionConfig, url: `${url}/v1/realtime`, model: MODEL, apiKey: key });
  client.realtime.on('server.response.created', () => turns.begin());
  client.realtime.on('server.response.done', () => turns.end());
  client.on('conversation.updated', ({ item, delta }) => {
    if (delta?.audio) player.play(item.id, delta.audio.byteLength);
    if (delta?.transcript && item.role === 'assistant') show('text', item.formatted.transcript);
    if (delta?.transcript && item.role === 'user') show('heard', item.formatted.transcript);
  });
  client.on('conversation.interrupted', () => {
    const heard = player.interrupt(turns);
    if (heard) client.cancelResponse(heard.itemId, heard.endMs * 24);
  });
  if (tool) {
    const { name, description, parameters } = tool;
    client.addTool({ name, description, parameters }, (values) => {
      show('call', JSON.stringify(values));
      return tool.output;
    });
  }
  await client.connect();
}

await run({
  connect,
  hear: ({ pcm }) => {
    const data = Buffer.from(pcm, 'base64');
    client.appendInputAudio(new Int16Array(data.buffer.slice(data.byteOffset, data.byteOffset + data.length)));
  },
  commit: () => client.createResponse(),
  note: ({ text }) => create('user', text),
  ask: async ({ text }) => {
    create('user', text);
    await turns.idle();
    client.realtime.send('response.create');
  },
  reconnect: async ({ history }) => {
    turns.end();
    client.disconnect();
    await connect(settings);
    for (const [role, text] of history) create(role, text);
  },
});
