// pyodide.mjs: the usual runner of Python in WebAssembly, to compare with: BullMQ, one Pyodide for all jobs, a fresh dict for each, a new
// Pyodide every 100 jobs.
//
//   pyodide.mjs SOCKET COUNT        through BullMQ
//   pyodide.mjs - COUNT bare        the same without a queue
//   pyodide.mjs - COUNT fresh       a new Pyodide for each job
import { loadPyodide } from "../../zygote/node_modules/pyodide/pyodide.mjs";

const [socket, countText, mode] = process.argv.slice(2);
const count = Number(countText), RECYCLE = 100;
const code = "params['x'] + sum(i * i for i in range(1000))";
const expected = (x) => x + 332833500;
let python = null, served = 0, ok = 0;
const latencies = [];

async function run(x) {
  const began = performance.now();
  if (python === null || served >= (mode === "fresh" ? 1 : RECYCLE)) {
    python = await loadPyodide();
    served = 0;
  }
  served++;
  const globals = python.toPy({}), params = python.toPy({ x });
  globals.set("params", params);
  try {
    if ((await python.runPythonAsync(code, { globals })) === expected(x)) ok++;
  } finally {
    globals.destroy();
    params.destroy();
    latencies.push(performance.now() - began);
  }
}

async function throughBullmq() {
  const { Queue, Worker } = await import("bullmq");
  const connection = { path: socket, maxRetriesPerRequest: null };
  const queue = new Queue("python", { connection });
  await queue.addBulk(Array.from({ length: count }, (_, x) => ({ name: "n", data: { x } })));
  const began = performance.now();
  await new Promise((resolve) => {
    let left = count;
    new Worker("python", async (job) => {
      await run(job.data.x);
      if (--left === 0) resolve();
    }, { connection, concurrency: 1 });
  });
  return performance.now() - began;
}

async function alone() {
  const began = performance.now();
  for (let x = 0; x < count; x++) await run(x);
  return performance.now() - began;
}

const ms = mode === undefined ? await throughBullmq() : await alone();
latencies.sort((a, b) => a - b);
const at = (part) => latencies[Math.min(latencies.length - 1, Math.floor(latencies.length * part))];
console.log(JSON.stringify({ seconds: ms / 1000, ok, p50_ms: at(0.5), p99_ms: at(0.99) }));
process.exit(0);
