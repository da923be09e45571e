#!/usr/bin/env python3
"""Holds the hits of a sequential replay against the naive prefix rule: check_hits.py TRACE RUN.json

RUN.json comes from `k3 loadgen URL --trace TRACE --sequential --json` with a server that keeps checkpoints at prompt ends
alone (`k3 serve --checkpoints end --no-keep-idle`) and has room for all. The naive rule needs the trace's block ids only:
a full block that came before is known, a checkpoint is kept at the last full block of every prompt, a match leaves one token
to compute, and a hit ends at a block that has a checkpoint.
"""
import argparse
import json
import sys


def naive_hits(records, scale, block_tokens):
    """Of each request in file order: prompt tokens, tokens of known blocks, hit tokens."""
    known, checkpoints, out = set(), set(), []
    for record in records:
        tokens = max(1, int(record["input_length"] * scale + 1e-9))
        ids = record["hash_ids"][:tokens // block_tokens]
        matched = 0
        while matched < len(ids) and ids[matched] in known and (matched + 1) * block_tokens < tokens:
            matched += 1
        hit = matched
        while hit > 0 and ids[hit - 1] not in checkpoints:
            hit -= 1
        out.append((tokens, matched * block_tokens, hit * block_tokens))
        known.update(ids)
        checkpoints.update(ids[-1:])
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("run", help="what k3 loadgen --json printed")
    parser.add_argument("--scale", type=float, default=0.25, help="default %(default)s")
    parser.add_argument("--block-tokens", type=int, default=128, help="after scaling; default %(default)s")
    args = parser.parse_args()
    with open(args.trace, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    with open(args.run, encoding="utf-8") as file:
        requests = json.load(file)["requests"]
    if len(records) != len(requests):
        sys.exit(f"{len(records)} records in the trace, {len(requests)} requests in the run")
    expected = naive_hits(records, args.scale, args.block_tokens)
    wrong = [(i, want, got) for i, (want, got) in enumerate(zip(expected, requests))
             if (want[0], want[2]) != (got["prompt_tokens"], got["cached_tokens"])]
    for i, want, got in wrong[:10]:
        print(f"request {i}: prompt {want[0]}, naive hit {want[2]} (blocks known up to {want[1]}); "
              f"the server: prompt {got['prompt_tokens']}, hit {got['cached_tokens']}")
    total = [sum(column) for column in zip(*expected)]
    print(f"{len(requests)} requests, {total[0]:,} prompt tokens, naive hits {total[2]:,} ({100 * total[2] / total[0]:.1f} %), "
          f"the server's {sum(r['cached_tokens'] for r in requests):,}; {len(wrong)} requests differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
