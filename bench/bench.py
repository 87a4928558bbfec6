"""bench.py - the program behind script/bench, which see."""
import argparse
import json
import sys

from measure import Bench, Failed, machine
from report import errors, failed, table
from rows import ROWS


def main():
    parser = argparse.ArgumentParser(prog="script/bench")
    parser.add_argument("--build", required=True)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("rows", nargs="*", metavar="ROW")
    args = parser.parse_args()
    unknown = [row for row in args.rows if row not in ROWS]
    if unknown:
        sys.exit(f"script/bench: no row '{unknown[0]}', expected some of: {' '.join(ROWS)}")

    bench = Bench(args.build, args.dir or args.build, args.quick)
    lines = []
    try:
        facts = machine(bench)
        facts["repetitions"] = f"median of {bench.reps}, alternating" + (", --quick" if args.quick else "")
        for name, text in facts.items():
            print(f"{name + ':':<20}{text}")
        print(flush=True)
        for row in args.rows or ROWS:
            print(f"… {row}", file=sys.stderr, flush=True)
            try:
                lines += ROWS[row](bench)
            except Failed as error:
                lines.append(failed(row, "", error))
    finally:
        bench.close()

    print(table(lines))
    for error in errors(lines):
        print(f"\nnot run: {error}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"machine": facts, "lines": [line.data for line in lines]}, file, indent=1)
    missed = sum(line.data["verdict"] == "MISSED" for line in lines)
    broken = sum(line.cells[6] == "NOT RUN" or "WRONG" in line.cells[7] for line in lines)
    print(f"\n{sum(line.data['verdict'] == 'met' for line in lines)} goals met, {missed} missed, {broken} rows not run or not delivered")
    return 1 if broken else 0


sys.exit(main())
