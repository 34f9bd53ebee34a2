// The npm package openai: events are sent and received as they are. It speaks wss only.
import OpenAI from 'openai';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';
import { MODEL, Player, Turns, content, run, show } from './driver.mjs';

let client;
let settings;
const turns = new Turns();
const player = new Player();

const create = (role, text) =>
  client.send({ type: 'conversation.item.create', item: { type: 'message', role, content: content(role, text) } });
const respond = async () => {
  await turns.idle();
  client.send({ type: 'response.create' });
};

async function connect(given) {
  settings = given;
  const { url, key, turns: detection, instructions, tool, transcription } = given;
  const api = new OpenAI({ apiKey: key, baseURL: `${url.replace('ws', 'http')}/v1` });
  client = new OpenAIRealtimeWS({ model: MODEL }, api);
  await new Promise((resolve, reject) => {
    client.socket.on('open', resolve);
    client.socket.on('error', reject);
  });
  client.on('error', (error) => show('error', error.message));
  client.on('response.created', () => turns.begin());
  client.on('response.done', () => turns.end());
  client.on('response.output_audio.delta', (event) =>
    player.play(event.item_id, Buffer.from(event.delta, 'base64').length),
  );
  client.on('response.output_audio_transcript.done', (event) => show('text', event.transcript));
  client.on('conversation.item.input_audio_transcription.completed', (event) => show('heard', event.transcript));
  client.on('input_audio_buffer.speech_started', () => {
    const heard = player.interrupt(turns);
    if (!heard) return;
    const { itemId, endMs } = heard;
    client.send({ type: 'conversation.item.truncate', item_id: itemId, content_index: 0, audio_end_ms: endMs });
  });
  client.on('response.function_call_arguments.done', (event) => {
    show('call', event.arguments);
    const item = { type: 'function_call_output', call_id: event.call_id, output: settings.tool.output };
    client.send({ type: 'conversation.item.create', item });
    void respond();
  });
  const input = { turn_detection: detection && { type: detection } };
  if (transcription) input.transcription = { model: 'whisper-1' };
  const session = { type: 'realtime', audio: { input } };
  if (instructions !== undefined) session.instructions = instructions;
  if (tool) {
    const { name, description, parameters } = tool;
    session.tools = [{ type: 'function', name, description, parameters }];
  }
  client.send({ type: 'session.update', session });
}

await run({
  connect,
  hear: ({ pcm }) => client.send({ type: 'input_audio_buffer.append', audio: pcm }),
  commit: () => {
    client.send({ type: 'input_audio_buffer.commit' });
    client.send({ type: 'response.create' });
  },
  note: ({ text }) => create('user', text),
  ask: async ({ text }) => {
    create('user', text);
    await respond();
  },
  reconnect: async ({ history }) => {
    turns.end();
    await connect(settings);
    for (const [role, text] of history) create(role, text);
  },
});
