// watch.mjs - isolation `scope`: what a job does that cleaning cannot undo, or that would show it the harness, is noted here, out of
// Python's reach; its process takes no other job.
//
//   hooks of the interpreter     gc, ctypes, frames of coroutines, tracing, code of functions, classes that are changed
//   files                        whatever is written outside the places that are emptied
//   prototypes                   of JavaScript's own objects
//   timers                       those of a job that has ended do nothing
//
// Everything that is called here after a job has run was taken from its prototype before: a job may have put another one there.
const { create, getOwnPropertyDescriptor } = Object;
const { apply, ownKeys } = Reflect;
const { fromCharCode } = String;
const startsWith = Function.prototype.call.bind(String.prototype.startsWith);
const has = Function.prototype.call.bind(Array.prototype.includes);

// Audit events that lead to the harness, or stay; and those that lead there while its own functions are below the job's.
const NEVER = ["gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames", "sys._current_exceptions", "sys.settrace",
  "sys.setprofile", "sys.addaudithook", "sys.monitoring.register_callback"];
const NOT_NOW = ["sys._getframe"];
const FRAMES_OF = ["cr_frame", "gi_frame", "ag_frame"];
const FINE = 0, TAINTS = 1, TAINTS_IN_PAUSE = 2, ASK_NAME = 3, ASK_WHOSE = 4;

const kinds = [Object, Function, Array, Map, Set, WeakMap, WeakSet, Promise, Error, TypeError, RangeError, ArrayBuffer, DataView, Uint8Array,
  Object.getPrototypeOf(Uint8Array), Int8Array, Int32Array, Uint32Array, Float64Array, Date, String, Number, Boolean, BigInt, Symbol, RegExp, TextEncoder,
  TextDecoder, FinalizationRegistry, WeakRef];
const shared = [...kinds, ...kinds.map((kind) => kind.prototype), JSON, Math, Reflect, Atomics, WebAssembly,
  ...[[][Symbol.iterator](), new Map().entries(), new Set().values(), ""[Symbol.iterator](), (function* () {})()].map(Object.getPrototypeOf)];

function takePicture() {
  return shared.map((one) => ownKeys(one).map((key) => ({ key, ...getOwnPropertyDescriptor(one, key) })));
}

function isAsBefore(picture) {
  for (let i = 0; i < shared.length; i++) {
    const before = picture[i];
    if (ownKeys(shared[i]).length !== before.length) return false;
    for (let k = 0; k < before.length; k++) {
      const then = before[k], now = getOwnPropertyDescriptor(shared[i], then.key);
      if (now === undefined || now.value !== then.value && then.value === then.value || now.get !== then.get || now.set !== then.set) return false;
    }
  }
  return true;
}

export class Watch {
  #tainted = false;
  #paused = false;
  #waiting = create(null); // {number: how to forget it}
  #last = 0;
  #changed = create(null);
  #touched = false;
  #picture;
  #fds;
  #py;

  // A job begins.
  begin() {
    this.forget();
    this.#paused = false;
  }

  // What the job has put off does nothing any more.
  forget() {
    const waiting = this.#waiting;
    this.#waiting = create(null);
    for (const number in waiting) waiting[number]();
  }

  // The job's code has ended: what still runs of it runs above the harness.
  pause() {
    this.#paused = true;
  }

  #taint() {
    this.#tainted = true;
  }

  // What takes a callback, and forgets it with the job.
  #perTerm(later, cancel) {
    return Object.freeze((callback, ms, ...args) => {
      const number = this.#last++;
      const timer = later((...args) => {
        if (this.#waiting[number] === undefined) return undefined;
        if (later !== setInterval) delete this.#waiting[number];
        return apply(callback, undefined, args);
      }, ms, ...args); // called by the job, in its own time
      this.#waiting[number] = () => {
        cancel?.(timer);
        callback.destroy?.();
      };
      return timer;
    });
  }

  timers = { setTimeout: this.#perTerm(setTimeout, clearTimeout), setInterval: this.#perTerm(setInterval, clearInterval) };

  // Before Python's way to JavaScript is cut off.
  schedule(py) {
    py._api.scheduleCallback = this.#perTerm(py._api.scheduleCallback);
    py.runPython("import pyodide.webloop, pyodide_js; pyodide.webloop.scheduleCallback = pyodide_js._api.scheduleCallback");
  }

  // In the copy, before its first job.  Addresses of the functions, the classes and the names of modules that are there.
  start(py, functions, classes, dicts) {
    this.#py = py;
    this.#hear(py._module, functions);
    this.#guardClasses(py._module, classes);
    this.#guardDicts(py._module, dicts);
    this.#guardFiles(py.FS, py.FS.filesystems.MEMFS.ops_table);
    this.#fds = this.#open();
    this.#picture = takePicture();
  }

  // May another job run here?
  isClean() {
    return !this.#tainted && this.#open() === this.#fds && isAsBefore(this.#picture);
  }

  #open() {
    const { streams } = this.#py.FS;
    let open = 0;
    for (let fd = 0; fd < streams.length; fd++) if (streams[fd]) open += fd < 3 ? 1 : 8;
    return open;
  }

  #hear(module, functions) {
    const known = create(null); // by address: what the interpreter calls itself is always at the same one
    const isOld = create(null);
    for (const one of functions) isOld[one] = true;
    const textAt = (at) => {
      let text = "";
      for (let i = at; module.HEAPU8[i] !== 0 && i - at < 64; i++) text += fromCharCode(module.HEAPU8[i]);
      return text;
    };
    const look = (at) => {
      const text = textAt(at);
      if (startsWith(text, "ctypes.")) return TAINTS;
      if (text === "object.__getattr__") return ASK_NAME;
      if (text === "object.__setattr__" || text === "object.__delattr__") return ASK_WHOSE;
      return has(NEVER, text) ? TAINTS : has(NOT_NOW, text) ? TAINTS_IN_PAUSE : FINE;
    };
    const isFrame = (args) => {
      const name = textAt(module._PyUnicode_AsUTF8(module._PyTuple_GetItem(args, 1)));
      return has(FRAMES_OF, name) || (this.#paused && name === "tb_frame");
    };
    const hook = module.addFunction((event, args) => {
      const kind = known[event] ?? (known[event] = look(event));
      if (kind === TAINTS || (kind === TAINTS_IN_PAUSE && this.#paused) || (kind === ASK_NAME && isFrame(args)) ||
          (kind === ASK_WHOSE && isOld[module._PyTuple_GetItem(args, 0)])) this.#taint();
      return 0;
    }, "iiii");
    if (module._PySys_AddAuditHook(hook, 0) !== 0) throw new Error("no audit hook can be had");
  }

  #guardClasses(module, classes) {
    const watcher = module._PyType_AddWatcher(module.addFunction(() => {
      this.#taint();
      return 0;
    }, "ii"));
    if (watcher < 0) throw new Error("classes cannot be watched");
    for (const one of classes) if (module._PyType_Watch(watcher, one) !== 0) throw new Error("a class cannot be watched");
  }

  #guardDicts(module, dicts) {
    const watcher = module._PyDict_AddWatcher(module.addFunction((event, dict) => {
      this.#changed[dict] = true;
      return 0;
    }, "iiiii"));
    if (watcher < 0) throw new Error("modules cannot be watched");
    for (const one of dicts) if (module._PyDict_Watch(watcher, one) !== 0) throw new Error("a module cannot be watched");
  }

  // Addresses of the dicts that have been written to since it was asked.
  changed() {
    let addresses = "";
    for (const one in this.#changed) addresses += one + " ";
    this.#changed = create(null);
    return addresses;
  }

  // Has anything been written in the places that are emptied, since it was asked?
  touched() {
    const touched = this.#touched;
    this.#touched = false;
    return touched;
  }

  #guardFiles(fs, table) {
    const emptied = ["tmp", "home"].map((name) => fs.lookupPath(`/${name}`).node);
    const note = (node) => {
      while (node.parent !== node && node !== emptied[0] && node !== emptied[1]) node = node.parent;
      if (node.parent === node) this.#taint();
      else this.#touched = true;
    };
    const guard = (ops, name, which) => {
      const plain = ops[name];
      ops[name] = (...args) => {
        note(which(args));
        return apply(plain, ops, args);
      };
    };
    for (const name of ["mknod", "unlink", "rmdir", "symlink"]) guard(table.dir.node, name, (args) => args[0]); // the directory
    guard(table.dir.node, "rename", (args) => args[0]);
    guard(table.dir.node, "rename", (args) => args[1]); // to where
    for (const kind of ["dir", "file", "link"]) guard(table[kind].node, "setattr", (args) => args[0]);
    for (const name of ["write", "mmap"]) guard(table.file.stream, name, (args) => args[0].node);
  }
}
