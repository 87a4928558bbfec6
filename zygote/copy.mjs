// copy.mjs - a copy's own life: warm up, lock the door, say READY, wait for one job, run it, end.

// Math.random of a process that was copied: a xorshift of its own.
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

const HEAP_GROWTH_MAX = 64 << 20;
const WARM_UPS = 4; // what a spare does before its job comes: page faults that the job need not wait for
const WARM_UP = JSON.stringify({ code: "import json\nx = sum(i * i for i in range(100))\njson.dumps({'a': x})", params: {} });

export async function liveAsCopy(addon, interpreter, config, urgent) {
  const { flag, io, end, run, interrupted, reseed, leave } = interpreter;

  setInterval(() => {}, 1 << 30); // the loop stays alive while a job awaits
  reseedMath();
  reseed();
  for (let i = 0; i < (urgent ? 0 : WARM_UPS); i++) await run(WARM_UP);
  end.error = end.result = null;
  const data = addon.dataBytes();
  addon.onInterrupt(flag, () => {
    flag[0] = 0;
    interrupted();
  });
  if (config.sandbox !== "none") addon.lock();
  io.emit(JSON.stringify({ ready: {} }));

  if (config.isolation === "scope") return liveOn(addon, interpreter, config);
  const frame = addon.readFrame(3);
  if (frame === null) addon.exit(0); // not needed after all
  const [, memory, cpu] = /^\{"memory": (\d+), "cpu": (\d+),/.exec(frame).map(Number);
  addon.limit(memory > 0 ? data + memory : 0, cpu);
  if (memory > 0) capMemory(memory);
  leave(await run(frame));
}

// The properties of JavaScript's own prototypes, to see whether a job has changed one.
const prototypes = [Object, Function, Array, Map, Set, Promise, Error, Uint8Array, ArrayBuffer, Date, String, Number, RegExp].map((kind) => kind.prototype);
const takePicture = () => prototypes.map((prototype) => Object.getOwnPropertyDescriptors(prototype));
const isAsBefore = (picture) =>
  prototypes.every((prototype, i) => {
    const names = Reflect.ownKeys(prototype), before = picture[i];
    return names.length === Reflect.ownKeys(before).length &&
      names.every((name) => {
        const now = Object.getOwnPropertyDescriptor(prototype, name), then = before[name];
        return then !== undefined && now.value === then.value && now.get === then.get && now.set === then.set;
      });
  });

// Isolation `scope`: job after job, cleaned in between; what cannot be cleaned ends it.
async function liveOn(addon, interpreter, config) {
  const { py, flag, io, run, reseed, remember, tidy, report, leave } = interpreter;
  const first = py._module.HEAPU8.length;

  const picture = takePicture();
  remember();
  for (let jobs = 1; ; jobs++) {
    const frame = addon.readFrame(3);
    if (frame === null) addon.exit(0);
    const before = process.cpuUsage();
    const code = await run(frame);
    const clean = await tidy();
    if (addon.disarm()) leave(code); // mandor has ended it
    const { user, system } = process.cpuUsage(before);
    const grown = py._module.HEAPU8.length - first > HEAP_GROWTH_MAX;
    const recycle = !clean || grown || !isAsBefore(picture) || jobs >= config.recycle_jobs;
    const ended = report(code);
    io.emit(JSON.stringify({ end: { code: ended, recycle, user_us: user, system_us: system } }));
    if (recycle) addon.exit(0);
    flag[0] = 0;
    reseed();
  }
}
