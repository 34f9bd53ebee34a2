// What can be checked of the page without a browser. Run by test_web_page.py: node page_parts.mjs FOLDER_OF_THE_PAGE

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.argv[2]}/`);
const posted = [];
globalThis.AudioWorkletProcessor = class {
  port = { postMessage: (message) => posted.push(message) };
};
globalThis.registerProcessor = () => {};
globalThis.sampleRate = 24_000;
const { Player, Resampler } = await import(new URL("audio_worklet.js", folder));
const page = await import(new URL("page.js", folder));

const near = (given, wanted, tolerance) => assert.ok(Math.abs(given - wanted) <= tolerance, `${given}, not ${wanted}`);
const sine = (hertz, rate, count) => Float32Array.from({ length: count }, (_, at) => Math.sin((2 * Math.PI * hertz * at) / rate));
const level = (pcm) => Math.sqrt(pcm.reduce((sum, sample) => sum + sample * sample, 0) / pcm.length);

const tests = {
  resamplerKeepsSpeechAndRemovesWhatWouldFoldBack() {
    for (const rate of [8_000, 16_000, 22_050, 44_100, 48_000, 96_000]) {
      const wanted = sine(1_000, 24_000, 24_000);
      const given = new Resampler(rate, 24_000).push(sine(1_000, rate, rate));
      assert.ok(given.length > 23_000, `${rate}: ${given.length}`);
      const middle = given.subarray(2_000, 22_000);
      near(level(middle.map((sample, at) => sample - wanted[at + 2_000])), 0, 1e-3);
    }
    for (const hertz of [13_000, 16_000, 23_000]) {
      const given = new Resampler(48_000, 24_000).push(sine(hertz, 48_000, 48_000));
      near(level(given.subarray(2_000, 22_000)), 0, 1e-3);
    }
  },
  resamplerInBlocksIsResamplerAtOnce() {
    for (const rate of [16_000, 44_100, 48_000, 192_000]) {
      const pcm = sine(700, rate, 20_000);
      const whole = new Resampler(rate, 24_000).push(pcm);
      const streaming = new Resampler(rate, 24_000);
      const parts = [];
      for (let at = 0; at < pcm.length; at += 128) parts.push(...streaming.push(pcm.subarray(at, at + 128)));
      assert.deepEqual(Float32Array.from(parts), whole);
    }
    const same = sine(700, 24_000, 100);
    assert.equal(new Resampler(24_000, 24_000).push(same), same);
  },
  playerCountsWhatItPlays() {
    posted.length = 0;
    const player = new Player();
    const render = () => {
      const output = new Float32Array(128);
      player.process([], [[output]]);
      return output;
    };
    player.take({ kind: "audio", item: "a", pcm: new Float32Array(200).fill(0.5) });
    assert.deepEqual([...render()], Array(128).fill(0.5));
    const [late] = [render()];
    assert.equal(late[71], 0.5);
    assert.equal(late[72], 0, "the rest has not come");
    player.take({ kind: "audio", item: "a", pcm: new Float32Array(10).fill(0.25) });
    player.take({ kind: "end", item: "a" });
    render();
    assert.deepEqual(posted.map(({ kind, played }) => [kind, played]), [["started", 0], ["ended", 210]]);
    assert.equal(posted.at(-1).gap, 56);
  },
  playerFadesOutWhatIsCut() {
    posted.length = 0;
    const player = new Player();
    const output = new Float32Array(128);
    player.take({ kind: "audio", item: "a", pcm: new Float32Array(1_000).fill(0.5) });
    player.process([], [[output]]);
    player.take({ kind: "cut", item: "a" });
    player.process([], [[output]]);
    assert.ok(output[0] < 0.5 && output[0] > 0.45 && output[110] < 0.05);
    assert.deepEqual([...output.subarray(120)], Array(8).fill(0));
    assert.deepEqual(posted.at(-1), { kind: "cut", item: "a", played: 248, gap: 0 });
    player.take({ kind: "audio", item: "b", pcm: new Float32Array(10).fill(0.5) });
    player.take({ kind: "cut", item: "a" });
    assert.deepEqual(posted.at(-1), { kind: "cut", item: "a", played: 0, gap: 0 }, "it is over, and b is not");
    player.process([], [[output]]);
    assert.equal(output[9], 0.5);
    player.take({ kind: "audio", item: "c", pcm: new Float32Array(10).fill(0.5) });
    player.take({ kind: "cut", item: "c" });
    assert.deepEqual(posted.at(-1), { kind: "cut", item: "c", played: 0, gap: 0 }, "it had not begun");
    player.process([], [[output]]);
    assert.equal(level(output), 0);
  },
  playerBeginsAReplyWithoutTheEndOfTheOneBefore() {
    posted.length = 0;
    const player = new Player();
    player.take({ kind: "audio", item: "a", pcm: new Float32Array(10) });
    player.take({ kind: "audio", item: "b", pcm: new Float32Array(10) });
    player.take({ kind: "end", item: "b" });
    player.process([], [[new Float32Array(128)]]);
    const wanted = [["started", "a", 0], ["ended", "a", 10], ["started", "b", 0], ["ended", "b", 10]];
    assert.deepEqual(posted.map(({ kind, item, played }) => [kind, item, played]), wanted);
  },
  percentilesAreNumpys() {
    assert.equal(page.percentile([3, 1, 2, 10], 0.5), 2.5);
    near(page.percentile([3, 1, 2, 10], 0.95), 8.95, 1e-9);
    const series = new page.Series();
    assert.equal(series.summary(), null);
    for (let turn = 0; turn < 50; turn += 1) series.put([turn, turn + 2]);
    series.put([]);
    assert.equal(series.turns.length, 40);
    assert.equal(series.summary().last, 50);
  },
  metricsAreRead() {
    const text = '# TYPE a gauge\na 1.0\nab 5.0\na{replica="x y"} 2.5\n';
    assert.deepEqual(page.samplesOf(text, "a"), [1, 2.5]);
  },
  soundKeepsItsBytes() {
    const pcm = new Int16Array(20_000).map((_, at) => at * 3);
    const back = page.decoded(page.encoded(new Uint8Array(pcm.buffer)));
    assert.deepEqual(back.map((sample) => Math.round(sample * 32_768)), Float32Array.from(pcm));
  },
  aSpokenTurn() {
    const timings = {
      ...{ ttfa_ms: 200, confirmed_ms: 50, endpointing_ms: 300, speech_end_ms: 1_000 },
      stages: [
        { name: "prefill", start_ms: 0, ms: 40 },
        { name: "step", start_ms: 60, ms: 100 },
        { name: "vocoder", start_ms: 170, ms: 60 },
        { name: "step", start_ms: 210, ms: 10 },
      ],
    };
    const turn = { origin: 5_000, asked: 0, first: 5_470, started: 5_480, latency: 25 };
    const { bars, end, other } = page.waterfallOf(turn, timings);
    assert.deepEqual(
      bars.map(({ stage, start, ms, isEarly }) => [stage, start, ms, isEarly]),
      [
        ["endpointing", 0, 300, false],
        ["prefill", 250, 40, true],
        ["step", 310, 100, false],
        ["vocoder", 420, 30, false],
        ["network", 450, 20, false],
        ["hold", 470, 10, false],
        ["device", 480, 25, false],
      ],
    );
    assert.equal(end, 505);
    assert.equal(other, 20);
  },
  aTypedTurnAndAReplyThatWasReady() {
    const timings = { ttfa_ms: 100, confirmed_ms: 0, stages: [] };
    const typed = { origin: null, asked: 1_000, first: 1_130, started: 1_130, latency: 0 };
    assert.deepEqual(page.waterfallOf(typed, timings).bars, [{ stage: "network", start: 100, ms: 30, isEarly: false }]);
    const ready = { ttfa_ms: 100, confirmed_ms: 180, endpointing_ms: 300, stages: [{ name: "step", start_ms: 0, ms: 90 }] };
    const [, step, network] = page.waterfallOf({ ...typed, origin: 1_000, first: 1_310 }, ready).bars;
    assert.deepEqual([step.start, step.ms, step.isEarly], [120, 90, true]);
    assert.deepEqual([network.start, network.ms], [300, 10], "it could be sent from the commit on");
  },
  aReplyWaitsAsLongAsTheLatestOnesWereLate() {
    const policy = new page.StartPolicy();
    assert.equal(policy.hold, 0);
    policy.begin();
    for (const at of [1_000, 1_450, 1_700]) policy.add(at, 400);
    policy.learn();
    assert.equal(policy.hold, 50);
    for (let reply = 0; reply < 5; reply += 1) {
      policy.begin();
      policy.add(0, 400);
      policy.learn();
    }
    assert.equal(policy.hold, 0);
  },
};

for (const [name, test] of Object.entries(tests)) {
  try {
    test();
  } catch (error) {
    error.message = `${name}: ${error.message}`;
    throw error;
  }
}
console.log(Object.keys(tests).length);
