// The page's part in the audio thread: speech of the microphone at 24 kHz, and playback of replies.
//
// A worklet runs in a global scope of its own, without a document, and addModule() takes nothing but an address: so
// this cannot be a part of page.js, and a blob: address would need a gap in the content security policy.

/** Sample rate of the protocol, in Hz. */
export const RATE = 24_000;

const BLOCK_SAMPLES = 480; // 20 ms
const REPORT_SAMPLES = 2_400; // 100 ms
const FADE_SAMPLES = 120; // 5 ms: a reply that is cut does not click
const ZERO_CROSSINGS = 32;
const ROLL_OFF = 0.94; // the transition band ends at the lower of the two Nyquist frequencies
const KAISER_BETA = 8.0; // about -80 dB

/** Streaming polyphase resampler: a Kaiser-windowed sinc, one set of taps for each phase of the output. */
export class Resampler {
  /** Rates in Hz, both integers. */
  constructor(from, to) {
    const divisor = greatestDivisor(from, to);
    this.up = to / divisor;
    this.down = from / divisor;
    const cutoff = Math.min(1, to / from) * ROLL_OFF;
    this.half = Math.ceil(ZERO_CROSSINGS / cutoff);
    this.phases = Array.from({ length: this.up }, (_, phase) => taps(phase / this.up, this.half, cutoff));
    // What is needed again: half a filter of silence at the beginning.
    this.kept = new Float32Array(this.half - 1);
    this.phase = 0;
  }

  /** More samples; returns those at the other rate that they complete. */
  push(pcm) {
    if (this.up === this.down) return pcm;
    const samples = new Float32Array(this.kept.length + pcm.length);
    samples.set(this.kept);
    samples.set(pcm, this.kept.length);
    const made = [];
    let at = this.half - 1;
    while (at + this.half < samples.length) {
      const weights = this.phases[this.phase];
      const first = at - this.half + 1;
      let sum = 0;
      for (let tap = 0; tap < weights.length; tap += 1) sum += weights[tap] * samples[first + tap];
      made.push(sum);
      this.phase += this.down;
      at += Math.floor(this.phase / this.up);
      this.phase %= this.up;
    }
    this.kept = samples.slice(at - this.half + 1);
    return Float32Array.from(made);
  }
}

function greatestDivisor(a, b) {
  return b === 0 ? a : greatestDivisor(b, a % b);
}

/** Weights of the samples around an output that is `fraction` of a sample after one of them. */
function taps(fraction, half, cutoff) {
  const weights = Float64Array.from({ length: 2 * half }, (_, tap) => {
    const distance = tap - half + 1 - fraction;
    const angle = Math.PI * cutoff * distance;
    const sinc = angle === 0 ? 1 : Math.sin(angle) / angle;
    const inside = Math.max(1 - (distance / half) ** 2, 0);
    return cutoff * sinc * (bessel(KAISER_BETA * Math.sqrt(inside)) / bessel(KAISER_BETA));
  });
  const sum = weights.reduce((total, weight) => total + weight);
  return weights.map((weight) => weight / sum);
}

/** Modified Bessel function of order 0. */
function bessel(x) {
  let term = 1;
  let sum = 1;
  for (let k = 1; term > 1e-12 * sum; k += 1) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

/** Posts blocks of 20 ms as PCM16 with their level (RMS, 1 at full scale). */
class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = new Resampler(sampleRate, RATE);
    this.block = new Int16Array(BLOCK_SAMPLES);
    this.filled = 0;
    this.power = 0;
  }

  process([channels]) {
    if (channels.length === 0) return true;
    for (const sample of this.resampler.push(mono(channels))) {
      const clipped = Math.max(-1, Math.min(1, sample));
      this.block[this.filled] = Math.round(clipped * 32_767);
      this.power += clipped * clipped;
      this.filled += 1;
      if (this.filled === BLOCK_SAMPLES) this.post();
    }
    return true;
  }

  post() {
    const level = Math.sqrt(this.power / BLOCK_SAMPLES);
    this.port.postMessage({ pcm: this.block, level }, [this.block.buffer]);
    this.block = new Int16Array(BLOCK_SAMPLES);
    this.filled = this.power = 0;
  }
}

function mono(channels) {
  if (channels.length === 1) return channels[0];
  return channels[0].map((_, at) => channels.reduce((sum, channel) => sum + channel[at], 0) / channels.length);
}

/**
 * Plays one reply after the other, and counts what was played of each.
 *
 * In: {kind: "audio", item, pcm}, {kind: "end", item}, {kind: "cut", item}. Out: {kind: "started" | "level" | "ended" |
 * "cut", item, played, gap}: samples handed to the device, and samples of silence because audio came late. Each cut is
 * answered, also that of a reply that has not begun or was over by then: nothing of another one is lost.
 */
export class Player extends AudioWorkletProcessor {
  constructor() {
    super();
    this.queue = []; // of {item, pcm}; pcm null at the end of the item
    this.at = 0; // in the first of the queue
    this.item = null;
    this.fade = 0; // samples left until the cut
    this.unreported = 0;
    this.port.onmessage = ({ data }) => this.take(data);
  }

  take(message) {
    if (message.kind === "audio") this.queue.push({ item: message.item, pcm: message.pcm });
    else if (message.kind === "end") this.queue.push({ item: message.item, pcm: null });
    else if (message.item === this.item) this.fade = FADE_SAMPLES;
    else {
      this.queue = this.queue.filter(({ item }) => item !== message.item);
      this.port.postMessage({ kind: "cut", item: message.item, played: 0, gap: 0 });
    }
  }

  process(_inputs, [[output]]) {
    for (let at = 0; at < output.length; at += 1) output[at] = this.next();
    this.unreported += output.length;
    if (this.item !== null && this.unreported >= REPORT_SAMPLES) this.report("level");
    return true;
  }

  next() {
    while (this.queue.length > 0 && this.at >= (this.queue[0].pcm?.length ?? 0)) {
      const { pcm } = this.queue.shift();
      this.at = 0;
      if (pcm === null) this.finish("ended");
    }
    const first = this.queue[0];
    if (first === undefined) {
      if (this.fade > 0) this.finish("cut");
      else if (this.item !== null) this.gap += 1;
      return 0;
    }
    // Also without the end of the one before: the connection may have been lost.
    if (this.item !== null && this.item !== first.item) this.finish("ended");
    if (this.item === null) this.begin(first.item);
    let sample = first.pcm[this.at];
    this.at += 1;
    this.played += 1;
    if (this.fade > 0) {
      this.fade -= 1;
      sample *= this.fade / FADE_SAMPLES;
      if (this.fade === 0) this.finish("cut");
    }
    return sample;
  }

  begin(item) {
    this.item = item;
    this.played = this.gap = 0;
    this.report("started");
  }

  finish(kind) {
    this.report(kind);
    this.queue = this.queue.filter(({ item }) => item !== this.item);
    this.at = this.fade = 0;
    this.item = null;
  }

  report(kind) {
    this.unreported = 0;
    this.port.postMessage({ kind, item: this.item, played: this.played, gap: this.gap });
  }
}

registerProcessor("microphone", Microphone);
registerProcessor("player", Player);
