#!/usr/bin/env python3
"""Random texts under the masks must parse and satisfy their schema, by an independent validator.

    schema_walk_test.py K3_GRAMMAR_WALK REPOSITORY [SEEDS]
"""
import decimal
import glob
import json
import os
import subprocess
import sys

import jsonschema


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"a key twice: {keys}")
    return dict(pairs)


def number(text):
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:  # an exponent beyond what it holds
        return float(text)


def is_open(schema):
    """Keys that the schema does not name may come, and those may repeat."""
    text = json.dumps(schema)
    return any(word in text for word in ('"additionalProperties": true', '"additionalProperties": {', "patternProperties")) or \
        '"payload": {}' in text or '"properties": {"type": ["object", "null"]}' in text


def main():
    walk, root = sys.argv[1:3]
    seeds = sys.argv[3] if len(sys.argv) > 3 else "12"
    folder = os.path.join(root, "tests", "data", "schemas")
    names = sorted(glob.glob(os.path.join(folder, "*.json")))
    schemas = {}
    for name in names:
        with open(name, encoding="utf-8") as file:
            schemas[os.path.basename(name)[:-5]] = json.load(file, parse_float=decimal.Decimal)
    run = subprocess.run([walk, os.path.join(root, "tests", "data", "tokenizer"), seeds, *names], capture_output=True, check=False)
    output = run.stdout.decode("utf-8")
    if run.returncode != 0:
        sys.exit(output[-2000:] + run.stderr.decode("utf-8", "replace")[-2000:])
    checked = cut = 0
    failures = []
    for line in output.splitlines():
        record = json.loads(line)
        if "text" not in record:
            continue
        schema = schemas[record["schema"]]
        if not record["complete"]:
            cut += 1
            continue
        checked += 1
        try:
            text = record["text"]
            hook = None if is_open(json.loads(json.dumps(schema, default=float))) else no_duplicates
            value = json.loads(text, parse_float=number, object_pairs_hook=hook)
            checker = jsonschema.validators.validator_for(schema)
            checker(schema, format_checker=checker.FORMAT_CHECKER).validate(value)
            # Outside strings there is no blank but a single space after ',' and ':'.
            inside = escaped = False
            for at, c in enumerate(text):
                if inside:
                    inside, escaped = escaped or c != '"', c == "\\" and not escaped
                elif c == '"':
                    inside = True
                elif c.isspace() and not (c == " " and text[at - 1] in ",:"):
                    raise ValueError(f"a blank outside strings at {at}")
        except (ValueError, jsonschema.ValidationError) as error:
            failures.append(f"{record['schema']} seed {record['seed']}: {str(error)[:300]}\n  {record['text'][:300]}")
    print(f"{checked} texts satisfy their schema, {cut} were cut")
    if failures:
        sys.exit("\n".join(failures[:10]) + f"\n{len(failures)} failures")
    if cut > checked / 50:
        sys.exit("too many texts do not end")


if __name__ == "__main__":
    main()
