/* The worker that tests/lib/pool_peer.py asks for. */
import { once } from "node:events";
import { writeSync } from "node:fs";
import { JobError, log, serve } from "../lib/index.js";

function pattern(start, count) {
  return Uint8Array.from({ length: count }, (_, i) => ((start + i) * 7) % 251);
}

const ops = {
  async echo(_, ctx) {
    let bytes = 0;
    for await (const chunk of ctx.input) {
      await ctx.write(chunk);
      bytes += chunk.length;
    }
    return { bytes };
  },
  async emit({ bytes }, ctx) {
    for (let at = 0; at < bytes; at += 10040) await ctx.write(pattern(at, Math.min(10040, bytes - at)));
    ctx.output.end();
    await ctx.write(`${bytes} bytes`, "stderr");
    return { bytes };
  },
  async result({ value }) {
    return value;
  },
  async error({ message, code, retry }) {
    throw new JobError(message, { code, retry });
  },
  async wait(_, ctx) {
    ctx.progress("waiting");
    const hold = setInterval(() => {}, 1 << 30);
    if (!ctx.signal.aborted) await once(ctx.signal, "abort");
    clearInterval(hold);
    throw ctx.signal.reason;
  },
  async tell({ progress, text }, ctx) {
    ctx.progress(progress);
    ctx.log(text, "info");
    log("about the worker");
  },
  async print({ text }) {
    writeSync(1, text);
    writeSync(2, text);
  },
  async info(_, ctx) {
    const { id, queue, attempt, timeoutMs } = ctx.job;
    return { id, queue, attempt, timeout_ms: timeoutMs };
  },
  async bye(_, ctx) {
    ctx.bye("asked for");
  },
  /* for this library's own tests: the body of an async function */
  async code({ code }, ctx) {
    const AsyncFunction = (async () => {}).constructor;
    return new AsyncFunction("ctx", "sdk", code)(ctx, await import("../lib/index.js"));
  },
};

await serve((job, ctx) => ops[job.data.op](job.data, ctx), { name: "conformance", credit: 4096 });
