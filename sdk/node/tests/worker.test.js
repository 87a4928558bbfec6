/* The conformance list, and what is this library's own, against real worker processes. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import * as wire from "../lib/wire.js";
import { Peer, WORKER } from "./peer.js";

const HELLO = fileURLToPath(new URL("../examples/hello.js", import.meta.url));
const PYTHON = process.env.PYTHON ?? "/usr/bin/python3";

test("the conformance list", () => {
  const list = fileURLToPath(new URL("../../../tests/lib/pool_peer.py", import.meta.url));
  const done = spawnSync(PYTHON, [list, "--", ...WORKER], { encoding: "utf8" });
  assert.equal(done.status, 0, done.stdout + done.stderr);
  assert.match(done.stdout, /\b(2[5-9]|[3-9]\d) passed, 0 failed/);
});

/* A test with a worker of its own; it must exit with 0 behind BYE. */
function withWorker(name, options, body) {
  test(name, async () => {
    const peer = await Peer.start(options.argv, options);
    try {
      await body(peer);
      if (!options.ends) assert.equal(await peer.finish(), 0, peer.printed);
    } finally {
      peer.kill();
    }
  });
}

const code = (text) => ({ op: "code", code: text });

test("the example is short", () => assert.ok(readFileSync(HELLO, "utf8").split("\n").length <= 16));

withWorker("the example works", { argv: [process.execPath, HELLO] }, async (peer) => {
  const end = await peer.run({ name: "Ani" });
  assert.deepEqual([end.payload, end.stdout.toString(), end.progress], [{ greeted: "Ani" }, "Hello, Ani!\n", [50]]);
  assert.equal(peer.hello.name, "hello.js");
  assert.equal(peer.hello.concurrency, undefined);
});

withWorker("no child gets the socket", {}, async (peer) => {
  const end = await peer.run(code(`
    const { spawnSync } = await import("node:child_process");
    const { stdout } = spawnSync("ls", ["-l", "/proc/self/fd"], { encoding: "utf8" });
    return [/ 3 -> socket:/.test(stdout), "MANDOR_FD" in process.env];`));
  assert.deepEqual(end.payload, [false, false]);
});

withWorker("errors carry the stack of the user alone, their cause, and whether to retry", {}, async (peer) => {
  const plain = await peer.run(code(`function inner() { throw new TypeError("no", { cause: new Error("deep") }); }\ninner();`));
  assert.equal(plain.type, wire.ERROR);
  assert.equal(plain.payload.message, "TypeError: no");
  assert.match(plain.payload.traceback, /at inner/);
  assert.match(plain.payload.traceback, /caused by Error: deep/);
  assert.doesNotMatch(plain.payload.traceback, /lib\/index\.js|node:internal/);
  assert.equal(plain.payload.retry, undefined);
  const { payload } = await peer.run(code(`throw new sdk.NoRetryError("hopeless", { code: 9 });`));
  assert.deepEqual([payload.message, payload.retry, payload.code], ["hopeless", false, 9]);
  assert.equal((await peer.run(code(`throw "text";`))).payload.message, "thrown: text");
  assert.equal((await peer.run(code(`throw undefined;`))).payload.message, "thrown: undefined");
  assert.equal((await peer.run(code(`throw { toString() { throw 1; } };`))).type, wire.ERROR);
  assert.match((await peer.run(code(`throw new Error("\\x01".repeat(3 << 20));`))).payload.message, /^Error: \x01+ \[\.\.\.\]$/);
});

withWorker("results that cannot be sent fail the job", {}, async (peer) => {
  for (const value of ["10n", '"\\ud800"', '"x".repeat(16 << 20)', "(() => { const a = []; a.push(a); return a; })()"]) {
    const end = await peer.run(code(`return ${value};`));
    assert.equal(end.type, wire.ERROR, value);
    assert.match(end.payload.message, /the result/);
  }
  assert.match((await peer.run(code("ctx.progress(1n);"))).payload.message, /the progress is not JSON/);
  assert.match((await peer.run(code("await ctx.write(1);"))).payload.message, /expected a Buffer/);
  assert.match((await peer.run(code(`await ctx.write("x", "out");`))).payload.message, /"stdout" or "stderr"/);
  assert.equal((await peer.run({ op: "result", value: 1 })).payload, 1);
});

withWorker("what is written and not awaited is flushed before the result", { credit: 1000 }, async (peer) => {
  const number = peer.give(code(`for (let i = 0; i < 10; i++) ctx.output.write(Buffer.alloc(500, i)); return "done";`));
  await peer.until(() => peer.jobs.get(number).credit[1] === 0);
  assert.equal(peer.jobs.get(number).type, undefined);
  peer.grant(number, 1, 4000);
  const end = await peer.end(number);
  assert.equal(end.payload, "done");
  assert.deepEqual(end.stdout, Buffer.concat(Array.from({ length: 10 }, (_, i) => Buffer.alloc(500, i))));
});

withWorker("a pipeline from input to output keeps every byte", { credit: 1 << 20 }, async (peer) => {
  const bytes = Buffer.from(Uint8Array.from({ length: 4096 }, (_, i) => i));
  const end = await peer.run(code(`
    const { pipeline } = await import("node:stream/promises");
    await pipeline(ctx.input, ctx.output);
    return "piped";`), { stdin: bytes });
  assert.deepEqual([end.payload, end.stdout], ["piped", bytes]);
});

withWorker("a buffer may be used again behind write", { credit: 16 << 20 }, async (peer) => {
  const end = await peer.run(code(`
    const buffer = Buffer.alloc(1 << 20);
    for (let i = 0; i < 8; i++) await ctx.write(buffer.fill(i));`));
  assert.ok(end.stdout.equals(Buffer.concat(Array.from({ length: 8 }, (_, i) => Buffer.alloc(1 << 20, i)))));
});

withWorker("input is granted as it is read, never as it comes", { concurrency: 2 }, async (peer) => {
  const number = peer.give({ op: "wait" }, { stdin: true });
  peer.send(wire.CHUNK, Buffer.alloc(4096), number, wire.STDIN); // all of the credit, and this handler reads nothing
  await peer.run({ op: "result", value: "behind it" });
  assert.equal(peer.jobs.get(number).granted, 0);
  peer.cancel(number);
  await peer.end(number);
  const reads = peer.give({ op: "echo" }, { stdin: true });
  peer.send(wire.CHUNK, Buffer.alloc(4096), reads, wire.STDIN);
  await peer.until(() => peer.jobs.get(reads).granted === 4096);
  peer.send(wire.CHUNK, Buffer.alloc(0), reads, wire.STDIN, true);
  assert.deepEqual((await peer.end(reads)).payload, { bytes: 4096 });
});

withWorker("finally runs on cancel, may log, and the signal says why", {}, async (peer) => {
  const number = peer.give(code(`
    const { setTimeout } = await import("node:timers/promises");
    ctx.progress(1);
    try { await setTimeout(1e6, undefined, { signal: ctx.signal }); } finally { ctx.log(ctx.signal.reason.reason, "warn"); }`));
  await peer.until(() => peer.jobs.get(number).progress.length > 0);
  peer.cancel(number, "timeout");
  const end = await peer.end(number);
  assert.deepEqual([end.payload, end.logs], [{ message: "cancelled" }, [{ text: "timeout", level: "warn" }]]);
});

withWorker("a job that ignores its cancel may still give its result", {}, async (peer) => {
  const number = peer.give(code(`ctx.progress(1); await new Promise((resolve) => ctx.signal.addEventListener("abort", resolve)); return 7;`));
  await peer.until(() => peer.jobs.get(number).progress.length > 0);
  peer.cancel(number);
  assert.equal((await peer.end(number)).payload, 7);
});

withWorker("a cancel ends who reads", {}, async (peer) => {
  const number = peer.give({ op: "echo" }, { stdin: true });
  peer.cancel(number);
  assert.deepEqual((await peer.end(number)).payload, { message: "cancelled" });
});

withWorker("two hundred jobs at once keep their own", { concurrency: 200, credit: 1 << 16 }, async (peer) => {
  const numbers = Array.from({ length: 200 }, () => peer.give({ op: "echo" }, { stdin: true }));
  for (const last of [false, true]) for (const number of numbers) peer.send(wire.CHUNK, Buffer.from(`${number} `), number, 0, last);
  for (const number of numbers) assert.equal((await peer.end(number)).stdout.toString(), `${number} ${number} `);
});

withWorker("a job without credit holds up no other", { concurrency: 2, credit: 100 }, async (peer) => {
  const held = peer.give({ op: "emit", bytes: 1000 });
  for (let i = 0; i < 20; i++) assert.deepEqual((await peer.run({ op: "emit", bytes: 90 })).payload, { bytes: 90 });
  peer.cancel(held);
  assert.deepEqual((await peer.end(held)).payload, { message: "cancelled" });
});

withWorker("a context behind its job says so", {}, async (peer) => {
  const text = (call) => code(`const old = globalThis.kept; globalThis.kept = ctx; if (old) await old.${call};`);
  for (const call of ["progress(1)", 'log("x")', 'write("x")']) {
    await peer.run(text(call));
    assert.equal((await peer.run(text(call))).type, wire.ERROR, call);
  }
});

withWorker("the longest job and result pass", {}, async (peer) => {
  const value = "x".repeat(16 * 1024 * 1024 - 300);
  assert.equal((await peer.run({ op: "result", value })).payload, value);
});

withWorker("a flood of logs keeps its order", {}, async (peer) => {
  const end = await peer.run(code(`for (let i = 0; i < 2000; i++) ctx.log(i + " " + "x".repeat(5000));`));
  assert.equal(end.logs.length, 2000);
  assert.equal(end.logs.findIndex(({ text }, i) => parseInt(text) !== i), -1);
});

withWorker("something that keeps the loop alive does not keep the process", {}, async (peer) => {
  await peer.run(code("setInterval(() => {}, 1000);"));
});

withWorker("another version is told", { ends: true }, async (peer) => {
  const frame = wire.encode(wire.PING, Buffer.from('{"n":1}'));
  frame[6] = 2;
  peer.socket.write(frame);
  assert.equal(await peer.exited, 1);
  assert.match(peer.printed, /expected protocol version 1, found 2/);
});

withWorker("half a frame and the end are told", { ends: true }, async (peer) => {
  peer.socket.end(wire.encode(wire.PING, Buffer.from('{"n":1}')).subarray(0, 9));
  assert.equal(await peer.exited, 1);
  assert.match(peer.printed, /expected a header of 16 bytes, found the end after 9/);
});

withWorker("an end of mandor stops what runs, quietly", { ends: true }, async (peer) => {
  const number = peer.give({ op: "wait" });
  await peer.until(() => peer.jobs.get(number).progress.length > 0);
  peer.socket.destroy();
  assert.equal(await peer.exited, 1);
  assert.equal(peer.printed, "");
});

test("the package holds its code and types, and no tests", (t) => {
  const directory = fileURLToPath(new URL("..", import.meta.url));
  const scratch = mkdtempSync(join(tmpdir(), "mandor-worker-"));
  try {
    const done = spawnSync("npm", ["pack", "--dry-run", "--json", "--offline", "--ignore-scripts"],
      { cwd: directory, encoding: "utf8", env: { ...process.env, npm_config_cache: scratch, npm_config_update_notifier: "false" } });
    if (done.error?.code === "ENOENT") return t.skip("npm is not installed");
    assert.equal(done.status, 0, done.stderr);
    const [{ name, files }] = Object.values(JSON.parse(done.stdout));
    assert.equal(name, "mandor-worker");
    const paths = files.map(({ path }) => path).sort();
    assert.deepEqual(paths, ["README.md", "examples/hello.js", "lib/index.d.ts", "lib/index.js", "lib/wire.d.ts", "lib/wire.js", "package.json"]);
  } finally {
    rmSync(scratch, { recursive: true });
  }
});

test("the version is the same everywhere", () => {
  const root = new URL("../../../", import.meta.url);
  const version = JSON.parse(readFileSync(new URL("sdk/node/package.json", root), "utf8")).version;
  assert.match(readFileSync(new URL("sdk/node/lib/index.js", root), "utf8"), new RegExp(`"node/${version}"`));
  assert.match(readFileSync(new URL("sdk/python/mandor_worker/__init__.py", root), "utf8"), new RegExp(`__version__ = "${version}"`));
  assert.match(readFileSync(new URL("meson.build", root), "utf8"), new RegExp(`version: '${version}'`));
});

test("wrong arguments are named", async () => {
  const { serve } = await import("../lib/index.js");
  await assert.rejects(serve(), /expected a handler/);
  await assert.rejects(serve(() => {}, { concurrency: 0 }), /concurrency/);
  await assert.rejects(serve(() => {}, { credit: 2 ** 31 }), /credit/);
});
