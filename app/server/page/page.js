// A client of the Realtime server in the browser: talk, captions, and where the time of each turn went.
//
// Figures, waterfall and percentiles are those of the window; its definitions are in app/gui/latency/definitions.py.
// Times are milliseconds of performance.now(), audio is counted in samples at 24 kHz.

const RATE = 24_000;
const PER_MS = RATE / 1_000;
const SHOWN_TURNS = 40; // whose values are kept and summarized
const KEPT_MARKS = 3_000; // a minute of blocks of 20 ms
const KEPT_BLOCKS = 1_600; // 32 s: the longest turn
const BEFORE_PRESS = 10; // blocks, so that the first sound is not lost
const AFTER_RELEASE_MS = 80; // what was said is still on its way through the audio thread
const SHORTEST_PRESS_MS = 250;
const KEPT_ITEMS = 12; // told to the next session after a reconnect
const LONGEST_HOLD_MS = 1_500;
const LONGEST_CUT_MS = 300; // the audio thread answers within a block
const HOLD_REPLIES = 5;
const POLL_MS = 2_000;
const RECONNECT_MS = [500, 1_000, 2_000, 4_000, 8_000];
const GIVE_UP_MS = 300_000;
const STABLE_MS = 10_000;
const KEY_NAME = "moss-voice-key";

// ---- figures ----

export const STAGES = {
  endpointing: ["Endpointing", "Last sample of your speech → commit of the turn."],
  prefill: ["Prefill", "Tokens that were still to be prefilled when the turn was committed."],
  step: ["Decode steps", "Decode steps until the first packet of speech codes is complete."],
  token2mel: ["token2mel", "Flow matching: speech codes of the first packet to mel frames."],
  vocoder: ["Vocoder", "Mel frames of the first packet to samples."],
  network: [
    "Network",
    "End of your speech (or the request) → first audio in this page, minus the server's own time: both ways, and " +
      "the queues between.",
  ],
  hold: [
    "Playback hold",
    "First audio here → start of playback: deliberate buffering, so that the reply does not stutter.",
  ],
  device: ["Device", "Start of playback → first sample at the loudspeaker, as the browser reports its latency."],
};

// name, unit, colour, definition
export const FIGURES = {
  voice_to_voice: [
    ...["Voice to voice", "ms", "accent"],
    "Last sample of your speech → first sample of the reply at the loudspeaker.",
  ],
  ttfa: ["TTFA", "ms", "text", "Time to first audio: request of the reply → first audio that the server sends."],
  endpointing: ["Endpointing", "ms", "endpointing", STAGES.endpointing[1]],
  network: ["Network", "ms", "network", STAGES.network[1]],
  jitter: [
    ...["Jitter", "ms", "network"],
    "Difference between successive round trips of a request to this server, one every 2 s.",
  ],
  prefill: [
    ...["Prefill", "ms", "prefill"],
    "One prefill call of the language model, while you speak and at the commit of the turn.",
  ],
  step: ["Decode step", "ms", "step", "One decode step of the language model: one position of text or speech."],
  token2mel: ["token2mel", "ms", "token2mel", "Flow matching, speech codes to mel frames, per chunk."],
  vocoder: ["Vocoder", "ms", "vocoder", "Mel frames to samples, per chunk."],
  rtf_total: [
    ...["RTF total", "", "text"],
    "Real-time factor of a complete reply: its wall time / its audio. Below 1 is faster than real time.",
  ],
  users: ["Users", "", "muted", "Conversations in progress, of those that the server admits."],
  gpu_share: [
    ...["GPU share", "%", "muted"],
    "Part of the last 2 seconds in which the engine computed, for all users. Without a GPU it is that of the processor.",
  ],
};

/** Percentile with linear interpolation, as numpy's. */
export function percentile(values, part) {
  const sorted = [...values].sort((a, b) => a - b);
  const place = (sorted.length - 1) * part;
  const below = sorted[Math.floor(place)];
  return below + (sorted[Math.ceil(place)] - below) * (place % 1);
}

/** Values by turn; of one with several the median is the latest. */
export class Series {
  constructor() {
    this.turns = [];
  }

  put(values) {
    if (values.length > 0) this.turns.push(values);
    if (this.turns.length > SHOWN_TURNS) this.turns.shift();
  }

  summary() {
    if (this.turns.length === 0) return null;
    const all = this.turns.flat();
    return { last: percentile(this.turns.at(-1), 0.5), p50: percentile(all, 0.5), p95: percentile(all, 0.95) };
  }
}

/** A value as the window rounds it. */
export function shown(value, unit) {
  if (unit === "ms") return Math.abs(value) >= 99.95 ? value.toFixed(0) : value.toFixed(1);
  return unit === "%" ? value.toFixed(0) : value.toFixed(2);
}

/** Samples of a metric of Prometheus, by their labels. */
export function samplesOf(text, name) {
  const found = [];
  for (const line of text.split("\n")) {
    const match = /^([\w:]+)(\{[^}]*\})? (\S+)/.exec(line);
    if (match !== null && match[1] === name) found.push(Number(match[3]));
  }
  return found;
}

/**
 * Where the time of a turn went, in ms after the last speech sample, or after the request of one without: bars, and
 * the time in which none of the stages ran.
 *
 * `turn` has the times asked, first (audio arrived), started (playback), and latency, that of the device; `origin` is
 * when the last speech sample was captured. `timings` is the event of the server: its stages count from its request, which
 * precedes the commit by `confirmed_ms` where the reply was begun before the end of the turn was certain.
 */
export function waterfallOf(turn, timings) {
  const commit = turn.origin === null ? 0 : timings.endpointing_ms;
  const origin = turn.origin ?? turn.asked;
  const bars = [];
  const add = (stage, start, end, isEarly = false) => {
    if (end > start) bars.push({ stage, start, ms: end - start, isEarly });
  };
  if (commit > 0) add("endpointing", 0, commit);
  const request = commit - timings.confirmed_ms;
  for (const { name, start_ms, ms } of timings.stages) {
    if (start_ms >= timings.ttfa_ms || !(name in STAGES)) continue;
    add(name, request + start_ms, request + Math.min(start_ms + ms, timings.ttfa_ms), request + start_ms < commit);
  }
  const ready = Math.max(request + timings.ttfa_ms, commit);
  const [first, started] = [turn.first - origin, turn.started - origin];
  add("network", ready, first);
  add("hold", first, started);
  const end = started + turn.latency;
  add("device", started, end);
  let [covered, reached] = [0, 0];
  for (const bar of [...bars].sort((a, b) => a.start - b.start)) {
    covered += Math.max(0, bar.start + bar.ms - Math.max(reached, bar.start));
    reached = Math.max(reached, bar.start + bar.ms);
  }
  return { bars, end, other: Math.max(0, end - covered) };
}

/** How long a reply waits after its first packet: as late as packets of the latest replies came. */
export class StartPolicy {
  constructor() {
    this.worst = [];
    this.begin();
  }

  begin() {
    this.first = null;
    this.audio = this.lateness = 0;
  }

  get hold() {
    return Math.min(Math.max(0, ...this.worst), LONGEST_HOLD_MS);
  }

  /** A packet of so many ms has arrived. */
  add(at, length) {
    this.first ??= at;
    this.lateness = Math.max(this.lateness, at - this.first - this.audio);
    this.audio += length;
  }

  learn() {
    if (this.first !== null) this.worst.push(this.lateness);
    if (this.worst.length > HOLD_REPLIES) this.worst.shift();
    this.begin();
  }
}

// ---- audio ----

/** base64 of bytes. */
export function encoded(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8_192) text += String.fromCharCode(...bytes.subarray(at, at + 8_192));
  return btoa(text);
}

/** Samples of PCM16 in base64. */
export function decoded(text) {
  const bytes = atob(text);
  const pcm = new Float32Array(bytes.length >> 1);
  for (let at = 0; at < pcm.length; at += 1) {
    const sample = bytes.charCodeAt(2 * at) | (bytes.charCodeAt(2 * at + 1) << 8);
    pcm[at] = (sample > 32_767 ? sample - 65_536 : sample) / 32_768;
  }
  return pcm;
}

/**
 * Microphone and loudspeaker. The microphone has a context at the rate of the device, and the worklet resamples, since
 * Firefox connects no microphone to a context at another rate.
 */
class Sound {
  constructor(onBlock, onPlayed) {
    this.onBlock = onBlock;
    this.onPlayed = onPlayed;
    this.track = null;
  }

  /** After a click: browsers let nothing play before. */
  async openSpeaker() {
    this.output = new AudioContext({ sampleRate: RATE, latencyHint: "interactive" });
    await this.output.audioWorklet.addModule("audio_worklet.js");
    this.player = new AudioWorkletNode(this.output, "player", { numberOfInputs: 0, outputChannelCount: [1] });
    this.player.port.onmessage = ({ data }) => this.onPlayed(data);
    this.player.connect(this.output.destination);
    await this.output.resume();
  }

  async openMicrophone() {
    const audio = { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 };
    const stream = await navigator.mediaDevices.getUserMedia({ audio });
    [this.track] = stream.getAudioTracks();
    this.input = new AudioContext({ latencyHint: "interactive" });
    await this.input.audioWorklet.addModule("audio_worklet.js");
    const node = new AudioWorkletNode(this.input, "microphone", { numberOfOutputs: 1 });
    node.port.onmessage = ({ data }) => this.onBlock(data);
    this.input.createMediaStreamSource(stream).connect(node);
    node.connect(this.input.destination); // a node that leads nowhere is not run; its output is silence
    await this.input.resume();
  }

  get latency() {
    return 1_000 * (this.output.outputLatency || this.output.baseLatency || 0);
  }

  play(item, pcm) {
    this.player.port.postMessage({ kind: "audio", item, pcm }, [pcm.buffer]);
  }

  end(item) {
    this.player.port.postMessage({ kind: "end", item });
  }

  cut(item) {
    this.player.port.postMessage({ kind: "cut", item });
  }

  close() {
    this.track?.stop();
    this.track = null;
    for (const context of [this.input, this.output]) context?.close();
    this.input = this.output = undefined;
  }
}

function elapsed(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

function settledLater() {
  let resolve;
  const promise = new Promise((settle) => (resolve = settle));
  return { promise, resolve };
}

// ---- views ----

const element = (id) => document.getElementById(id);

function made(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** The captions of both sides, by item. */
class Captions {
  constructor() {
    this.list = element("captions");
    this.rows = new Map();
    new ResizeObserver(() => this.scroll()).observe(this.list); // a phone is turned, its keyboard opens
  }

  /** Show an item, or return the row that it has. */
  row(item, role, text = "") {
    let row = this.rows.get(item);
    if (row === undefined) {
      element("hint").hidden = true;
      row = { node: made("li", { class: role, "aria-busy": "true" }), words: [], text: "" };
      row.node.append(made("small", {}, role === "user" ? "You" : "Assistant"));
      this.rows.set(item, row);
      this.list.append(row.node);
      if (text) this.add(row, text);
    }
    this.scroll();
    return row;
  }

  /** More words of a row, which begin at a sample of its audio. */
  add(row, text, sample = 0) {
    const node = made("span", {}, text);
    row.words.push({ node, sample });
    row.text += text;
    row.node.append(node);
    this.scroll();
  }

  /** Replace what is shown of an item that is not known word by word. */
  replace(row, text, kind = "") {
    for (const { node } of row.words) node.remove();
    row.words = [];
    row.text = "";
    this.add(row, text);
    row.words[0].node.className = kind;
  }

  /** The reply was heard up to this sample; returns what was. */
  cut(row, sample) {
    for (const { node, sample: begins } of row.words) if (begins >= sample) node.className = "unheard";
    row.node.append(made("small", {}, "interrupted"));
    return row.words.filter((word) => word.sample < sample).map((word) => word.node.textContent).join("");
  }

  complete(item) {
    this.rows.get(item)?.node.removeAttribute("aria-busy");
  }

  remove(item) {
    this.rows.get(item)?.node.remove();
    this.rows.delete(item);
  }

  scroll() {
    this.list.scrollTop = this.list.scrollHeight;
  }
}

/** Figures and waterfall. */
class LatencyView {
  constructor() {
    this.series = Object.fromEntries(Object.keys(FIGURES).map((name) => [name, new Series()]));
    this.tiles = {};
    this.rows = {};
    for (const [name, [title, unit, ink, text]] of Object.entries(FIGURES)) {
      const value = made("span", { class: "value" }, "–");
      const spread = made("span", { class: "spread" }, "\u00a0");
      const tile = made("li", { title: text }, made("span", { class: "name" }, title), value, spread);
      tile.style.setProperty("--ink", `var(--${ink})`);
      this.tiles[name] = { value, spread, unit };
      element("figures").append(tile);
      element("definitions").append(made("dt", {}, title), made("dd", {}, text));
    }
    for (const [name, [title, text]] of Object.entries(STAGES)) {
      const track = made("td", { class: "track", "aria-hidden": "true" });
      const sum = made("td", {}, "–");
      const row = made("tr", { title: text }, made("th", { scope: "row" }, title), track, sum);
      row.style.setProperty("--ink", `var(--${name})`);
      this.rows[name] = { track, sum };
      element("waterfall").tBodies[0].append(row);
    }
  }

  /** The values of one turn, or of one measurement. */
  put(name, values) {
    this.series[name].put(values);
    const summary = this.series[name].summary();
    if (summary === null) return;
    const { unit } = this.tiles[name];
    const spread = `p50\u00a0${shown(summary.p50, unit)}\u2002p95\u00a0${shown(summary.p95, unit)}`;
    this.show(name, shown(summary.last, unit), spread);
  }

  show(name, text, spread) {
    const { value, spread: below, unit } = this.tiles[name];
    value.replaceChildren(text, made("span", { class: "unit" }, unit ? ` ${unit}` : ""));
    below.textContent = spread;
  }

  /** A spoken reply: the timings of the server, and those of this page. */
  take(turn, timings) {
    const { bars, end, other } = waterfallOf(turn, timings);
    const total = (stage) => bars.filter((bar) => bar.stage === stage).reduce((sum, bar) => sum + bar.ms, 0);
    for (const stage of ["prefill", "step", "token2mel", "vocoder"]) {
      this.put(stage, timings.stages.filter(({ name }) => name === stage).map(({ ms }) => ms));
    }
    this.put("ttfa", [timings.ttfa_ms]);
    this.put("rtf_total", [timings.rtf_total]);
    this.put("network", [total("network")]);
    if (turn.origin !== null) {
      this.put("endpointing", [timings.endpointing_ms]);
      this.put("voice_to_voice", [end]);
    }
    const begin = Math.min(0, ...bars.map(({ start }) => start));
    for (const [stage, { track, sum }] of Object.entries(this.rows)) {
      track.replaceChildren();
      for (const bar of bars.filter((one) => one.stage === stage)) {
        const span = made("span", bar.isEarly ? { class: "early" } : {});
        span.style.left = `${(100 * (bar.start - begin)) / (end - begin)}%`;
        span.style.width = `${(100 * bar.ms) / (end - begin)}%`;
        track.append(span);
      }
      sum.textContent = total(stage) > 0 ? `${shown(total(stage), "ms")} ms` : "–";
    }
    const early = bars.some((bar) => bar.isEarly) ? " Lighter bars: before the end of your turn was confirmed." : "";
    const between = `${shown(other, "ms")} ms of it between the stages.`;
    element("sum").textContent = `${shown(end, "ms")} ms to the loudspeaker, ${between}${early}`;
  }

  showGaps(samples) {
    const ms = samples / PER_MS;
    element("playback").textContent = ms > 0 ? `Playback ran dry for ${shown(ms, "ms")} ms.` : "Playback without gaps.";
  }
}

// ---- the server beside the conversation ----

/** What the server says over HTTP: who may connect, how many do, and how busy it is. */
class Server {
  constructor() {
    try {
      this.key = sessionStorage.getItem(KEY_NAME) ?? "";
    } catch {
      this.key = ""; // storage is switched off
    }
    this.busy = null;
    this.roundTrip = null;
  }

  get(path) {
    const headers = this.key ? { authorization: `Bearer ${this.key}` } : {};
    return fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(10_000) });
  }

  keepKey() {
    try {
      sessionStorage.setItem(KEY_NAME, this.key);
    } catch {
      // It is asked for again.
    }
  }

  /** The name of the model; null if the key is missing or wrong. */
  async model() {
    const answer = await this.get("v1/models");
    if (answer.status === 401) return null;
    if (!answer.ok) throw new Error(await reasonOf(answer));
    return (await answer.json()).data[0]?.id ?? "";
  }

  /** Why a conversation could not begin, in a sentence. */
  async reason() {
    const answer = await this.get("health");
    const { status, conversations, capacity } = await answer.json();
    if (status === "shutting_down") return "The server is shutting down.";
    if (status !== "ready") return "The engine of the server has failed. Its operator has to restart it.";
    if (conversations >= capacity) {
      return `The server is full: ${conversations} of ${capacity} conversations are in progress.`;
    }
    return (
      "The server refuses conversations from this page. If a proxy is between, it has to pass on WebSockets and the " +
      `Host header; else start the server with --allow-origin ${location.origin}.`
    );
  }

  /** Users, GPU share and round trip, for the view. */
  async poll(view) {
    performance.clearResourceTimings();
    const answer = await this.get("metrics");
    if (!answer.ok) return;
    const text = await answer.text();
    const sum = (name) => samplesOf(text, name).reduce((total, value) => total + value, 0);
    const [users, most] = [sum("moss_voice_conversations"), sum("moss_voice_conversation_limit")];
    view.show("users", String(users), `of ${most}`);
    const busy = { at: performance.now(), seconds: sum("moss_voice_engine_busy_seconds_total") };
    const engines = samplesOf(text, "moss_voice_engine_busy_seconds_total").length;
    if (this.busy !== null && engines > 0) {
      const share = (1e5 * (busy.seconds - this.busy.seconds)) / (busy.at - this.busy.at) / engines;
      view.put("gpu_share", [Math.max(0, Math.min(100, share))]);
    }
    this.busy = busy;
    const entry = performance.getEntriesByType("resource").findLast(({ name }) => name.endsWith("/metrics"));
    if (entry === undefined || entry.requestStart === 0) return;
    const roundTrip = entry.responseStart - entry.requestStart;
    if (this.roundTrip !== null) view.put("jitter", [Math.abs(roundTrip - this.roundTrip)]);
    this.roundTrip = roundTrip;
  }
}

async function reasonOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `The server answers ${answer.status}.`;
  }
}

// ---- the conversation ----

const STATES = {
  off: "Not connected",
  connecting: "Connecting",
  listening: "Listening",
  ready: "Ready",
  muted: "Muted",
  hearing: "You speak",
  thinking: "Thinking",
  replying: "Speaking",
  failed: "Disconnected",
};
const CROSSED = new Set(["response_cancel_not_active", "item_too_old"]); // two events have crossed

const UNREACHABLE = "The server cannot be reached.";
const AGAIN = "then press End and Start. You can type meanwhile.";
const MICROPHONE_PROBLEMS = {
  NotAllowedError: `The browser may not use the microphone. Allow it beside the address of this page, ${AGAIN}`,
  NotFoundError: `There is no microphone. Connect one, ${AGAIN}`,
  NotReadableError: `The microphone cannot be opened. Close other programs that use it, ${AGAIN}`,
};

/** One conversation, over as many sessions as its connection needs. */
class Conversation {
  constructor() {
    this.captions = new Captions();
    this.view = new LatencyView();
    this.server = new Server();
    this.sound = new Sound(
      (block) => this.takeBlock(block),
      (report) => this.notePlayed(report),
    );
    this.policy = new StartPolicy();
    this.socket = null;
    this.reply = null; // the one that is made or played
    this.isWanted = false; // whether the user has started it
    this.isMuted = this.isPush = this.isPressed = false;
    this.history = []; // items for the next session
    this.typedCount = 0;
    this.forgetSession();
  }

  /** What holds for one session only. */
  forgetSession() {
    this.isOpen = this.isHearing = false;
    this.sent = 0; // samples
    this.marks = []; // of {end, at}: when the block that ends at a sample was captured
    this.blocks = []; // the latest, sent or not
    this.speechStart = 0;
    this.speech = new Map(); // audio of user items until they are answered
    this.response = null; // in progress
    this.asked = 0;
  }

  // ---- beginning and end ----

  async start() {
    this.isWanted = true;
    this.lostAt = null;
    this.attempts = 0;
    showProblem("");
    this.refresh("connecting");
    try {
      await this.sound.openSpeaker();
      if (!(await this.authorize())) {
        this.end("");
        return;
      }
      await this.openMicrophone();
      this.connect();
      const poll = () => this.server.poll(this.view).catch(() => {}); // lose() says what is wrong
      this.poller = setInterval(poll, POLL_MS);
    } catch (error) {
      const isUnreachable = error instanceof TypeError || error.name === "TimeoutError"; // of fetch()
      this.end(isUnreachable ? UNREACHABLE : error.message);
    }
  }

  /** End the conversation, with the reason unless the user did. */
  end(problem) {
    this.isWanted = false;
    clearInterval(this.poller);
    clearTimeout(this.retry);
    this.socket?.close(1000);
    this.socket = null;
    this.sound.close();
    this.forgetSession();
    this.reply = null;
    showProblem(problem);
    this.refresh(problem ? "failed" : "off");
  }

  async authorize() {
    let name = await this.server.model();
    let problem = this.server.key ? "The key was not accepted." : "";
    while (name === null) {
      const key = await askForKey(problem);
      if (key === null) return false;
      this.server.key = key;
      name = await this.server.model();
      problem = "The key was not accepted.";
    }
    this.server.keepKey();
    element("model").textContent = name;
    return true;
  }

  async openMicrophone() {
    try {
      await this.sound.openMicrophone();
      this.sound.track.onended = () => {
        this.sound.track = null;
        showProblem(`The microphone is gone. Connect it, ${AGAIN}`);
        this.refresh();
      };
    } catch (error) {
      showProblem(MICROPHONE_PROBLEMS[error.name] ?? `The microphone cannot be used: ${error.message}`);
    }
  }

  connect() {
    const address = new URL("v1/realtime", location.href);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const protocols = ["realtime"];
    if (this.server.key) protocols.push(`openai-insecure-api-key.${this.server.key}`);
    this.forgetSession();
    this.refresh("connecting");
    let socket;
    try {
      socket = new WebSocket(address, protocols);
    } catch (error) {
      if (error.name !== "SyntaxError") throw error;
      this.end("Browsers cannot send this API key: use letters and digits only, as `openssl rand -hex 24` does.");
      return;
    }
    this.socket = socket;
    socket.onmessage = ({ data }) => this.take(JSON.parse(data));
    socket.onclose = (event) => {
      if (this.socket === socket) this.lose(event);
    };
  }

  /** The connection is gone: try again, unless the session is over. */
  async lose({ code, reason }) {
    const wasOpen = this.isOpen;
    this.socket = null;
    if (this.reply !== null && !this.reply.isCut && this.reply.first !== null) {
      this.release(this.reply);
      this.sound.end(this.reply.item);
    }
    this.finishReply();
    this.forgetSession();
    if (code === 1001) {
      const idle = "The session has ended because nothing was sent for a while. Press Start for another one.";
      this.end(reason === "idle" ? idle : "The session has ended: it lasts no longer. Press Start for another one.");
      return;
    }
    // Else a server that ends each session at once would be asked without a pause.
    if (wasOpen && performance.now() - this.openedAt > STABLE_MS) this.attempts = 0;
    if (wasOpen || this.lostAt === null) this.lostAt = performance.now();
    if (performance.now() - this.lostAt > GIVE_UP_MS) {
      this.end("The server was unreachable for 5 minutes. Press Start to try again.");
      return;
    }
    const wait = RECONNECT_MS[Math.min(this.attempts, RECONNECT_MS.length - 1)];
    this.attempts += 1;
    this.refresh("connecting");
    let why = "The connection was lost.";
    if (!wasOpen) why = await this.server.reason().catch(() => UNREACHABLE);
    if (!this.isWanted) return;
    showProblem(`${why} Trying again.`);
    this.retry = setTimeout(() => this.connect(), wait);
  }

  send(type, fields = {}) {
    if (this.isOpen) this.socket.send(JSON.stringify({ type, ...fields }));
  }

  // ---- events of the server ----

  take(event) {
    HANDLERS[event.type]?.call(this, event);
  }

  begin(event) {
    this.isOpen = true;
    this.openedAt = performance.now();
    const wasLost = this.lostAt !== null;
    if (wasLost) showProblem("");
    this.lostAt = null;
    const pcm = { format: { type: "audio/pcm", rate: RATE } };
    const transcription = { model: "whisper-1" }; // the server takes its own, if it has one
    const audio = { input: { ...pcm, transcription, turn_detection: this.turnDetection }, output: pcm };
    this.send("session.update", {
      session: { type: "realtime", output_modalities: ["audio"], audio, moss_voice: { timings: true } },
    });
    element("model").textContent = event.session.model;
    for (const item of this.history) this.send("conversation.item.create", { item });
    if (wasLost && this.history.at(-1)?.role === "user") this.ask();
    this.refresh();
  }

  get turnDetection() {
    return this.isPush ? null : { type: "semantic_vad" };
  }

  /** The user speaks: what is played is heard no further. */
  noteSpeech({ item_id: item, audio_start_ms: start }) {
    this.isHearing = true;
    this.speechStart = start;
    this.captions.replace(this.captions.row(item, "user"), "speaking", "spoken");
    this.interrupt();
    this.refresh();
  }

  noteSilence({ item_id: item, audio_end_ms: end }) {
    this.isHearing = false;
    this.keepSpeech(item, this.speechStart * PER_MS, end * PER_MS);
    this.refresh();
  }

  /** A turn by voice is an item. */
  noteCommitted({ item_id: item }) {
    if (this.isPush) this.keepSpeech(item, this.pressStart, this.sent);
    const speech = this.speech.get(item);
    const row = this.captions.row(item, "user");
    if (row.words.length === 0 || row.words[0].node.className === "spoken") {
      this.captions.replace(row, speech ? `spoken, ${(speech.samples / RATE).toFixed(1)} s` : "spoken", "spoken");
    }
    this.captions.complete(item);
    const content = speech ? [{ type: "input_audio", audio: speech.audio() }] : [];
    if (speech) this.remember({ type: "message", role: "user", content });
    this.speech.delete(item);
  }

  /** The speech was no turn. */
  noteCleared() {
    this.isHearing = false;
    for (const [item, row] of this.captions.rows) {
      if (row.words[0]?.node.className === "spoken" && row.node.hasAttribute("aria-busy")) this.captions.remove(item);
    }
    this.refresh();
  }

  noteTranscript({ item_id: item, delta, transcript }) {
    const row = this.captions.row(item, "user");
    if (transcript !== undefined) this.captions.replace(row, transcript);
    else if (row.words[0]?.node.className === "spoken") this.captions.replace(row, delta);
    else this.captions.add(row, delta);
  }

  beginResponse({ response }) {
    this.response = response.id;
    if (element("problem").textContent === this.refusal) showProblem(""); // it is over
    this.finishReply();
    this.policy.begin();
    const asked = this.asked;
    this.asked = 0;
    this.reply = {
      ...{ id: response.id, item: null, asked, first: null, started: null, latency: 0, timings: null },
      ...{ received: 0, played: 0, isCut: false, isOver: false, waiting: [], truncated: settledLater() },
    };
    this.refresh();
  }

  addAudio({ item_id: item, delta }) {
    const { reply, policy } = this;
    if (reply === null || reply.isCut) return;
    const [pcm, now] = [decoded(delta), performance.now()];
    reply.item = item;
    policy.add(now, pcm.length / PER_MS);
    reply.received += pcm.length;
    if (reply.first === null) {
      reply.first = now;
      if (policy.hold > 0) reply.holds = setTimeout(() => this.release(reply), policy.hold);
      else reply.waiting = null;
    }
    if (reply.waiting === null) this.sound.play(item, pcm);
    else reply.waiting.push(pcm);
  }

  /** Play what waits: the reply may begin. */
  release(reply) {
    const waiting = reply.waiting ?? [];
    reply.waiting = null;
    for (const pcm of waiting) this.sound.play(reply.item, pcm);
  }

  addWords({ item_id: item, delta }) {
    const { reply } = this;
    if (reply === null || reply.isCut) return;
    reply.item = item;
    this.captions.add(this.captions.row(item, "assistant"), delta, reply.received);
  }

  endResponse({ response }) {
    this.response = null;
    const { reply } = this;
    if (reply === null || reply.id !== response.id) return;
    if (response.status === "failed") this.noteError(response.status_details);
    if (!reply.isCut && reply.first !== null) {
      clearTimeout(reply.holds);
      if (reply.waiting !== null) this.release(reply);
      this.sound.end(reply.item);
      this.policy.learn();
    }
    if (reply.item !== null) this.captions.complete(reply.item);
    if (reply.first === null) this.finishReply();
    this.refresh();
  }

  noteTimings(event) {
    const { reply } = this;
    if (reply === null || reply.id !== event.response_id) return;
    reply.timings = event;
    this.measure(reply);
  }

  noteError({ error }) {
    if (CROSSED.has(error.code)) return;
    this.refusal = error.message;
    showProblem(error.message);
  }

  // ---- playback ----

  notePlayed({ kind, item, played, gap }) {
    const { reply } = this;
    if (reply === null || item !== reply.item) return;
    reply.played = played;
    if (kind === "started") {
      reply.started = performance.now();
      reply.latency = this.sound.latency;
      this.measure(reply);
    } else if (kind !== "level") {
      this.view.showGaps(gap);
    }
    if (kind === "ended") {
      reply.isOver = true;
      this.finishReply();
    } else if (kind === "cut") {
      this.truncate(reply);
    }
    this.refresh();
  }

  measure(reply) {
    const { timings } = reply;
    if (timings === null || reply.started === null) return;
    const spoken = timings.endpointing_ms === undefined ? null : this.capturedAt(timings.speech_end_ms);
    if (spoken === null && reply.asked === 0) return;
    this.view.take({ ...reply, origin: spoken }, timings);
  }

  /** When the sample at this place of the session's audio was captured; null if that is not known any more. */
  capturedAt(ms) {
    const sample = ms * PER_MS;
    const mark = this.marks.find(({ end }) => end >= sample);
    return mark === undefined ? null : mark.at - (mark.end - sample) / PER_MS;
  }

  /** Stop the reply, in the loudspeaker and in the server; done once the server knows what was heard. */
  async stopReply() {
    const { reply } = this;
    if (this.response !== null) this.send("response.cancel", { response_id: this.response });
    this.interrupt();
    if (reply !== null && !reply.isOver) await Promise.race([reply.truncated.promise, elapsed(LONGEST_CUT_MS)]);
  }

  /** What is played of the reply ends here: the worklet says how much that was. */
  interrupt() {
    const { reply } = this;
    if (reply === null || reply.isCut || reply.isOver) return;
    reply.isCut = true;
    clearTimeout(reply.holds);
    if (reply.first !== null && reply.waiting === null) this.sound.cut(reply.item);
    else this.truncate(reply);
  }

  truncate(reply) {
    reply.isOver = true;
    reply.truncated.resolve();
    if (reply.first === null) return;
    const ms = Math.floor(reply.played / PER_MS);
    this.send("conversation.item.truncate", { item_id: reply.item, content_index: 0, audio_end_ms: ms });
    const row = this.captions.rows.get(reply.item);
    if (row) reply.heard = this.captions.cut(row, reply.played);
    this.finishReply();
  }

  /** The reply is over: its words are what the next session is told. */
  finishReply() {
    const { reply } = this;
    this.reply = null;
    if (reply === null || reply.item === null) return;
    const text = reply.heard ?? this.captions.rows.get(reply.item)?.text ?? "";
    if (text) this.remember({ type: "message", role: "assistant", content: [{ type: "output_text", text }] });
  }

  remember(item) {
    this.history.push(item);
    if (this.history.length > KEPT_ITEMS) this.history.splice(0, this.history.length - KEPT_ITEMS);
  }

  // ---- what the user does ----

  takeBlock({ pcm, level }) {
    const block = { pcm: new Uint8Array(pcm.buffer), at: performance.now() };
    element("level").firstElementChild.style.width = `${Math.min(100, 100 * Math.sqrt(level))}%`;
    this.blocks.push(block);
    if (this.blocks.length > KEPT_BLOCKS) this.blocks.shift();
    if (this.isOpen && (!this.isPush || this.isPressed)) this.append(block);
  }

  append(block) {
    this.sent += block.pcm.length / 2;
    block.end = this.sent;
    this.marks.push({ end: this.sent, at: block.at });
    if (this.marks.length > KEPT_MARKS) this.marks.shift();
    this.send("input_audio_buffer.append", { audio: encoded(block.pcm) });
  }

  /** Keep the speech between two samples of the session, for the next one. */
  keepSpeech(item, start, end) {
    const blocks = this.blocks.filter((block) => block.end > start && block.end <= end + RATE / 50);
    const bytes = blocks.reduce((sum, { pcm }) => sum + pcm.length, 0);
    const audio = () => {
      const all = new Uint8Array(bytes);
      blocks.reduce((at, { pcm }) => (all.set(pcm, at), at + pcm.length), 0);
      return encoded(all);
    };
    if (bytes > 0) this.speech.set(item, { samples: bytes / 2, audio });
  }

  press() {
    if (!this.isPush || this.isPressed || !this.isOpen || this.sound.track === null) return;
    this.stopReply();
    this.isPressed = true;
    this.pressedAt = performance.now();
    this.pressStart = this.sent;
    for (const block of this.blocks.slice(-BEFORE_PRESS)) this.append(block);
    this.refresh();
  }

  async unpress() {
    if (!this.isPressed) return;
    await elapsed(AFTER_RELEASE_MS);
    if (!this.isPressed) return;
    this.isPressed = false;
    const isShort = performance.now() - this.pressedAt < SHORTEST_PRESS_MS + AFTER_RELEASE_MS;
    if (isShort) this.send("input_audio_buffer.clear");
    else {
      this.send("input_audio_buffer.commit");
      this.ask();
    }
    this.refresh();
  }

  ask() {
    this.asked = performance.now();
    this.send("response.create");
  }

  async type(text) {
    await this.stopReply();
    const item = { type: "message", role: "user", content: [{ type: "input_text", text }] };
    this.send("conversation.item.create", { item });
    this.remember(item);
    this.typedCount += 1;
    const name = `typed ${this.typedCount}`;
    this.captions.row(name, "user", text);
    this.captions.complete(name);
    this.ask();
  }

  mute(isMuted) {
    this.isMuted = isMuted;
    if (this.sound.track !== null) this.sound.track.enabled = !isMuted;
    this.refresh();
  }

  usePush(isPush) {
    this.isPush = isPush;
    this.isPressed = false;
    const input = { turn_detection: this.turnDetection };
    this.send("session.update", { session: { type: "realtime", audio: { input } } });
    this.refresh();
  }

  // ---- what is shown ----

  get state() {
    if (!this.isOpen) return this.isWanted ? "connecting" : "off";
    if (this.isHearing || this.isPressed) return "hearing";
    if (this.reply !== null) return this.reply.started !== null && !this.reply.isOver ? "replying" : "thinking";
    if (this.isMuted) return "muted";
    return this.isPush || this.sound.track === null ? "ready" : "listening";
  }

  refresh(state = this.state) {
    const badge = element("state");
    const text = state === "connecting" && this.lostAt !== null ? "Reconnecting" : STATES[state];
    if (badge.textContent !== text) badge.textContent = text;
    badge.dataset.state = state;
    const hasMicrophone = this.isOpen && this.sound.track !== null;
    element("start").textContent = this.isWanted ? "End" : "Start";
    element("start").classList.toggle("primary", !this.isWanted);
    for (const id of ["mute", "mode"]) element(id).disabled = !hasMicrophone;
    element("stop").disabled = !this.isOpen || this.reply === null;
    element("text").disabled = element("typed").querySelector("button").disabled = !this.isOpen;
    element("mute").setAttribute("aria-pressed", this.isMuted);
    element("mute").textContent = this.isMuted ? "Unmute" : "Mute";
    element("mode").setAttribute("aria-pressed", this.isPush);
    element("press").hidden = !this.isPush || !hasMicrophone;
    element("press").classList.toggle("held", this.isPressed);
  }
}

const HANDLERS = {
  "session.created": Conversation.prototype.begin,
  "input_audio_buffer.speech_started": Conversation.prototype.noteSpeech,
  "input_audio_buffer.speech_stopped": Conversation.prototype.noteSilence,
  "input_audio_buffer.committed": Conversation.prototype.noteCommitted,
  "input_audio_buffer.cleared": Conversation.prototype.noteCleared,
  "conversation.item.input_audio_transcription.delta": Conversation.prototype.noteTranscript,
  "conversation.item.input_audio_transcription.completed": Conversation.prototype.noteTranscript,
  "response.created": Conversation.prototype.beginResponse,
  "response.output_audio.delta": Conversation.prototype.addAudio,
  "response.output_audio_transcript.delta": Conversation.prototype.addWords,
  "response.done": Conversation.prototype.endResponse,
  "moss_voice.response.timings": Conversation.prototype.noteTimings,
  error: Conversation.prototype.noteError,
};

function showProblem(text) {
  element("problem").textContent = text;
  element("problem").hidden = text === "";
}

/** Why the browser does not let this page use sound; empty if it does. */
function unsupportedReason() {
  if (!window.isSecureContext) {
    const local = `http://localhost:${location.port || 80}`;
    return (
      "Browsers give the microphone to a page only over https, or from this machine, and this one came from " +
      `${location.origin}.\n` +
      "Start the server with --tls-cert and --tls-key and open it with https://, or forward its port " +
      `(ssh -L ${location.port || 80}:localhost:${location.port || 80} ${location.hostname}) and open ${local}.`
    );
  }
  const isComplete = navigator.mediaDevices?.getUserMedia && window.AudioWorkletNode;
  return isComplete ? "" : "This browser has no AudioWorklet or no access to microphones. Use a current one.";
}

/** Ask for a key; null if the user does not want to give one. */
function askForKey(problem) {
  const [dialog, form, input] = [element("key-dialog"), element("key-form"), element("key")];
  element("key-problem").textContent = problem;
  input.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const finish = (key) => {
      form.onsubmit = element("key-cancel").onclick = dialog.oncancel = null;
      dialog.close();
      resolve(key);
    };
    form.onsubmit = (event) => {
      event.preventDefault();
      finish(input.value.trim());
    };
    element("key-cancel").onclick = () => finish(null);
    dialog.oncancel = () => finish(null);
  });
}

/** Whether a key belongs to what has the focus. */
function isTaken(event) {
  const owner = event.key === "Escape" ? "dialog" : "input, dialog";
  return event.target.closest(owner) !== null || event.ctrlKey || event.altKey || event.metaKey;
}

function connectControls(conversation) {
  element("start").onclick = () => (conversation.isWanted ? conversation.end("") : conversation.start());
  element("mute").onclick = () => conversation.mute(!conversation.isMuted);
  element("stop").onclick = () => conversation.stopReply();
  element("mode").onclick = () => conversation.usePush(!conversation.isPush);
  element("typed").onsubmit = (event) => {
    event.preventDefault();
    const text = element("text").value.trim();
    element("text").value = "";
    if (text) conversation.type(text);
  };
  const press = element("press");
  press.onpointerdown = (event) => {
    press.setPointerCapture(event.pointerId);
    conversation.press();
  };
  press.onpointerup = press.onpointercancel = () => conversation.unpress();
  press.oncontextmenu = (event) => event.preventDefault(); // of a long touch
  document.onkeydown = (event) => {
    if (isTaken(event)) return;
    if (event.key === "Escape") conversation.stopReply();
    else if (event.key === "m" && !event.repeat && !element("mute").disabled) conversation.mute(!conversation.isMuted);
    else if (event.key === " " && conversation.isPush && (event.target === document.body || event.target === press)) {
      event.preventDefault();
      if (!event.repeat) conversation.press();
    }
  };
  document.onkeyup = (event) => {
    if (event.key !== " " || !conversation.isPressed) return;
    event.preventDefault();
    conversation.unpress();
  };
  window.onblur = () => conversation.unpress();
  window.onpagehide = () => conversation.end("");
}

if (typeof document !== "undefined") {
  const conversation = new Conversation();
  connectControls(conversation);
  showProblem(unsupportedReason());
  element("start").disabled = unsupportedReason() !== "";
}
