#!/usr/bin/env python3
"""Records what a model generates, as token ids, for the tests of the answer formats.

    record_streams.py K3 MODEL OUT [COUNT]

One JSON line a stream: {"open": "think" or "response", "finish": "stop" or "length", "ids": [...]}.
"""
import json
import subprocess
import sys

PROMPTS = ["What is the capital of France?", "Say hello.", "Count to ten.", "Write a line about the sea.", "你好", "2+2?",
           "Name three colours.", "Tell me a story.", "Wer bist du?", "Print a JSON object.", "😀", "List two fruits.",
           "What is a tide?"]


def record(program, model, index):
    thinking = index % 3 != 0
    command = [program, "run", model, "-p", PROMPTS[index % len(PROMPTS)], "--json", "--seed", str(index), "-n",
               str(12 + index % 29), "--temperature", ["1", "0", "1.6"][index % 3], "--top-p", "1",
               "--think", "on" if thinking else "off", "-t", "1"]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    finish = "length" if answer["finish_reason"] == "length" else "stop"
    return {"open": "think" if thinking else "response", "finish": finish, "ids": answer["ids"]}


def main():
    program, model, out = sys.argv[1:4]
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 250
    with open(out, "w", encoding="utf-8") as file:
        for index in range(count):
            file.write(json.dumps(record(program, model, index), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
