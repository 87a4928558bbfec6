/** A warm worker of a mandor pool: one async handler, called for one job after the other or for several at once. */
import type { Readable, Writable } from "node:stream";

/** What a job was added with, and what it gives back: anything that JSON has. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** Also a later mandor's word; "lost": mandor itself has gone. */
export type CancelReason = "timeout" | "cancelled" | "shutdown" | "lost_lease" | "lost" | (string & {});
export type LogLevel = "debug" | "info" | "warn" | "error";
export type StreamName = "stdout" | "stderr";

export interface Job<Data = any> {
  /** The job's id in its queue. */
  readonly id: string;
  readonly queue: string;
  /** 1 and up; only grows, so it can serve as a fencing token. */
  readonly attempt: number;
  /** What the job was added with (--data). */
  readonly data: Data;
  /** Of the whole attempt; 0: none. */
  readonly timeoutMs: number;
  /** Of this connection. */
  readonly number: number;
}

export interface Context<Data = any> {
  readonly job: Job<Data>;
  /** Aborts when mandor wants the job's end; its reason is a JobCancelledError. */
  readonly signal: AbortSignal;
  /** The job's stdin, as a stream of Buffers; empty when it has none. */
  readonly input: Readable;
  /** The job's stdout; a slow sink slows it.  What is written is flushed before the result is sent. */
  readonly output: Writable;
  /** The job's stderr, likewise. */
  readonly errorOutput: Writable;
  /** Write all of data, in order and exactly; resolves once it has been sent, rejects once the job is cancelled. */
  write(data: Uint8Array | string, stream?: StreamName): Promise<void>;
  /**
   * Say how far the job is: anything that JSON has, such as 42 or {frame: 12}.
   *
   * This and log() do not wait; they throw once mandor has left 20 MiB unread.
   */
  progress(value: unknown): void;
  /** A line for the job's log. */
  log(text: unknown, level?: LogLevel): void;
  /** Ask mandor for no further jobs, for example because memory was lost; the jobs that are here go on. */
  bye(reason?: string): void;
}

export interface ServeOptions {
  /** Jobs at once at most; without it what the pool is set to. */
  concurrency?: number;
  /** In mandor's log and in `mandor pools`; without it the program's name. */
  name?: string;
  /** Bytes of stdin that are held for a job unread; 65536 without it. */
  credit?: number;
}

export type Handler<Data = any> = (job: Job<Data>, context: Context<Data>) => unknown;

/**
 * Serve jobs until mandor says that no more will come; resolves when all are done and sent, and the process then exits with 0
 * (after 5 s also when something keeps its loop alive).
 *
 * What the handler returns is the job's result (undefined: null); what it throws fails the job.  Exits with 1 and a line on
 * stderr when the program was not started by a mandor pool, or what came was no frame.
 */
export function serve<Data = any>(handler: Handler<Data>, options?: ServeOptions): Promise<void>;

/** A line about the worker itself, not about a job, for mandor's log. */
export function log(text: unknown, level?: LogLevel): void;

export interface JobErrorOptions extends ErrorOptions {
  /** May another attempt help?  true without it. */
  retry?: boolean;
  /** The exit code in the job's record, 1 to 255. */
  code?: number;
}

/** Fails the job with exactly this message. */
export class JobError extends Error {
  constructor(message: string, options?: JobErrorOptions);
  readonly retry: boolean;
  readonly code?: number;
}

/** Fails the job for good: another attempt would fail likewise. */
export class NoRetryError extends JobError {
  constructor(message: string, options?: Omit<JobErrorOptions, "retry">);
}

/** What ctx.signal aborts with, and what waiting calls then throw. */
export class JobCancelledError extends Error {
  constructor(reason: CancelReason);
  readonly reason: CancelReason;
  readonly code: "ABORT_ERR";
}
