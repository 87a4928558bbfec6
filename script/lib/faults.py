#!/usr/bin/python3
"""faults.py [--check]: put the tests that carry a fault's number (…_R22 in a name, R22 in a C test's comment) into doc/faults.md.

--check changes nothing and exits 1 when the page is not current, or when a test names a fault that the page does not have.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "doc" / "faults.md"
PY_TEST = re.compile(r"^\s*def (test_\w+)", re.M)
C_TEST = re.compile(r"^[A-Z]*_?TEST(?:_EACH)?\(\s*(\w+)", re.M)
NUMBER = re.compile(r"(?<![A-Za-z0-9])R(\d{2,3})(?![0-9A-Za-z])")


def proofs():
    """{number: ["tests/…/test_x.py: test_name", …]}"""
    found = {}

    def add(number, path, name):
        text = f"`{name}` ({path.relative_to(ROOT / 'tests')})"
        found.setdefault(int(number), [])
        if text not in found[int(number)]:
            found[int(number)].append(text)

    for path in sorted((ROOT / "tests").rglob("test_*.*")):
        if path.suffix == ".py":
            for name in PY_TEST.findall(path.read_text()):
                for number in re.findall(r"_R(\d+)", name):
                    add(number, path, name)
        elif path.suffix == ".c":
            source = path.read_text()
            for match in C_TEST.finditer(source):
                start, name = match.start(), match.group(1)
                # A comment right above a test belongs to it; it ends at the brace that stands alone.
                above = re.search(r"/\*(?:(?!\*/).)*\*/\s*$", source[:start], re.S)
                text = (above.group(0) if above else "") + source[start:source.index("\n}", start)]
                for number in re.findall(r"_R(\d+)", name) + NUMBER.findall(text):
                    add(number, path, name)
    return found


def main():
    found = proofs()
    rows, lines = set(), []
    for line in PAGE.read_text().splitlines():
        match = re.match(r"\| R(\d+) \|", line)
        if match:
            number = int(match.group(1))
            rows.add(number)
            cells = re.split(r"(?<!\\)\|", line)
            tests = found.get(number, [])
            shown = ", ".join(tests[:4]) + (f" and {len(tests) - 4} more" if len(tests) > 4 else "")
            cells[4] = f" {shown or 'none yet'} "
            line = "|".join(cells)
        lines.append(line)
    text = "\n".join(lines) + "\n"

    unknown = sorted(set(found) - rows)
    for number in unknown:
        print(f"doc/faults.md has no row R{number:02d}, which these name: {', '.join(found[number])}")
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text)
    elif text != PAGE.read_text():
        print("doc/faults.md is not current: run script/lib/faults.py")
        return 1
    return 1 if unknown else 0


sys.exit(main())
