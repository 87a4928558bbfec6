// copy.mjs - a copy's own life: warm up, lock the door, say READY, wait for one job, run it, end.
import v8 from "node:v8";
import vm from "node:vm";
import { liveOn } from "./scope.mjs";

const READY = JSON.stringify({ ready: {} });
const STAY_MS = 1 << 30;

// What is run before the first fork, and in a copy that has time.
const WARM_UP = JSON.stringify({ code: "import json\nx = sum(i * i for i in range(1000))\njson.dumps({'a': x})", params: {}, rehearsal: true });
const FAILURE = JSON.stringify({ code: "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.format_exc()", params: {}, rehearsal: true });
const REHEARSALS = 300; // after which WebAssembly is compiled as well as it will be

const encoder = new TextEncoder();

// Math.random of a process that was copied: a generator of its own (xoshiro128**).
function reseedMath() {
  const words = crypto.getRandomValues(new Uint32Array(4));
  let a = words[0] | 1, b = words[1], c = words[2], d = words[3];
  Math.random = () => {
    const t = b << 9;
    let r = Math.imul(b, 5);
    r = Math.imul((r << 7) | (r >>> 25), 9);
    c ^= a; d ^= b; b ^= c; a ^= d; c ^= t;
    d = (d << 11) | (d >>> 21);
    return (r >>> 0) / 4294967296;
  };
}

// Memory that WebAssembly may take from here on.
function capMemory(bytes) {
  const grow = WebAssembly.Memory.prototype.grow;
  let left = Math.ceil(bytes / 65536);
  WebAssembly.Memory.prototype.grow = function (pages) {
    if (pages > left) throw new RangeError("the job's memory limit");
    const before = grow.call(this, pages);
    left -= pages;
    return before;
  };
}

// The limits at the head of a job's frame: [, memory, cpu]; 0 = none.
const limitsIn = (frame) => /^\{"memory": (\d+), "cpu": (\d+),/.exec(frame).map(Number);

// A job whose last words nobody hears.
async function warmUp({ io, run, report }) {
  report(await run(WARM_UP), (text) => io.writeAll(-1, encoder.encode(text + "\n")));
}

// What a copy will do, before the first fork.  A copy does not live long enough to be optimised; what Node, V8 and Python put off until
// it is used, every copy would do anew; and a copy that collects garbage gets pages of its own that it would else share.
export async function rehearse(addon, interpreter) {
  const { py, run, reseed } = interpreter;
  const play = async (times) => {
    for (let i = 0; i < times; i++) await warmUp(interpreter);
    await run(FAILURE);
    reseedMath();
    reseed();
    clearInterval(setInterval(() => {}, STAY_MS));
    limitsIn('{"memory": 0, "cpu": 0,');
    addon.dataBytes();
    addon.limit(0, 0);
    process.cpuUsage();
  };
  v8.setFlagsFromString("--expose-gc");
  const gc = vm.runInNewContext("gc");

  await play(REHEARSALS);
  py.runPython("import gc; gc.collect(); gc.freeze(); del gc");
  gc();
  await play(REHEARSALS / 3); // the pages that were freed are swept as they are used
  gc({ type: "minor" });
}

// Serve; what follows serve() is a copy's life.
export async function live(addon, interpreter, config) {
  const { flag, io, run, interrupted, reseed, leave } = interpreter;

  const urgent = addon.serve(config.isolation !== "instance");
  setInterval(() => {}, STAY_MS); // the loop stays alive while a job awaits
  reseedMath();
  reseed();
  if (!urgent) await warmUp(interpreter); // page faults that the job need not wait for
  const data = addon.dataBytes();
  addon.onInterrupt(flag, () => {
    flag[0] = 0;
    interrupted();
  });
  if (config.sandbox !== "none") addon.lock();
  io.emit(READY);

  if (config.isolation === "scope") return liveOn(addon, interpreter, config);
  const frame = addon.readFrame(3);
  if (frame === null) addon.exit(0); // not needed after all
  const [, memory, cpu] = limitsIn(frame);
  addon.limit(memory > 0 ? data + memory : 0, cpu);
  if (memory > 0) capMemory(memory);
  leave(await run(frame));
}
