// main.mjs - the fork server: Pyodide is started once, and every job gets a copy of this process.
//
//   read what to load ─▶ start Pyodide ─▶ import ─▶ rehearse ─▶ {"ready"} ─▶ serve() ═▶ in each copy: the rest of copy.mjs
import { createRequire } from "node:module";

// What each needs so that Python can wait for a promise in the middle of synchronous code (asyncio.run).
const FLAGS = { 20: "--experimental-wasm-stack-switching", 22: "--experimental-wasm-jspi", 24: null };

const encoder = new TextEncoder();
let addon, refused = false;

function refuse(text) {
  refused = true;
  if (addon === undefined) process.stderr.write(text + "\n");
  else addon.send(encoder.encode(JSON.stringify({ failed: text.slice(0, 1000).toWellFormed() })));
  process.exit(1);
}

const major = Number(process.versions.node.split(".")[0]);
try {
  addon = createRequire(import.meta.url)("./mandor_zygote.node");
} catch (error) {
  refuse(`the add-on cannot be loaded by Node ${process.versions.node}: ${error.message.split("\n")[0]}`);
}
if (!(major in FLAGS)) refuse(`Node ${process.versions.node} is not supported, expected 20, 22 or 24`);
if (FLAGS[major] !== null && !process.execArgv.includes(FLAGS[major]))
  addon.restart([process.execPath, FLAGS[major], ...process.execArgv, ...process.argv.slice(1)]);

const message = addon.receive();
if (message === null) process.exit(0);
const config = JSON.parse(message);

const layers = { network: addon.withdraw(), seccomp: false };
if (config.sandbox !== "none") {
  try {
    addon.compileFilter();
    layers.seccomp = true;
  } catch (error) {
    refuse(`sandbox 'strict' cannot be had here: ${error.message}`);
  }
}

let interpreter;
try {
  const { startInterpreter, cannotStart } = await import("./interpreter.mjs");
  for (const event of ["uncaughtException", "unhandledRejection"]) // what settles no promise; startInterpreter() ends by replacing both
    process.on(event, (error) => {
      try {
        cannotStart(error);
      } catch (why) {
        refuse(why.message);
      }
    });
  process.on("exit", () => {
    if (interpreter === undefined && !refused) refuse("Pyodide cannot be started: it ends while it loads, its last words are in the log");
  });
  interpreter = await startInterpreter(addon, config);
} catch (error) {
  const lines = String(error.message).trim().split("\n");
  refuse(lines[0].startsWith("Traceback") ? lines.pop() : lines[0]);
}

const { live, rehearse } = await import("./copy.mjs");
if (config.isolation !== "instance") await rehearse(addon, interpreter);
addon.send(encoder.encode(JSON.stringify({
  ready: { node: process.versions.node, pyodide: interpreter.py.version, layers, memory: process.memoryUsage.rss() },
})));
await live(addon, interpreter, config);
