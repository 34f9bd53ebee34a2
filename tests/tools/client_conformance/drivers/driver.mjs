// What the drivers in JavaScript have in common: steps in, what a client shows out (talk.py says in what form).
import { createInterface } from 'node:readline';

export const MODEL = 'nano';
const BYTES_PER_MS = 48;
const write = (document) => process.stdout.write(JSON.stringify(document) + '\n');
export const show = (shown, value) => write({ shown, value });

/** The part of an item. */
export const content = (role, text) => [{ type: role === 'assistant' ? 'output_text' : 'input_text', text }];

/** Whether a response is in progress. */
export class Turns {
  #waiting = [];
  busy = false;
  begin() {
    this.busy = true;
  }
  end() {
    this.busy = false;
    this.#waiting.splice(0).forEach((go) => go());
  }
  idle() {
    return this.busy ? new Promise((go) => this.#waiting.push(go)) : Promise.resolve();
  }
}

/** Plays a reply in real time from its first audio on. */
export class Player {
  #itemId = '';
  #beganMs = 0;
  #bytes = 0;
  play(itemId, size) {
    if (itemId !== this.#itemId) [this.#itemId, this.#beganMs, this.#bytes] = [itemId, Date.now(), 0];
    this.#bytes += size;
    show('audio', size);
  }
  /** The item that was being played, and how much of it was heard (ms). */
  interrupt(turns) {
    const [itemId, heardMs] = [this.#itemId, Date.now() - this.#beganMs];
    const wholeMs = Math.floor(this.#bytes / BYTES_PER_MS);
    this.#itemId = '';
    if (!itemId || (heardMs >= wholeMs && !turns.busy)) return null;
    return { itemId, endMs: Math.min(heardMs, wholeMs) };
  }
}

/** Drive a client until stdin ends: the functions of an object are its steps. */
export async function run(driver) {
  const carryOut = async ({ id, step, ...values }) => {
    try {
      await driver[step](values);
      write({ id });
    } catch (error) {
      console.error(error);
      write({ id, problem: String(error) });
    }
  };
  process.on('unhandledRejection', (error) => show('error', String(error)));
  write({ steps: Object.keys(driver) });
  for await (const line of createInterface({ input: process.stdin })) void carryOut(JSON.parse(line));
  process.exit(0);
}
