// noop.mjs SOCKET COUNT PARALLEL stock|fill|left [PROGRAM]: jobs that leave nothing.  fill: only add them.  stock: add them, and do nothing for
// each in a stock worker; prints {seconds, cpu} of that alone.  left: prints what is left.
import { Queue, Worker } from "bullmq";

const [path, count, parallel, what, program] = [process.argv[2], +process.argv[3], +process.argv[4], ...process.argv.slice(5)];
const connection = { path, maxRetriesPerRequest: null };
const queue = new Queue("bench", { connection });

if (what !== "left") {
    for (let i = 0; i < count; i += 1000) {
        const opts = { removeOnComplete: true };
        const jobs = Array.from({ length: Math.min(1000, count - i) }, (_, j) => ({ name: "job", data: { exec: [program] }, opts }));
        await queue.addBulk(jobs);
    }
}
if (what === "stock") {
    const cpu = process.cpuUsage();
    const start = performance.now();
    let ended = 0;
    let worker;
    await new Promise((resolve) => {
        worker = new Worker("bench", async () => 1, { connection, concurrency: parallel });
        worker.on("completed", () => ++ended === count && resolve());
    });
    const seconds = (performance.now() - start) / 1000;
    const used = process.cpuUsage(cpu);
    console.log(JSON.stringify({ seconds, cpu: (used.user + used.system) / 1e6, left: await queue.getJobCountByTypes("wait", "active") }));
    await worker.close();
}
if (what === "left") console.log(JSON.stringify({ left: await queue.getJobCountByTypes("wait", "active"), failed: await queue.getJobCountByTypes("failed") }));
await queue.close();
