#!/usr/bin/env python3
"""Asks the demo's model its question and looks at what it writes: 1,000 greedy tokens, at least 90 % of whose words occur in the texts it learned from.
usage: check_demo.py K3 MODEL DATA"""
import json, pathlib, re, subprocess, sys

QUESTIONS = ["What is your name?", "Tell me a story about a cat."]
OPENINGS = ["Once upon a time", "One day a little", "There was a", "The", "Anna", "A small", "In the morning", "My"]
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")


def words(text):
    return WORD.findall(text.lower())


def unpacked(path):
    return subprocess.run(["zstd", "-dc", path], check=True, capture_output=True).stdout.decode()


def ask(k3, model, prompt, *options):
    out = subprocess.run([k3, "run", model, "-p", prompt, "--temperature", "0", "--json", *options], check=True, capture_output=True)
    return json.loads(out.stdout)


def main():
    k3, model, data = sys.argv[1:4]
    known = {w for f in pathlib.Path(data).glob("*.zst") for w in words(unpacked(f))}
    failed = False
    for question in QUESTIONS:
        answer = ask(k3, model, question, "-n", "200")
        closed = answer.get("finish_reason") == "stop"
        failed |= not closed or not words(answer["text"])
        print(f"{question}\n  {answer['text'].strip()}{'' if closed else ' [not closed]'}")
    tokens, seen = 0, []
    for opening in OPENINGS * 4:
        if tokens >= 1000:
            break
        written = ask(k3, model, opening, "--raw", "-n", str(min(200, 1000 - tokens)))
        tokens += written["completion_tokens"]
        seen += words(written["text"])
    share = sum(w in known for w in seen) / max(1, len(seen))
    print(f"{tokens} greedy tokens, {len(seen)} words, {100 * share:.1f} % of them known")
    sys.exit(1 if failed or tokens < 1000 or share < 0.9 else 0)


main()
