/* mandor-worker - a warm worker of a mandor pool: one async handler, called for one job after the other or for several at once.
 *
 *     import { serve } from "mandor-worker";
 *
 *     await serve(async (job, ctx) => ({ hello: job.data.name }));
 *
 * Frames travel on a socket of their own (MANDOR_FD), so prints are harmless.  Types and words on each call: index.d.ts.
 */
import { fstatSync } from "node:fs";
import { Socket } from "node:net";
import { basename } from "node:path";
import { Readable, Writable } from "node:stream";
import { finished } from "node:stream/promises";
import { fileURLToPath } from "node:url";
import * as wire from "./wire.js";

const SDK = "node/0.1.0";
const CHUNK_SIZE = 64 * 1024; // bytes of one CHUNK
const OUT_HIGH = 256 * 1024; // bytes that wait for the socket; who wants to send more waits
const ANSWERS_HIGH = 4 * 1024 * 1024; // bytes of answers that mandor has asked for and not read
const LINGER_MS = 5000; // for handlers once mandor has gone; for what the program still does behind BYE
const MESSAGE_CHARS = 16 * 1024; // JSON makes at most six bytes of a character: all of it stays below TEXT_MAX
const STACK_CHARS = 64 * 1024;
const LOG_CHARS = 128 * 1024;
const STREAMS = { stdout: wire.STDOUT, stderr: wire.STDERR };
const OWN_FILE = fileURLToPath(import.meta.url);

/* Fails the job with exactly this message.  options: retry (may another attempt help?), code (1 to 255), cause. */
export class JobError extends Error {
  name = "JobError";
  constructor(message, { retry = true, code, ...options } = {}) {
    super(message, options);
    if (code !== undefined && !(Number.isInteger(code) && code >= 1 && code <= 255))
      throw new RangeError(`expected a code from 1 to 255, found ${code}`);
    this.retry = retry;
    this.code = code;
  }
}

/* Fails the job for good: another attempt would fail likewise. */
export class NoRetryError extends JobError {
  name = "NoRetryError";
  constructor(message, options = {}) {
    super(message, { ...options, retry: false });
  }
}

/* What ctx.signal aborts with, and what waiting calls then throw. */
export class JobCancelledError extends Error {
  name = "AbortError"; // what code that takes signals looks for
  code = "ABORT_ERR";
  constructor(reason) {
    super(`the job was cancelled: ${reason}`);
    this.reason = reason;
  }
}

// ---- errors of a job -------------------------------------------------------------------------------------------------------

const plain = (text, most) => (text.length > most ? `${text.slice(0, most)} [...]` : text).toWellFormed();

/* The stack without the frames of this library and of Node. */
function ownStack(error) {
  const foreign = (line) => /^\s+at /.test(line) && (line.includes(OWN_FILE) || /\(?node:/.test(line));
  let text = String(error.stack ?? "").split("\n").filter((line) => !foreign(line)).join("\n");
  for (let cause = error.cause, depth = 0; cause instanceof Error && depth < 8; cause = cause.cause, depth++)
    text += `\ncaused by ${String(cause.stack).split("\n").filter((line) => !foreign(line)).join("\n")}`;
  return text;
}

/* The payload of ERROR. */
function failure(error, signal) {
  if (signal.aborted && (error === signal.reason || error?.name === "AbortError"))
    return wire.dumpJson({ message: "cancelled" }, wire.TEXT_MAX, "the error");
  const body = { message: "" };
  try {
    if (error instanceof Error) {
      body.message = plain(error instanceof JobError ? error.message : String(error), MESSAGE_CHARS);
      body.traceback = plain(ownStack(error), STACK_CHARS);
    } else body.message = plain(`thrown: ${String(error)}`, MESSAGE_CHARS);
  } catch {
    body.message ||= "an error that cannot be printed was thrown";
  }
  if (error instanceof JobError) {
    if (!error.retry) body.retry = false;
    if (error.code !== undefined) body.code = error.code;
  }
  return wire.dumpJson(body, wire.TEXT_MAX, "the error");
}

function logLine(text, level) {
  const body = { text: plain(String(text), LOG_CHARS) };
  if (level !== undefined) body.level = plain(String(level), 64);
  return wire.dumpJson(body, wire.TEXT_MAX, "the text");
}

// ---- one job, as its handler sees it -----------------------------------------------------------------------------------------

/* Waits for a change: each wait() ends with the next wake(). */
class Bell {
  #waiting = [];
  wait() {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }
  wake() {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const resolve of waiting) resolve();
  }
}

class Output extends Writable {
  #context;
  #stream;
  constructor(context, stream) {
    super({ decodeStrings: true, highWaterMark: CHUNK_SIZE });
    this.#context = context;
    this.#stream = stream;
    this.on("error", () => {}); // reported where it is awaited, or by the job's end
  }
  _write(bytes, _encoding, callback) {
    this.#context._put(this.#stream, bytes).then(() => callback(), callback);
  }
  _final(callback) {
    this.#context._end(this.#stream);
    callback();
  }
}

class Input extends Readable {
  #context;
  constructor(context) {
    super({ highWaterMark: 1 }); // what waits is counted by credit, and only what is read is granted again
    this.#context = context;
    this.on("error", () => {});
  }
  _read() {
    this.#context._fill();
  }
}

class Context {
  #link;
  #job;
  #input;
  #outputs = {};
  #abort = new AbortController();
  #inChunks = [];
  #inCredit;
  #inTaken = 0;
  #inEnded;
  #inWanted = false;
  #outCredit;
  #outEnded = [true, false, false];
  #bell = new Bell();
  done = false;

  constructor(link, number, body) {
    const text = (value) => (typeof value === "string" ? value : "");
    const whole = (value, otherwise) => (Number.isSafeInteger(value) && value >= 0 ? value : otherwise);
    this.#link = link;
    this.#job = Object.freeze({ number, id: text(body.id), queue: text(body.queue), attempt: whole(body.attempt, 1),
      timeoutMs: whole(body.timeout_ms, 0), data: body.data ?? null });
    this.#inCredit = link.credit;
    this.#inEnded = body.stdin !== true;
    this.#outCredit = [0, link.outCredit, link.outCredit];
  }

  get job() {
    return this.#job;
  }
  get signal() {
    return this.#abort.signal;
  }
  get input() {
    return (this.#input ??= new Input(this));
  }
  get output() {
    return (this.#outputs.stdout ??= new Output(this, wire.STDOUT));
  }
  get errorOutput() {
    return (this.#outputs.stderr ??= new Output(this, wire.STDERR));
  }

  async write(data, stream = "stdout") {
    const number = STREAMS[stream];
    if (number === undefined) throw new TypeError(`expected stream "stdout" or "stderr", found ${String(stream)}`);
    if (typeof data !== "string" && !ArrayBuffer.isView(data)) throw new TypeError("expected a Buffer, Uint8Array or string");
    const output = stream === "stdout" ? this.output : this.errorOutput;
    const bytes = typeof data === "string" ? Buffer.from(data) : Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    await new Promise((resolve, reject) => output.write(bytes, (error) => (error ? reject(error) : resolve())));
  }

  progress(value) {
    this.#tell(wire.PROGRESS, wire.dumpJson(value, wire.TEXT_MAX, "the progress"));
  }
  log(text, level) {
    this.#tell(wire.LOG, logLine(text, level));
  }
  bye(reason = "") {
    this.#link.sayBye(reason);
  }

  #tell(type, payload) {
    if (this.done) throw new Error(`job ${this.#job.id} has ended`);
    this.#link.tell(type, payload, this.#job.number);
  }

  // -- for the streams

  async _put(stream, bytes) {
    for (let at = 0; at < bytes.length; ) {
      if (this.done) throw new Error(`job ${this.#job.id} has ended`);
      this.signal.throwIfAborted();
      const size = Math.min(bytes.length - at, CHUNK_SIZE, this.#outCredit[stream]);
      if (size === 0 || !this.#link.room) {
        await this.#bell.wait();
        continue;
      }
      this.#outCredit[stream] = wire.spendCredit(this.#outCredit[stream], size);
      // a copy: the caller may use its buffer again before the socket has taken this
      this.#link.send(wire.CHUNK, Buffer.from(bytes.subarray(at, at + size)), this.#job.number, stream);
      at += size;
    }
  }

  _end(stream) {
    if (this.done || this.#outEnded[stream]) return;
    this.#outEnded[stream] = true;
    this.#link.send(wire.CHUNK, Buffer.alloc(0), this.#job.number, stream, true);
  }

  /* The input stream wants more. */
  _fill() {
    const chunk = this.#inChunks.shift();
    if (chunk === undefined) {
      this.#inWanted = !this.#inEnded;
      if (this.#inEnded) this.input.push(null);
      return;
    }
    this.#inWanted = false;
    this.#inTaken += chunk.length;
    if (!this.#inEnded && !this.done && this.#inTaken * 2 >= this.#link.credit) {
      this.#inCredit += this.#inTaken;
      this.#link.send(wire.CREDIT, Buffer.from(`{"bytes":${this.#inTaken}}`), this.#job.number, wire.STDIN);
      this.#inTaken = 0;
    }
    this.input.push(chunk);
  }

  // -- for the link

  wake() {
    this.#bell.wake();
  }

  abort(reason) {
    if (this.signal.aborted) return;
    const error = new JobCancelledError(reason);
    this.#abort.abort(error);
    this.#input?.destroy(error);
    this.#bell.wake();
  }

  takeChunk(frame) {
    if (this.#inEnded) throw new RangeError("expected none: this stdin has ended, or there is none");
    this.#inCredit = wire.spendCredit(this.#inCredit, frame.payload.length);
    if (frame.payload.length > 0) this.#inChunks.push(frame.payload);
    this.#inEnded = frame.last;
    if (this.#inWanted && !this.input.destroyed) this._fill();
  }

  takeCredit(stream, bytes) {
    this.#outCredit[stream] = wire.grantCredit(this.#outCredit[stream], bytes);
    this.#bell.wake();
  }

  /* All that was written to the outputs has been sent. */
  async flushed() {
    for (const output of Object.values(this.#outputs)) {
      if (output.errored) throw output.errored;
      if (output.destroyed) continue;
      if (!output.writableEnded) output.end();
      await finished(output);
    }
  }

  /* The job has ended: nothing more goes out, nobody waits any longer. */
  close() {
    this.done = true;
    this.#inChunks = [];
    this.#input?.destroy();
    for (const output of Object.values(this.#outputs)) output.destroy();
    this.#bell.wake();
  }
}

// ---- the connection ----------------------------------------------------------------------------------------------------------

class Link {
  #handler;
  #socket;
  #decoder = new wire.Decoder("mandor");
  #jobs = new Map();
  #lastJob = 0;
  #concurrency;
  #hello = false;
  #bye = false;
  #saidBye = false;
  #lost = false;
  #corked = false;
  #ended;
  #resolveEnded;

  constructor(handler, fd, { concurrency, name, credit }) {
    this.#ended = new Promise((resolve) => (this.#resolveEnded = resolve));
    this.#handler = handler;
    this.#concurrency = concurrency;
    this.credit = credit;
    this.outCredit = 0;
    this.exitCode = 0;
    this.#socket = new Socket({ fd, readable: true, writable: true });
    this.#socket.on("data", (bytes) => this.#onData(bytes));
    this.#socket.on("end", () => this.#onEnd());
    this.#socket.on("error", () => this.#onEnd());
    this.#socket.on("drain", () => this.#wakeAll());
    const hello = { versions: [wire.VERSION], name: plain(name, 128), sdk: SDK, credit };
    if (concurrency !== undefined) hello.concurrency = concurrency;
    this.send(wire.HELLO, wire.dumpJson(hello, wire.CONTROL_MAX, "HELLO"));
  }

  /* Settles when all is done, or mandor has gone. */
  get ended() {
    return this.#ended;
  }

  get room() {
    return this.#socket.writableLength < OUT_HIGH;
  }

  send(type, payload, job = 0, stream = 0, last = false) {
    if (this.#lost || !this.#socket.writable) return;
    this.#cork();
    this.#socket.write(wire.encodeHeader(type, payload.length, job, stream, last));
    if (payload.length > 0) this.#socket.write(payload);
  }

  /* What a turn of the loop sends goes out in one system call. */
  #cork() {
    if (this.#corked) return;
    this.#corked = true;
    this.#socket.cork();
    process.nextTick(() => {
      this.#corked = false;
      this.#socket.uncork();
    });
  }

  /* PROGRESS and LOG are not waited for, so what mandor does not read has a bound. */
  tell(type, payload, job) {
    if (this.#socket.writableLength > ANSWERS_HIGH + wire.PAYLOAD_MAX)
      throw new Error("mandor does not read what this worker tells: await something between calls");
    this.send(type, payload, job);
  }

  sayBye(reason) {
    if (this.#saidBye) return;
    this.#saidBye = true;
    this.send(wire.BYE, wire.dumpJson({ reason: plain(String(reason), 256) }, wire.CONTROL_MAX, "the reason"));
  }

  // -- in

  #onData(bytes) {
    this.#decoder.feed(bytes);
    try {
      for (let frame; !this.#lost; ) {
        const begin = this.#decoder.offset;
        if ((frame = this.#decoder.next()) === undefined) break;
        this.#takeFrame(frame, begin);
      }
    } catch (error) {
      if (!(error instanceof wire.ProtocolError)) throw error;
      this.#fail(error);
    }
    this.#endIfOver();
  }

  #takeFrame(frame, begin) {
    try {
      this.#onFrame(frame);
    } catch (error) {
      throw new wire.ProtocolError("state", begin, `${wire.typeName(frame.type)}, job ${frame.job}: ${error.message}`);
    }
    if (this.#socket.writableLength > ANSWERS_HIGH + wire.PAYLOAD_MAX * (this.#jobs.size + 1))
      throw new wire.ProtocolError("state", begin, "expected mandor to read the answers to its PINGs");
  }

  #fail(error) {
    console.error(`mandor-worker: ${error.message}`);
    this.#lose(1);
  }

  #onEnd() {
    if (this.#lost) return;
    try {
      this.#decoder.end();
    } catch (error) {
      this.#fail(error);
    }
    this.#lose(this.#bye && this.#jobs.size === 0 ? 0 : 1);
  }

  #onFrame(frame) {
    let body;
    if (frame.type !== wire.CHUNK) {
      body = wire.parseJson(frame.payload);
      if (body === null || typeof body !== "object" || Array.isArray(body)) throw new TypeError("expected a JSON object");
    }
    switch (frame.type) {
      case wire.HELLO:
        return this.#onHello(frame.payload);
      case wire.JOB:
        return this.#onJob(frame.job, body);
      case wire.PING:
        return this.#onPing(frame.payload);
      case wire.PONG:
        throw new Error("expected none: this worker sends no PING");
      case wire.BYE:
        return this.#onBye(body);
      default:
        return this.#onJobFrame(frame, body);
    }
  }

  #onHello(payload) {
    const most = this.#concurrency ?? wire.NUMBER_MAX;
    const concurrency = wire.wholeMember(payload, "concurrency", 1, most);
    const credit = wire.wholeMember(payload, "credit", 0, wire.CREDIT_MAX);
    if (wire.wholeMember(payload, "version", wire.VERSION, wire.VERSION) === undefined)
      throw new TypeError(`expected "version": ${wire.VERSION}, the one that was offered`);
    if (credit === undefined) throw new TypeError('expected "credit": a number of bytes up to 2147483647');
    if (concurrency === undefined) throw new TypeError(`expected "concurrency": a number from 1 to ${most}`);
    this.#concurrency = concurrency;
    this.outCredit = credit;
    this.#hello = true;
  }

  #onPing(payload) {
    const n = wire.wholeMember(payload, "n", 0, wire.NUMBER_MAX);
    if (n === undefined) throw new TypeError('expected {"n": N} with N from 0 to 2^53-1');
    this.send(wire.PONG, Buffer.from(`{"n":${n}}`));
  }

  #onBye(body) {
    this.#bye = true;
    if (this.#hello) return;
    console.error(`mandor-worker: refused by mandor: ${body.reason ?? "no reason given"}`);
    this.#lose(1);
  }

  #onJob(number, body) {
    if (this.#jobs.size >= this.#concurrency) throw new RangeError(`expected at most ${this.#concurrency} jobs at once, as agreed`);
    const context = new Context(this, number, body);
    this.#lastJob = number;
    this.#jobs.set(number, context);
    void this.#run(context);
  }

  #onJobFrame(frame, body) {
    if (frame.job > this.#lastJob) throw new RangeError("expected a job that was given to this worker");
    const bytes = frame.type === wire.CREDIT ? wire.wholeMember(frame.payload, "bytes", 1, wire.CREDIT_MAX) : 0;
    if (bytes === undefined) throw new TypeError('expected {"bytes": N} with N from 1 to 2147483647');
    const context = this.#jobs.get(frame.job);
    if (context === undefined) return; // it has crossed the job's end
    if (frame.type === wire.CREDIT) context.takeCredit(frame.stream, bytes);
    else if (frame.type === wire.CHUNK) context.takeChunk(frame);
    else context.abort(typeof body.reason === "string" ? body.reason : "cancelled");
  }

  // -- jobs

  async #run(context) {
    let type = wire.RESULT, payload;
    await null; // never from the depth of the reader
    try {
      context.signal.throwIfAborted();
      const result = await this.#handler(context.job, context);
      payload = wire.dumpJson(result, wire.PAYLOAD_MAX, "the result");
      await context.flushed();
    } catch (error) {
      type = wire.ERROR;
      payload = failure(error, context.signal);
    }
    context.close();
    this.#jobs.delete(context.job.number);
    this.send(type, payload, context.job.number);
    this.#endIfOver();
  }

  #wakeAll() {
    for (const context of this.#jobs.values()) context.wake();
  }

  #endIfOver() {
    if (this.#lost || !this.#bye || this.#jobs.size > 0) return;
    this.#socket.end(() => {
      this.#socket.destroy();
      this.#resolveEnded();
    });
    this.#lost = true; // nothing more is read or sent
  }

  #lose(exitCode) {
    if (this.#lost) return;
    this.#lost = true;
    this.exitCode = exitCode;
    this.#socket.destroy();
    for (const context of this.#jobs.values()) context.abort("lost");
    this.#resolveEnded();
  }
}

// ---- the run -----------------------------------------------------------------------------------------------------------------

let running;

/* The socket's number: taken out of the environment, so that no child looks for it.  Node made it close-on-exec at its start. */
function claimSocket() {
  const fd = Number(process.env.MANDOR_FD);
  try {
    if (!(fd > 2) || !fstatSync(fd).isSocket()) throw new Error();
  } catch {
    throw new Error("expected a socket's number in MANDOR_FD: a mandor pool starts this program");
  }
  delete process.env.MANDOR_FD;
  return fd;
}

function exitSoon(code) {
  process.exitCode = code;
  setTimeout(() => process.exit(code), LINGER_MS).unref(); // when something of the program keeps the loop alive
}

export async function serve(handler, { concurrency, name = basename(process.argv[1] ?? "node"), credit = 65536 } = {}) {
  if (typeof handler !== "function") throw new TypeError("expected a handler: serve(async (job, ctx) => result)");
  if (concurrency !== undefined && !(Number.isSafeInteger(concurrency) && concurrency > 0))
    throw new RangeError(`expected a concurrency of 1 or more, found ${concurrency}`);
  if (!(Number.isInteger(credit) && credit >= 1 && credit <= wire.CREDIT_MAX))
    throw new RangeError(`expected a credit from 1 to ${wire.CREDIT_MAX}, found ${credit}`);
  if (running !== undefined) throw new Error("the worker is running already");

  let fd;
  try {
    fd = claimSocket();
  } catch (error) {
    console.error(`mandor-worker: ${error.message}`);
    process.exit(1);
  }
  running = new Link(handler, fd, { concurrency, name, credit });
  try {
    await running.ended;
    exitSoon(running.exitCode);
  } finally {
    running = undefined;
  }
}

/* A line about the worker itself, not about a job, for mandor's log. */
export function log(text, level) {
  if (running === undefined) throw new Error("the worker is not running");
  running.tell(wire.LOG, logLine(text, level), 0);
}
