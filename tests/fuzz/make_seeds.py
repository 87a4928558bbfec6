#!/usr/bin/python3
"""make_seeds.py DIR: seeds that are no text.  A pattern, a NUL, and a zone file (TZif 2, RFC 8536) with summer time by rule and by table."""
import pathlib
import struct
import sys

NAMES = b"CET\0CEST\0"
TYPES = struct.pack(">iBBiBB", 3600, 0, 0, 7200, 1, 4)
CHANGES = [1711846800, 1729990800, 1743296400, 1761440400]  # of 2024 and 2025


def zone(changes, rule):
    def block(width):
        times = b"".join(struct.pack(f">{width}", at) for at in changes)
        kinds = bytes((i + 1) % 2 for i in range(len(changes)))
        return b"TZif2" + bytes(15) + struct.pack(">6I", 0, 0, 0, len(changes), 2, len(NAMES)) + times + kinds + TYPES + NAMES
    return block("i") + block("q") + b"\n" + rule + b"\n"


out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
(out / "zone").write_bytes(b"* * * * *\0" + zone(CHANGES, b"CET-1CEST,M3.5.0,M10.5.0/3"))
(out / "plain").write_bytes(b"30 2 * * *\0" + zone([], b"<+0530>-5:30"))
(out / "cut").write_bytes(b"0 0 * * 0\0" + zone(CHANGES, b"")[:150])
