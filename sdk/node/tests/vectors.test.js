/* The vectors that all worker libraries share. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as wire from "../lib/wire.js";

const load = (name) => JSON.parse(readFileSync(new URL(`../../../tests/vectors/pool/${name}.json`, import.meta.url), "utf8"));
const hex = (text) => Buffer.from(text, "hex");

function* pieces(bytes, size) {
  for (let at = 0; at < bytes.length; at += size || bytes.length) yield bytes.subarray(at, at + (size || bytes.length));
}

function decodeAll(decoder, bytes, size) {
  const frames = [];
  for (const piece of pieces(bytes, size)) {
    decoder.feed(piece);
    for (let frame; (frame = decoder.next()) !== undefined; ) frames.push(frame);
  }
  return frames;
}

function payloadGood(type, payload) {
  let body;
  try {
    body = wire.parseJson(payload);
  } catch {
    return false;
  }
  if (type === wire.RESULT || type === wire.PROGRESS) return true;
  if (body === null || typeof body !== "object" || Array.isArray(body)) return false;
  if (type === wire.CREDIT) return wire.wholeMember(payload, "bytes", 1, wire.CREDIT_MAX) !== undefined;
  if (type === wire.PING || type === wire.PONG) return wire.wholeMember(payload, "n", 0, wire.NUMBER_MAX) !== undefined;
  return true;
}

test("well-formed frames mean what the vectors say", () => {
  const { frames, hello } = load("frames");
  assert.ok(frames.length > 40);
  for (const row of frames)
    for (const size of [0, 1, 7]) {
      const decoder = new wire.Decoder(row.sender);
      if (!row.first) decodeAll(decoder, hex(hello[row.sender]), 0);
      const [frame, ...more] = decodeAll(decoder, hex(row.hex), size);
      assert.equal(more.length, 0);
      const { payload, ...fields } = frame;
      assert.deepEqual(fields, { type: row.number, stream: row.stream, last: row.last, job: row.job }, row.name);
      assert.equal(wire.typeName(frame.type), row.type);
      if (row.payload_hex !== undefined) assert.equal(payload.toString("hex"), row.payload_hex);
      else assert.deepEqual(wire.parseJson(payload), row.payload);
      assert.equal(wire.encode(frame.type, payload, frame.job, frame.stream, frame.last).toString("hex"), row.hex);
      decoder.end();
    }
});

test("headers at the limits are taken", () => {
  const { headers, hello } = load("frames");
  for (const row of headers) {
    const decoder = new wire.Decoder(row.sender);
    decodeAll(decoder, hex(hello[row.sender]), 0);
    assert.deepEqual(decodeAll(decoder, hex(row.hex), 5), []);
    assert.equal(decodeAll(decoder, Buffer.alloc(row.length), 65536).length, 1, row.name);
  }
});

test("malformed connections end with their class and byte", () => {
  const { malformed } = load("malformed");
  assert.ok(malformed.length > 80);
  for (const row of malformed)
    for (const size of [0, 1, 7]) {
      const decoder = new wire.Decoder(row.sender);
      decodeAll(decoder, hex(row.prefix), size);
      assert.throws(() => {
        assert.deepEqual(decodeAll(decoder, hex(row.hex), size), []);
        if (row.ends) decoder.end();
      }, (error) => {
        assert.equal(error.name, "ProtocolError", row.name);
        assert.deepEqual([error.fault, error.offset], [row.class, row.offset], row.name);
        return error.message.includes("expected ");
      }, row.name);
    }
});

test("JSON payloads are good or not as the vectors say", () => {
  const { payloads } = load("payloads");
  assert.ok(payloads.length > 50);
  for (const row of payloads) assert.equal(payloadGood(wire[row.type], hex(row.payload_hex)), row.valid, JSON.stringify(row));
});

test("credit is counted as the vectors say", () => {
  for (const row of load("credit").credit) {
    let credit = row.start, failed = null;
    row.steps.forEach((step, at) => {
      try {
        if (Array.isArray(step)) credit = wire.grantCredit(credit, step[1]);
        else credit = step > 0 ? wire.grantCredit(credit, step) : wire.spendCredit(credit, -step);
      } catch {
        failed ??= at;
      }
    });
    assert.deepEqual([failed, credit], [row.error, row.left], row.name);
  }
});

/* Sees both sides of a session and judges what needs both, with this library's decoder and credit. */
class Observer {
  decoders = { mandor: new wire.Decoder("mandor"), worker: new wire.Decoder("worker") };
  credit = {};
  concurrency = 0;
  pings = { mandor: 0, worker: 0 };
  jobs = new Map();
  refused = false;

  watch(steps, sizes) {
    let turn = 0;
    for (const [index, step] of steps.entries()) {
      const bytes = hex(step.hex);
      for (let at = 0; at < bytes.length; ) {
        const size = sizes[turn++ % sizes.length] || bytes.length;
        this.decoders[step.from].feed(bytes.subarray(at, at + size));
        at += size;
        for (let frame; (frame = this.decoders[step.from].next()) !== undefined; ) {
          const fault = this.see(step.from, frame);
          if (fault === undefined) continue;
          assert.equal(index, steps.length - 1, `${fault} in step ${index}`);
          return [fault, step.from];
        }
      }
    }
    return [this.refused ? "refused" : "ok", null];
  }

  see(side, frame) {
    const other = side === "mandor" ? "worker" : "mandor";
    if (frame.type !== wire.CHUNK && !payloadGood(frame.type, frame.payload)) return "json";
    const body = frame.type === wire.CHUNK ? undefined : wire.parseJson(frame.payload);
    switch (frame.type) {
      case wire.HELLO:
        for (const stream of side === "worker" ? [0] : [1, 2]) this.credit[stream] = body.credit;
        if (side === "mandor") this.concurrency = body.concurrency;
        return undefined;
      case wire.BYE:
        this.refused = this.concurrency === 0;
        return undefined;
      case wire.PING:
        this.pings[side]++;
        return undefined;
      case wire.PONG:
        return this.pings[other]-- === 0 ? "order" : undefined;
      case wire.JOB:
        if ([...this.jobs.values()].filter((job) => job.open).length === this.concurrency) return "concurrency";
        this.jobs.set(frame.job, { open: true, credit: { ...this.credit }, ended: { 0: body.stdin !== true } });
        return undefined;
      default:
        return frame.job === 0 ? undefined : this.seeOfJob(side, frame, body);
    }
  }

  seeOfJob(side, { type, stream, last, job: number, payload }, body) {
    const job = this.jobs.get(number);
    if (job === undefined) return "job";
    if (!job.open) return side === "worker" ? "job" : undefined;
    try {
      if (type === wire.CHUNK) {
        if (job.ended[stream]) return "ended";
        job.ended[stream] = last;
        job.credit[stream] = wire.spendCredit(job.credit[stream], payload.length);
      } else if (type === wire.CREDIT) job.credit[stream] = wire.grantCredit(job.credit[stream], body.bytes);
    } catch {
      return "credit";
    }
    if (type === wire.RESULT || type === wire.ERROR) job.open = false;
    return undefined;
  }
}

test("whole sessions end as the vectors say in every chunking", () => {
  const { sessions } = load("sessions");
  assert.ok(sessions.length > 20);
  for (const row of sessions)
    for (const sizes of row.chunkings) assert.deepEqual(new Observer().watch(row.steps, sizes), [row.end, row.by], row.name);
});

test("what has no JSON is refused with words", () => {
  const loop = {};
  loop.loop = loop;
  for (const value of [10n, loop, "\ud800", ["\udc00x"], { "\ud83d": 1 }])
    assert.throws(() => wire.dumpJson(value, 1000, "the result"), /the result is not JSON/);
  assert.throws(() => wire.dumpJson("x".repeat(100), 50, "the result"), /the result has 102 bytes as JSON, expected at most 50/);
  assert.equal(wire.dumpJson(undefined, 50, "it").toString(), "null");
  assert.equal(wire.dumpJson("😀\\ud800", 50, "it").toString(), '"😀\\\\ud800"'); // a backslash, not an escape
});

test("depth is bounded at 1024 both ways", () => {
  const deep = "[".repeat(1024) + "]".repeat(1024);
  assert.equal(wire.dumpJson(wire.parseJson(Buffer.from(deep)), 1 << 20, "it").toString(), deep);
  assert.throws(() => wire.parseJson(Buffer.from(`[${deep}]`)), /nested deeper/);
  assert.throws(() => wire.dumpJson([JSON.parse(deep)], 1 << 20, "it"), /nested deeper/);
});
