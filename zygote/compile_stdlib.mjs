// compile_stdlib.mjs PYODIDE OUT: Python's standard library as Pyodide has it, with the bytecode of each module beside its source.
//
// The archive of Pyodide holds sources alone: a fork server would compile for three seconds what it imports, and each copy what a job
// imports that was not.  Pyodide itself compiles here, once for a build.  The bytecode is not checked against the source again.
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, out] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(path.resolve(folder, "pyodide.mjs")));
const py = await loadPyodide({ env: { HOME: "/", PYTHONHASHSEED: "0" } }); // the same bytes from each build

py.FS.writeFile("/in.zip", fs.readFileSync(path.join(folder, "python_stdlib.zip")));
py.runPython(`
import sys, zipfile
from importlib import _bootstrap_external, util

home = next(path for path in sys.path if path.endswith(".zip"))
with zipfile.ZipFile("/in.zip") as stock, zipfile.ZipFile("/out.zip", "w", zipfile.ZIP_DEFLATED) as both:
    for member in stock.infolist():
        source = stock.read(member)
        both.writestr(member, source)
        if member.filename.endswith(".py"):
            code = compile(source, f"{home}/{member.filename}", "exec", dont_inherit=True)
            beside = zipfile.ZipInfo(member.filename + "c", member.date_time)
            beside.compress_type = zipfile.ZIP_DEFLATED
            both.writestr(beside, _bootstrap_external._code_to_hash_pyc(code, util.source_hash(source), False))
`);
fs.writeFileSync(out, py.FS.readFile("/out.zip"));
