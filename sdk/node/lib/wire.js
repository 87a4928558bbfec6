/* wire.js - frames between mandor and a warm worker; doc/pool-protocol.md is the contract.
 *
 *     0        4      5       6         8              16
 *     | length | type | flags | version | job number   | payload ...      little-endian
 *
 * No input or output here.  What one side of a connection can get wrong by itself is checked; whether a job is running
 * and there was credit is the owner's matter.
 */

export const VERSION = 1;
export const HEADER_SIZE = 16;
export const PAYLOAD_MAX = 16 * 1024 * 1024; // bytes: CHUNK, JOB, RESULT
export const TEXT_MAX = 1024 * 1024; // bytes: ERROR, PROGRESS, LOG
export const CONTROL_MAX = 4096; // bytes: the others
export const CREDIT_MAX = 2 ** 31 - 1; // bytes that one stream's credit may reach
export const NUMBER_MAX = Number.MAX_SAFE_INTEGER; // of job numbers and of whole numbers in JSON
export const DEPTH_MAX = 1024; // arrays and objects within each other

export const HELLO = 1, JOB = 2, CHUNK = 3, RESULT = 4, ERROR = 5, PROGRESS = 6, LOG = 7, CANCEL = 8, CREDIT = 9, PING = 10,
  PONG = 11, BYE = 12;
export const STDIN = 0, STDOUT = 1, STDERR = 2;

const both = ["mandor", "worker"], mandor = ["mandor"], worker = ["worker"];
const none = [], stdin = [STDIN], output = [STDOUT, STDERR];

/* job: "none" is 0, "some" is 1 and up.  least, most: bytes of payload.  streams: what bits 1 and 2 of the flags may name. */
const message = (name, senders, job, least, most, streams = { mandor: none, worker: none }) => ({ name, senders, job, least, most, streams });
const MESSAGES = [
  undefined,
  message("HELLO", both, "none", 2, CONTROL_MAX),
  message("JOB", mandor, "some", 2, PAYLOAD_MAX),
  message("CHUNK", both, "some", 1, PAYLOAD_MAX, { mandor: stdin, worker: output }),
  message("RESULT", worker, "some", 1, PAYLOAD_MAX),
  message("ERROR", worker, "some", 2, TEXT_MAX),
  message("PROGRESS", worker, "some", 1, TEXT_MAX),
  message("LOG", worker, "any", 2, TEXT_MAX),
  message("CANCEL", mandor, "some", 2, CONTROL_MAX),
  message("CREDIT", both, "some", 2, CONTROL_MAX, { mandor: output, worker: stdin }),
  message("PING", both, "none", 2, CONTROL_MAX),
  message("PONG", both, "none", 2, CONTROL_MAX),
  message("BYE", both, "none", 2, CONTROL_MAX),
];

export const typeName = (type) => MESSAGES[type]?.name ?? "?";

/* The connection is of no more use.  fault: its class, as in the test vectors; offset: the byte that was wrong. */
export class ProtocolError extends Error {
  name = "ProtocolError";
  constructor(fault, offset, text) {
    super(`byte ${offset}: ${text}`);
    this.fault = fault;
    this.offset = offset;
  }
}

/* The header of a frame. */
export function encodeHeader(type, length, job = 0, stream = 0, last = false) {
  const header = Buffer.allocUnsafe(HEADER_SIZE);
  header.writeUInt32LE(length, 0);
  header[4] = type;
  header[5] = (stream << 1) | (last ? 1 : 0);
  header.writeUInt16LE(VERSION, 6);
  header.writeUInt32LE(job % 2 ** 32, 8);
  header.writeUInt32LE(Math.floor(job / 2 ** 32), 12);
  return header;
}

export function encode(type, payload = Buffer.alloc(0), job = 0, stream = 0, last = false) {
  return Buffer.concat([encodeHeader(type, payload.length, job, stream, last), payload]);
}

/* Takes the bytes of one sender, in pieces of any size, and gives frames: { type, stream, last, job, payload }. */
export class Decoder {
  #sender;
  #parts = []; // what came and is not taken; never empty buffers
  #size = 0;
  #header; // of the frame in work
  #hello = false;
  #bye = false;
  #lastJob = 0;
  offset = 0; // bytes of the connection before the frame in work

  constructor(sender) {
    this.#sender = sender;
  }

  feed(bytes) {
    if (bytes.length > 0) this.#parts.push(bytes);
    this.#size += bytes.length;
  }

  /* The next whole frame; undefined: more bytes are needed. */
  next() {
    if (this.#header === undefined) {
      if (this.#size < HEADER_SIZE) return undefined;
      this.#header = this.#check(this.#take(HEADER_SIZE));
    }
    const header = this.#header;
    if (this.#size < header.length) return undefined;
    const payload = this.#take(header.length);
    this.offset += HEADER_SIZE + header.length;
    this.#header = undefined;
    this.#hello ||= header.type === HELLO;
    this.#bye ||= header.type === BYE;
    if (header.type === JOB) this.#lastJob = header.job;
    return { type: header.type, stream: header.flags >> 1, last: (header.flags & 1) === 1, job: header.job, payload };
  }

  /* The connection has ended; throws inside a frame. */
  end() {
    if (this.#header !== undefined) {
      const { type, length } = this.#header;
      this.#fail("torn", HEADER_SIZE + this.#size,
        `expected ${length} bytes of payload in ${typeName(type)}, found the end after ${this.#size}`);
    }
    if (this.#size > 0)
      this.#fail("torn", this.#size, `expected a header of ${HEADER_SIZE} bytes, found the end after ${this.#size}`);
  }

  /* The next bytes, which have come; copied only when they came in several pieces. */
  #take(length) {
    if (length === 0) return Buffer.alloc(0);
    if (this.#parts[0].length < length) this.#parts = [Buffer.concat(this.#parts)];
    const first = this.#parts[0];
    this.#size -= length;
    if (first.length === length) this.#parts.shift();
    else this.#parts[0] = first.subarray(length);
    return first.subarray(0, length);
  }

  #fail(fault, field, text) {
    throw new ProtocolError(fault, this.offset + field, text);
  }

  #check(bytes) {
    const length = bytes.readUInt32LE(0), type = bytes[4], flags = bytes[5], version = bytes.readUInt16LE(6);
    const job = bytes.readUInt32LE(8) + bytes.readUInt32LE(12) * 2 ** 32; // inexact only beyond what is allowed
    const kind = MESSAGES[type];
    if (length > PAYLOAD_MAX) this.#fail("length", 0, lengthText(bytes, length));
    if (kind === undefined) this.#fail("type", 4, `expected a type from 1 to ${BYE}, found ${type}`);
    if (version !== VERSION) this.#fail("version", 6, `expected protocol version ${VERSION}, found ${version}`);
    if (!kind.senders.includes(this.#sender))
      this.#fail("direction", 4, `expected no ${kind.name} from ${this.#sender}, found one`);
    this.#checkOrder(type, kind);
    this.#checkFlags(flags, type, kind);
    this.#checkJob(job, type, kind);
    const least = type === CHUNK && flags & 1 ? 0 : kind.least;
    if (length < least || length > kind.most)
      this.#fail("length", 0, `expected ${least} to ${kind.most} bytes of payload in ${kind.name}, found length ${length}`);
    return { length, type, flags, job };
  }

  #checkOrder(type, { name }) {
    if (this.#bye && !this.#hello) this.#fail("order", 4, `expected the end after a refusing BYE, found ${name}`);
    if (!this.#hello && type !== HELLO && !(type === BYE && this.#sender === "mandor"))
      this.#fail("order", 4, `expected HELLO as the first frame, found ${name}`);
    if ((type === HELLO && this.#hello) || (type === BYE && this.#bye))
      this.#fail("order", 4, `expected ${name} once, found it again`);
    if (type === JOB && this.#bye) this.#fail("order", 4, "expected no JOB after BYE, found one");
  }

  #checkFlags(flags, type, { name, streams }) {
    const stream = (flags >> 1) & 3, allowed = streams[this.#sender];
    if (flags & ~7)
      this.#fail("flags", 5, `expected bits 3-7 of the flags to be 0, found flags 0x${flags.toString(16).padStart(2, "0")}`);
    if (flags & 1 && type !== CHUNK) this.#fail("flags", 5, `expected bit 0 of the flags on CHUNK alone, found it on ${name}`);
    if (allowed === none && stream !== 0) this.#fail("flags", 5, `expected no stream on ${name}, found stream ${stream}`);
    if (allowed !== none && !allowed.includes(stream))
      this.#fail("stream", 5, `expected stream ${allowed === stdin ? "0 (stdin)" : "1 or 2 (stdout, stderr)"} on ${name} ` +
        `from ${this.#sender}, found stream ${stream}`);
  }

  #checkJob(job, type, kind) {
    if (job > NUMBER_MAX) this.#fail("job", 8, `expected a job number up to 2^53-1, found ${job}`);
    if (kind.job === "none" && job !== 0) this.#fail("job", 8, `expected job number 0 on ${kind.name}, found ${job}`);
    if (kind.job === "some" && job === 0) this.#fail("job", 8, `expected a job number on ${kind.name}, found 0`);
    if (type === JOB && job <= this.#lastJob)
      this.#fail("job", 8, `expected a JOB number above ${this.#lastJob}, found ${job}`);
  }
}

/* Text instead of a header is the commonest accident, and deserves its own words. */
function lengthText(bytes, length) {
  if (bytes.every((byte) => (byte >= 0x20 && byte < 0x7f) || byte === 9 || byte === 10 || byte === 13))
    return `expected a frame, found text: "${bytes.toString("latin1").replace(/[\t\n\r]/g, ".")}"`;
  return `expected a payload of at most ${PAYLOAD_MAX} bytes, found length ${length}`;
}

// ---- credit: bytes of one stream of one job that may still be sent

export function grantCredit(credit, more) {
  if (!Number.isInteger(more) || more < 1 || more > CREDIT_MAX - credit)
    throw new RangeError(`expected a grant of 1 byte or more and a sum up to ${CREDIT_MAX}, found ${credit} + ${more}`);
  return credit + more;
}

export function spendCredit(credit, used) {
  if (used > credit) throw new RangeError(`expected no more than the ${credit} bytes that there was credit for, found ${used}`);
  return credit - used;
}

// ---- JSON as the protocol wants it: RFC 8259 in UTF-8, no byte order mark, no lone surrogates, not too deep

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const LONE = /(?:^|[^\\])(?:\\\\)*\\u[dD][89a-fA-F]/; // in what JSON.stringify wrote: it writes whole pairs as they are

function checkDepth(text) {
  if (text.length <= 2 * DEPTH_MAX) return;
  let depth = 0, quoted = false;
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (quoted) {
      if (c === 0x5c) i++;
      else if (c === 0x22) quoted = false;
    } else if (c === 0x22) quoted = true;
    else if (c === 0x5b || c === 0x7b) {
      if (++depth > DEPTH_MAX) throw new SyntaxError(`nested deeper than ${DEPTH_MAX}`);
    } else if (c === 0x5d || c === 0x7d) depth--;
  }
}

/* The value of a payload.  Throws when it is not JSON. */
export function parseJson(bytes) {
  const text = utf8.decode(bytes);
  checkDepth(text);
  const value = JSON.parse(text);
  if (text.includes("\\u") && LONE.test(JSON.stringify(value))) throw new SyntaxError("half a surrogate pair");
  return value;
}

/* value as the payload of a frame; undefined counts as null.  Throws when it has no JSON, or too much of it. */
export function dumpJson(value, most, what) {
  let text;
  try {
    text = JSON.stringify(value) ?? "null";
    checkDepth(text);
  } catch (error) {
    throw new TypeError(`${what} is not JSON: ${error.message}`, { cause: error });
  }
  if (LONE.test(text)) throw new TypeError(`${what} is not JSON: it has half a surrogate pair`);
  const bytes = Buffer.from(text);
  if (bytes.length > most) throw new RangeError(`${what} has ${bytes.length} bytes as JSON, expected at most ${most}`);
  return bytes;
}

/* The member `key` of a small object, a whole number written without fraction and exponent; undefined when it is not that.
 * JSON.parse alone does not tell 1.0 and 1e0 from 1. */
export function wholeMember(bytes, key, least, most) {
  const text = utf8.decode(bytes);
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\]:,]|[^\s{}[\]:,"]+/g) ?? [];
  let depth = 0, found;
  tokens.forEach((token, i) => {
    if (token === "{" || token === "[") depth++;
    else if (token === "}" || token === "]") depth--;
    else if (depth === 1 && token[0] === '"' && tokens[i + 1] === ":" && JSON.parse(token) === key) found = tokens[i + 2];
  });
  const number = found !== undefined && /^(0|[1-9][0-9]*)$/.test(found) ? Number(found) : NaN;
  return number >= least && number <= most ? number : undefined;
}
