#!/usr/bin/python3
"""tally.py FILE...: add up test results; says what failed and why, prints "N passed, N failed[, N skipped]" and exits 1 unless all is well.

FILE is meson's testlog.json (what the programs' summaries count, of Check, unittest or TAP, counts one by one) or a JUnit XML file of pytest.
A file that is absent stands for a part that could not run, and counts as one failure.
"""
import json
import re
import sys
import xml.etree.ElementTree as ElementTree

CHECK_LINE = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)", re.M)
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED)(.*)", re.M)
CHECK_BAD = re.compile(r"^.*:\d+:[FE]:.*$", re.M)
TAP = re.compile(r"^# pass (\d+)\n# fail (\d+)\n(?:# cancelled (\d+)\n)?# skipped (\d+)", re.M)


def other_summary(stdout, stderr):
    """(passed, failed, skipped) as unittest or node --test says, else None."""
    if found := TAP.search(stdout):
        good, bad, cancelled, skips = (int(group or 0) for group in found.groups())
        return good, bad + cancelled, skips
    if found := UNITTEST.search(stderr):
        ran, words = int(found[1]), dict(re.findall(r"(\w+)=(\d+)", found[2]))
        bad, skips = int(words.get("failures", 0)) + int(words.get("errors", 0)), int(words.get("skipped", 0))
        return ran - bad - skips, bad, skips
    return None


def meson_log(path):
    passed = failed = skipped = 0
    with open(path) as log:
        for line in filter(str.strip, log):
            test = json.loads(line)
            result = test["result"]
            if result == "SKIP":
                skipped += 1
                continue
            counts = CHECK_LINE.findall(test.get("stdout") or "")
            good = bad = 0
            for checks, failures, errors in counts:
                bad += int(failures) + int(errors)
                good += int(checks) - int(failures) - int(errors)
            if not counts and (summary := other_summary(test.get("stdout") or "", test.get("stderr") or "")):
                good, bad = summary[:2]
                skipped += summary[2]
            if result not in ("OK", "EXPECTEDFAIL") and bad == 0:
                bad = 1  # it died, or a sanitizer spoke after the last check
            if result in ("OK", "EXPECTEDFAIL") and good + bad == 0:
                good = 1  # not a Check program
            if bad:
                print(f"failed: {test['name']} ({result.lower()})")
                for line in CHECK_BAD.findall(test.get("stdout") or ""):
                    print(f"    {line}")
            passed, failed = passed + good, failed + bad
    return passed, failed, skipped


def junit(path):
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed += 1
            print(f"failed: {case.get('classname')}::{case.get('name')}")
            for child in case:
                if child.tag in ("failure", "error"):
                    print(f"    {child.get('message', '').splitlines()[0][:300] if child.get('message') else child.tag}")
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main():
    total = [0, 0, 0]
    for path in sys.argv[1:]:
        try:
            counts = junit(path) if path.endswith(".xml") else meson_log(path)
        except FileNotFoundError:
            print(f"failed: no results in {path}")
            counts = (0, 1, 0)
        except (ValueError, KeyError, ElementTree.ParseError) as error:
            print(f"failed: results in {path} cannot be read: {error}")
            counts = (0, 1, 0)
        total = [sum(pair) for pair in zip(total, counts)]

    passed, failed, skipped = total
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not passed else 0


sys.exit(main())
