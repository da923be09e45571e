#!/usr/bin/env python3
"""Random texts under our masks, given to llguidance as an independent reader of the same schemas.

    compare_llguidance.py K3_GRAMMAR_WALK REPOSITORY [SEEDS]

Needs `pip install llguidance`; not part of the test suite. Texts whose strings use escapes that llguidance does not read (\\/ and
\\u of characters that need none) are counted apart.
"""
import glob
import json
import os
import re
import subprocess
import sys

from llguidance import LLMatcher, LLTokenizer


def main():
    walk, root = sys.argv[1:3]
    seeds = sys.argv[3] if len(sys.argv) > 3 else "12"
    names = sorted(glob.glob(os.path.join(root, "tests", "data", "schemas", "*.json")))
    output = subprocess.run([walk, os.path.join(root, "tests", "data", "tokenizer"), seeds, *names], capture_output=True, check=True)
    tokenizer = LLTokenizer("byte")
    grammars, refused, agreed, escapes, differ = {}, set(), 0, 0, []
    for line in output.stdout.decode("utf-8").splitlines():
        record = json.loads(line)
        if not record.get("complete"):
            continue
        name, text = record["schema"], record["text"]
        if name not in grammars:
            with open(os.path.join(root, "tests", "data", "schemas", name + ".json"), encoding="utf-8") as file:
                grammars[name] = LLMatcher.grammar_from_json_schema(json.load(file), overrides={"whitespace_flexible": True})
            if LLMatcher.validate_grammar(grammars[name], tokenizer):
                refused.add(name)
        if name in refused:
            continue
        matcher = LLMatcher(tokenizer, grammars[name])
        ids = tokenizer.tokenize_bytes(text.encode())
        if matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting():
            agreed += 1
        elif re.search(r"\\[/u]", text):
            escapes += 1
        else:
            differ.append(f"{name}: {text[:200]}")
    print(f"{agreed} agree, {escapes} with escapes, {len(differ)} differ, schemas it refuses: {sorted(refused)}")
    print("\n".join(differ))


if __name__ == "__main__":
    main()
