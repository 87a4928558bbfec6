/** Frames between mandor and a warm worker, for tests and tools; doc/pool-protocol.md is the contract. */
export const VERSION: 1;
export const HEADER_SIZE: 16;
export const PAYLOAD_MAX: number;
export const TEXT_MAX: number;
export const CONTROL_MAX: number;
export const CREDIT_MAX: number;
export const NUMBER_MAX: number;
export const DEPTH_MAX: number;
export const HELLO: 1, JOB: 2, CHUNK: 3, RESULT: 4, ERROR: 5, PROGRESS: 6, LOG: 7, CANCEL: 8, CREDIT: 9, PING: 10, PONG: 11, BYE: 12;
export const STDIN: 0, STDOUT: 1, STDERR: 2;

export type Side = "mandor" | "worker";

export interface Frame {
  type: number;
  stream: number;
  last: boolean;
  job: number;
  payload: Buffer;
}

/** The connection is of no more use. */
export class ProtocolError extends Error {
  constructor(fault: string, offset: number, text: string);
  /** Its class, as in the test vectors. */
  readonly fault: string;
  /** The byte that was wrong. */
  readonly offset: number;
}

/** Takes the bytes of one sender, in pieces of any size, and gives whole frames. */
export class Decoder {
  constructor(sender: Side);
  readonly offset: number;
  feed(bytes: Buffer): void;
  /** undefined: more bytes are needed.  Throws ProtocolError. */
  next(): Frame | undefined;
  /** The connection has ended; throws inside a frame. */
  end(): void;
}

export function typeName(type: number): string;
export function encodeHeader(type: number, length: number, job?: number, stream?: number, last?: boolean): Buffer;
export function encode(type: number, payload?: Buffer, job?: number, stream?: number, last?: boolean): Buffer;
/** Both throw RangeError when that is not allowed. */
export function grantCredit(credit: number, more: number): number;
export function spendCredit(credit: number, used: number): number;
export function parseJson(bytes: Uint8Array): unknown;
export function dumpJson(value: unknown, most: number, what: string): Buffer;
export function wholeMember(bytes: Uint8Array, key: string, least: number, most: number): number | undefined;
