#!/usr/bin/env python3
"""Asks a model the questions of a file and prints them with its answers as a Markdown table: ask_chat20.py K3 MODEL [QUESTIONS]

QUESTIONS (default: tests/data/chat20.txt) has conversations apart by blank lines, a line for each message of the user. Greedy, one process
of `k3 chat` a conversation; whole answers, unpicked. Further arguments after -- go to k3 chat: -- --device cuda.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

MOST_TOKENS = 200


def conversations(text):
    """Lists of the user's messages."""
    blocks = re.split(r"\n\s*\n", text.replace("\r\n", "\n"))
    found = [[line.strip() for line in block.splitlines() if line.strip() and not line.startswith("#")] for block in blocks]
    return [turns for turns in found if turns]


def ask(program, model, turns, options):
    """The answers, and how each turn ended ("" by itself)."""
    with tempfile.TemporaryDirectory() as folder:
        saved = pathlib.Path(folder, "chat.json")
        lines = "\n".join([*turns, f"/save {saved}", "/quit"]) + "\n"
        command = [program, "chat", model, "--temperature", "0", "-n", str(MOST_TOKENS), *options]
        done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
        messages = json.loads(saved.read_text(encoding="utf-8"))["messages"]
    ends = re.findall(r"context \d+ used(?:; ([^\]]*))?\]", done.stderr)
    answers = [m["content"] for m in messages if m["role"] == "assistant"]
    if len(answers) != len(turns) or len(ends) != len(turns):
        sys.exit(f"{len(turns)} messages, {len(answers)} answers:\n{done.stderr}")
    return answers, ends


def cell(text):
    return re.sub(r"\s*\n\s*", "<br>", text.strip()).replace("|", "\\|")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    given = sys.argv[1:]
    own, options = (given[:given.index("--")], given[given.index("--") + 1:]) if "--" in given else (given, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("k3")
    parser.add_argument("model")
    parser.add_argument("questions", nargs="?", default=root / "tests/data/chat20.txt", type=pathlib.Path)
    args = parser.parse_args(own)
    print("| | question | answer |\n|---|---|---|")
    for number, turns in enumerate(conversations(args.questions.read_text(encoding="utf-8")), 1):
        for turn, (question, answer, end) in enumerate(zip(turns, *ask(args.k3, args.model, turns, options))):
            print(f"| {number if turn == 0 else ''} | {cell(question)} | {cell(answer) or '(nothing)'}{f' *({end})*' if end else ''} |", flush=True)


if __name__ == "__main__":
    main()
