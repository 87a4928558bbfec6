// driver.mjs MAJOR PORT: runs what tests/lib/bullmq.py sends, one JSON object a line {id, code}, against the stock packages.
//
// code is the body of an async function.  It sees: bullmq (the package), r (a plain connection), queue(name, opts), events(name, opts),
// worker(name, fn, opts), flow(opts), sleep(ms), until(fn, ms).  What was opened is closed by {id, close: true}.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import Redis from "ioredis";

const [major, port] = process.argv.slice(2);
const bullmq = await import(major === "6" ? "bullmq" : `bullmq${major}`);
const connection = { host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null };
const r = new Redis(connection);
let opened = [];
const kept = {}; // of one test

const keep = (it) => {
  it.on?.("error", (error) => (kept.errors ??= []).push(String(error)));
  opened.push(it);
  return it;
};
const queue = (name, opts = {}) => keep(new bullmq.Queue(name, { connection, ...opts }));
const worker = (name, fn, opts = {}) => keep(new bullmq.Worker(name, fn, { connection, ...opts }));
const flow = (opts = {}) => keep(new bullmq.FlowProducer({ connection, ...opts }));
const events = async (name, opts = {}) => {
  // from the first event on: it says that it is ready before it has asked for what comes after "$"
  const it = keep(new bullmq.QueueEvents(name, { connection, lastEventId: "0", ...opts }));
  await it.waitUntilReady();
  return it;
};
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const until = async (fn, ms = 30000) => {
  for (const end = Date.now() + ms * Number(process.env.MANDOR_TEST_SLACK || 1); ; ) {
    const value = await fn();
    if (value) return value;
    if (Date.now() > end) throw new Error(`waited ${ms} ms in vain for ${fn}`);
    await sleep(10);
  }
};
const AsyncFunction = (async () => {}).constructor;
const here = createRequire(createRequire(import.meta.url).resolve(major === "6" ? "bullmq" : "bullmq5")); // what the package itself uses
const names = { here, bullmq, connection, r, kept, keep, queue, worker, flow, events, sleep, until };

async function closeAll() {
  const list = opened;
  opened = [];
  await Promise.all(list.map((it) => Promise.race([it.close(...(it instanceof bullmq.Worker ? [true] : [])), sleep(200)]).catch(() => {})));
  for (const key of Object.keys(kept)) delete kept[key];
}

async function answer(line) {
  const { id, code, close } = JSON.parse(line);
  try {
    const value = close ? await closeAll() : await new AsyncFunction(...Object.keys(names), code)(...Object.values(names));
    return { id, value };
  } catch (error) {
    return { id, error: String(error?.stack ?? error) };
  }
}

process.on("unhandledRejection", () => {}); // of connections that a test cuts

createInterface({ input: process.stdin })
  .on("line", async (line) => console.log(JSON.stringify(await answer(line))))
  .on("close", () => process.exit(0));
