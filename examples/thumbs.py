#!/usr/bin/env python3
"""Thumbnails of PNG pictures, by hand: as a warm worker of a pool, or as a program that makes one.

    thumbs.py                       the worker: a job's data is {"path": ..., "to": ..., "width": 120}
    thumbs.py PATH TO [WIDTH]       the program

Reads PNG with 8 bits a channel (grey, grey and alpha, RGB, RGBA; not interlaced), averages boxes of pixels, writes PNG beside its
target and renames it.  Standard library only; real services take an image library, and import it before run().
"""
import os
import struct
import sys
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by colour type


class NotAPicture(Exception):
    """What it was, in words."""


def chunks(data):
    if data[:8] != SIGNATURE:
        raise NotAPicture("not a PNG file")
    at = 8
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        yield kind, data[at + 8:at + 8 + length]
        at += length + 12


def unfilter(kind, line, above, step):
    """One row of bytes, in place, as RFC 2083 has it."""
    if kind == 1:
        for i in range(step, len(line)):
            line[i] = (line[i] + line[i - step]) & 255
    elif kind == 2:
        for i, up in enumerate(above):
            line[i] = (line[i] + up) & 255
    elif kind == 3:
        for i, up in enumerate(above):
            line[i] = (line[i] + ((line[i - step] if i >= step else 0) + up >> 1)) & 255
    elif kind == 4:
        for i, up in enumerate(above):
            left, corner = (line[i - step], above[i - step]) if i >= step else (0, 0)
            guess = left + up - corner
            a, b, c = abs(guess - left), abs(guess - up), abs(guess - corner)
            line[i] = (line[i] + (left if a <= b and a <= c else up if b <= c else corner)) & 255


def read_png(path):
    """(width, channels, colour type, rows of bytes)."""
    with open(path, "rb") as file:
        data = file.read()
    header, packed = None, bytearray()
    for kind, body in chunks(data):
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            packed += body
    if header is None or header[2] != 8 or header[3] not in CHANNELS or header[6] != 0:
        raise NotAPicture("expected a PNG with 8 bits a channel, no palette, not interlaced")
    width, height, colour = header[0], header[1], header[3]
    step, rows, raw = CHANNELS[colour], [], zlib.decompress(bytes(packed))
    above = bytearray(width * step)
    for y in range(height):
        at = y * (width * step + 1)
        line = bytearray(raw[at + 1:at + 1 + width * step])
        unfilter(raw[at], line, above, step)
        rows.append(line)
        above = line
    return width, step, colour, rows


def scale(width, step, rows, new_width):
    """Boxes of pixels become their average."""
    new_height = max(1, len(rows) * new_width // width)
    out = []
    for y in range(new_height):
        box = rows[y * len(rows) // new_height:max((y + 1) * len(rows) // new_height, y * len(rows) // new_height + 1)]
        sums = [sum(column) for column in zip(*box)]
        line = bytearray()
        for x in range(new_width):
            left, right = x * width // new_width, max((x + 1) * width // new_width, x * width // new_width + 1)
            for channel in range(step):
                part = sums[left * step + channel:right * step:step]
                line.append(sum(part) // (len(part) * len(box)))
        out.append(line)
    return out


def write_png(path, colour, rows, step):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", len(rows[0]) // step, len(rows), 8, colour, 0, 0, 0)
    part = f"{path}.{os.getpid()}.part"
    with open(part, "wb") as file:
        file.write(SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))) +
                   chunk(b"IEND", b""))
    os.rename(part, path)


def thumbnail(path, to, width=120):
    old_width, step, colour, rows = read_png(path)
    small = scale(old_width, step, rows, min(width, old_width))
    write_png(to, colour, small, step)
    return {"width": min(width, old_width), "height": len(small)}


def handle(ctx):
    try:
        return thumbnail(ctx.data["path"], ctx.data["to"], ctx.data.get("width", 120))
    except NotAPicture as error:
        raise mandor_worker.NoRetry(f"{ctx.data['path']}: {error}") from None


if __name__ == "__main__":
    if len(sys.argv) > 1:
        try:
            print(thumbnail(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:4])))
        except NotAPicture as error:
            sys.exit(f"{sys.argv[1]}: {error}")
    else:
        import mandor_worker

        mandor_worker.run(handle)
