/* peer.js - a small mandor for tests of what tests/lib/pool_peer.py does not ask. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import * as wire from "../lib/wire.js";

export const WORKER = [process.execPath, fileURLToPath(new URL("worker.js", import.meta.url))];
const DEADLINE_MS = 60000;

export class Peer {
  printed = "";
  hello;
  jobs = new Map(); // number -> { type, payload, out: { 1, 2 }, progress, logs, credit, granted }
  closed = false;
  #last = 0;
  #decoder = new wire.Decoder("worker");
  #waiting = [];

  static async start(argv = WORKER, { credit = 262144, concurrency = 1, env = {} } = {}) {
    const peer = new Peer();
    await peer.#start(argv, credit, concurrency, env);
    return peer;
  }

  async #start([program, ...args], credit, concurrency, env) {
    this.credit = credit;
    this.child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe", "pipe"], env: { ...process.env, ...env, MANDOR_FD: "3" } });
    this.exited = once(this.child, "exit").then(([code]) => code);
    for (const stream of [this.child.stdout, this.child.stderr]) stream.on("data", (text) => (this.printed += text));
    this.socket = this.child.stdio[3]; // libuv makes a socket pair of it
    this.socket.on("data", (bytes) => this.#onData(bytes));
    this.socket.on("error", () => {});
    this.socket.on("close", () => this.#change(() => (this.closed = true)));
    await this.until(() => this.hello);
    this.send(wire.HELLO, { version: 1, pool: "test", concurrency, credit });
  }

  send(type, body, job = 0, stream = 0, last = false) {
    const payload = Buffer.isBuffer(body) ? body : Buffer.from(JSON.stringify(body));
    this.socket.write(wire.encode(type, payload, job, stream, last));
  }

  /* Give a job; stdin: its bytes, or true: they come by hand. */
  give(data, { stdin } = {}) {
    const number = ++this.#last;
    this.jobs.set(number, { out: { 1: [], 2: [] }, credit: { 1: this.credit, 2: this.credit }, progress: [], logs: [], granted: 0 });
    this.send(wire.JOB, { id: `job-${number}`, queue: "default", attempt: 1, data, timeout_ms: 0, stdin: stdin !== undefined }, number);
    if (stdin !== undefined && stdin !== true) this.send(wire.CHUNK, stdin, number, wire.STDIN, true);
    return number;
  }

  async end(number) {
    const job = this.jobs.get(number);
    await this.until(() => job.type);
    return { ...job, stdout: Buffer.concat(job.out[1]), stderr: Buffer.concat(job.out[2]) };
  }

  run(data, how) {
    return this.end(this.give(data, how));
  }

  cancel(number, reason = "cancelled") {
    this.send(wire.CANCEL, { reason, grace_ms: 10000 }, number);
  }

  grant(number, stream, bytes) {
    this.jobs.get(number).credit[stream] += bytes;
    this.send(wire.CREDIT, { bytes }, number, stream);
  }

  /* Wait until done() is true; the deadline is no pace, it only ends a test that hangs. */
  async until(done) {
    for (const end = Date.now() + DEADLINE_MS; !done(); ) {
      if (this.closed) throw new Error(`the worker went; it printed ${JSON.stringify(this.printed)}`);
      let timer;
      await new Promise((resolve, reject) => {
        timer = setTimeout(reject, end - Date.now(), new Error(`waited in vain for ${done}; the worker printed ${this.printed}`));
        this.#waiting.push(resolve);
      }).finally(() => clearTimeout(timer));
    }
  }

  /* BYE, and the exit code. */
  async finish() {
    this.send(wire.BYE, { reason: "shutdown" });
    return this.exited;
  }

  kill() {
    this.child.kill("SIGKILL");
    this.socket.destroy();
  }

  #change(change) {
    change();
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const resolve of waiting) resolve();
  }

  #onData(bytes) {
    this.#decoder.feed(bytes);
    this.#change(() => {
      for (let frame; (frame = this.#decoder.next()) !== undefined; ) this.#onFrame(frame);
    });
  }

  #onFrame({ type, stream, job: number, payload }) {
    const body = type === wire.CHUNK ? undefined : wire.parseJson(payload);
    const job = this.jobs.get(number);
    if (type === wire.HELLO) this.hello = body;
    else if (number === 0) return;
    else if (job === undefined || job.type) throw new Error(`frame ${type} for job ${number}, which is not open`);
    else if (type === wire.CHUNK) {
      job.credit[stream] = wire.spendCredit(job.credit[stream], payload.length);
      job.out[stream].push(payload);
    } else if (type === wire.CREDIT) job.granted += body.bytes;
    else if (type === wire.PROGRESS) job.progress.push(body);
    else if (type === wire.LOG) job.logs.push(body);
    else if (type === wire.RESULT || type === wire.ERROR) Object.assign(job, { type, payload: body });
  }
}
