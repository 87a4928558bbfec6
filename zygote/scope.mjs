// scope.mjs - isolation `scope`: job after job in one copy, cleaned in between; what cannot be cleaned ends it.
const HEAP_GROWTH_MAX = 64 << 20; // bytes
const later = setImmediate; // as it is before the first job
const turn = () => new Promise((done) => later(done));

// Put back what a job has changed.  False: something of it is left.
async function cleanUp(tidy, settle) {
  const tidied = await tidy();
  await turn(); // a chain of promises that never ends does not let it pass, and is the job's own time
  if (settle()) return tidied;
  await turn(); // what was put back, or was garbage, may have had a last word
  return settle() && tidied;
}

export async function liveOn(addon, interpreter, config) {
  const { py, flag, run, reseed, remember, tidy, settle, report, leave, watch } = interpreter;
  const first = py._module.HEAPU8.length;
  const cpuUsage = process.cpuUsage.bind(process);

  const known = remember();
  watch.start(py, ...known.toJs());
  known.destroy();
  for (let jobs = 1; ; jobs++) {
    const frame = addon.readFrame(3);
    if (frame === null) addon.exit(0);
    const before = cpuUsage();
    watch.begin();
    const code = await run(frame);
    watch.pause();
    const clean = await cleanUp(tidy, settle);
    if (addon.disarm()) leave(code); // mandor has ended it
    const { user, system } = cpuUsage(before);
    const grown = py._module.HEAPU8.length - first;
    const recycle = !clean || !watch.isClean() || grown > HEAP_GROWTH_MAX || jobs >= config.recycle_jobs;
    const ended = report(code);
    addon.end(ended, recycle, user, system);
    if (recycle) addon.exit(0);
    flag[0] = 0;
    reseed();
  }
}
