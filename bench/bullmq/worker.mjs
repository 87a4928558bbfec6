// worker.mjs SOCKET COUNT PARALLEL PROGRAM: a stock BullMQ worker that starts a process for each job.
// Jobs are added first (timed apart); then a worker takes them until all are done.
import { spawn } from "node:child_process";
import { Queue, Worker } from "bullmq";

const [path, count, parallel, program] = [process.argv[2], +process.argv[3], +process.argv[4], process.argv[5]];
const connection = { path, maxRetriesPerRequest: null };

function execute() {
    return new Promise((resolve, reject) => {
        const child = spawn(program, { stdio: ["ignore", "pipe", "pipe"] });
        child.stdout.on("data", () => {});
        child.stderr.on("data", () => {});
        child.on("error", reject);
        child.on("close", (code) => (code === 0 ? resolve(code) : reject(new Error(`exit ${code}`))));
    });
}

const queue = new Queue("bench", { connection });
let start = performance.now();
for (let i = 0; i < count; i += 1000) {
    const jobs = Array.from({ length: Math.min(1000, count - i) }, (_, j) => ({ name: "true", data: { exec: [program], i: i + j } }));
    await queue.addBulk(jobs);
}
const addSeconds = (performance.now() - start) / 1000;

// "completed" is emitted when Redis has recorded the end of the job.
start = performance.now();
const worker = new Worker("bench", execute, { connection, concurrency: parallel });
let ended = 0;
await new Promise((resolve) => {
    const end = () => ++ended === count && resolve();
    worker.on("completed", end);
    worker.on("failed", end);
});
const seconds = (performance.now() - start) / 1000;
const ok = (await queue.getJobCounts("completed")).completed;
console.log(JSON.stringify({ seconds, addSeconds, ok }));
await worker.close();
await queue.close();
