#!/usr/bin/python3
"""embed.py FILE NAME: print C that defines `const unsigned char NAME[]` with the bytes of FILE, and `const size_t NAME_len`."""
import sys

path, name = sys.argv[1:]
with open(path, "rb") as file:
    data = file.read()
rows = (", ".join(map(str, data[at:at + 24])) for at in range(0, len(data), 24))
print(f"#include <stddef.h>\nextern const unsigned char {name}[];\nextern const size_t {name}_len;")
print(f"const unsigned char {name}[] = {{\n    " + ",\n    ".join(rows) + f"\n}};\nconst size_t {name}_len = sizeof {name};")
