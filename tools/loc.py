#!/usr/bin/env python3
"""Lines per layer: code and tests (tests, benches, case tables), without blank lines.

    loc.py [--base REV] [--root ROOT]      with --base also the change since that revision
"""
import argparse
import io
import os
import re
import subprocess
import tarfile

SUFFIXES = (".h", ".cc", ".cu", ".cuh")


def place(path):
    """(layer, kind) of a path, or None."""
    if not path.endswith(SUFFIXES):
        return None
    parts = path.split("/")
    if parts[0] in ("tests", "bench"):
        return "(" + parts[0] + ")", "tests"
    if parts[:2] == ["src", "k3"] and len(parts) > 3:
        return parts[2], "tests" if re.search(r"_(test|bench|cases|fuzz)\.\w+$", path) else "code"
    return None


def count(text):
    return sum(1 for line in text.split(b"\n") if line.strip())


def add(table, path, text):
    where = place(path)
    if where:
        row = table.setdefault(where[0], {"code": 0, "tests": 0, "files": 0})
        row[where[1]] += count(text)
        row["files"] += 1


def count_tree(root):
    table = {}
    for top in ("src", "tests", "bench"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                path = os.path.join(folder, name)
                if place(os.path.relpath(path, root)):
                    with open(path, "rb") as file:
                        add(table, os.path.relpath(path, root), file.read())
    return table


def count_revision(root, revision):
    table = {}
    archive = subprocess.run(["git", "-C", root, "archive", revision], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.isfile() and place(member.name):
                add(table, member.name, tar.extractfile(member).read())
    return table


def layer_order(root):
    with open(os.path.join(root, "tools", "layers.txt"), encoding="utf-8") as file:
        return [m[1] for m in (re.match(r"([a-z]+):", line) for line in file) if m]


def main():
    parser = argparse.ArgumentParser(description="Lines per layer")
    parser.add_argument("--base", metavar="REV", help="also show the change since this revision")
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    args = parser.parse_args()
    now = count_tree(args.root)
    base = count_revision(args.root, args.base) if args.base else None
    order = layer_order(args.root)
    empty = {"code": 0, "tests": 0, "files": 0}
    names = sorted(set(now) | set(base or {}), key=lambda n: (order.index(n) if n in order else len(order), n))
    rows = [(n, now.get(n, empty), (base or {}).get(n, empty)) for n in names]
    total = [{k: sum(r[i][k] for r in rows) for k in empty} for i in (1, 2)]
    print(f"{'layer':<10}{'files':>7}{'code':>9}{'tests':>9}" + (f"{'code +-':>10}{'tests +-':>10}" if base is not None else ""))
    for name, new, old in rows + [("total", total[0], total[1])]:
        line = f"{name:<10}{new['files']:>7}{new['code']:>9}{new['tests']:>9}"
        if base is not None:
            line += f"{new['code'] - old['code']:>+10}{new['tests'] - old['tests']:>+10}"
        print(line)


if __name__ == "__main__":
    main()
