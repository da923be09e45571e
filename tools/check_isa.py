#!/usr/bin/env python3
"""Checks that objects built with AVX2, AVX-512 or AMX flags export no weak symbol that other objects could pick up.

The linker keeps one copy of an inline function or template that several objects hold. Were that the copy of an
AVX-512 object, an older processor would fault in code that has nothing to do with AVX-512. Weak symbols are fine when
their name holds the vector type, since then no other object has them. usage: check_isa.py BUILD_DIR
"""
import pathlib
import re
import subprocess
import sys

OWN = re.compile(r"512|256|DW\.ref\.__gxx_personality")


def main():
    build = pathlib.Path(sys.argv[1])
    objects = [p for p in build.rglob("*.o") if re.search(r"_cpu_(avx2|avx512|avx512bf16|amx)\.cc\.o$", p.name)]
    bad = []
    for path in objects:
        out = subprocess.run(["nm", "-C", "--defined-only", str(path)], capture_output=True, text=True, check=True).stdout
        for line in out.splitlines():
            parts = line.split(maxsplit=2)
            if len(parts) == 3 and parts[1] in "WVu" and not OWN.search(parts[2]):
                bad.append(f"{path.name}: {parts[2]}")
    for line in bad:
        print(line)
    print(f"check_isa: {len(objects)} objects, {len(bad)} weak symbols that could leak")
    # Without optimisation nothing is inlined and everything is weak: such builds never run elsewhere.
    return 1 if bad or not objects else 0


sys.exit(main())
