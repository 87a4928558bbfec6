#!/usr/bin/env python3
"""embed.py OUT.c OUT.h FILE.lua...: the scripts as C text.

A line `--@include NAME.lua` is replaced by that file of the same directory.  `streams_add.lua` becomes `lua_streams_add`, a struct
redis_script.  Files whose name begins with '_' are only included.  Comments and indentation stay out of what is sent to servers.
"""
import pathlib
import re
import sys


def read(path):
    lines = []
    for line in path.read_text().splitlines():
        include = re.match(r"--@include (\S+)$", line)
        if include:
            lines += read(path.parent / include.group(1))
        elif line.strip() and not line.strip().startswith("--"):
            lines.append(line.strip())
    return lines


def quoted(line):
    return '    "%s\\n"' % line.replace("\\", "\\\\").replace('"', '\\"')


def main():
    out_c, out_h, *files = sys.argv[1:]
    scripts = [pathlib.Path(f) for f in files if not pathlib.Path(f).name.startswith("_")]
    names = [s.stem for s in scripts]
    header = ["/* made by embed.py */", "#ifndef BROKER_LUA_SCRIPTS_H", "#define BROKER_LUA_SCRIPTS_H", "",
              '#include "redis/redis.h"', "", "extern struct redis_script %s;" % ", ".join("lua_" + n for n in names),
              "", "#endif"]
    code = ["/* made by embed.py */", '#include "broker/lua_scripts.h"', ""]
    for script in scripts:
        text = "\n".join(quoted(line) for line in read(script))
        code += ["struct redis_script lua_%s = { .name = \"%s\", .text =" % (script.stem, script.stem), text + "};", ""]
    pathlib.Path(out_c).write_text("\n".join(code) + "\n")
    pathlib.Path(out_h).write_text("\n".join(header) + "\n")


main()
