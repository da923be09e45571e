#!/usr/bin/env python3
"""Makes data/demo: what `make train-demo` learns from. The result is in the repository; this shows how it came about.

    make_demo_data.py STORYBOOKS.txt[.zst] [OUT]

STORYBOOKS holds openly licensed (CC BY) children's stories, one after another, each closed by a line <|endoftext|>; the plainest
of them are taken. Everything else is put together from parts written for this project (demo_stories.py, demo_talk.py). The same
input gives the same files. Needs the zstd program.
"""
import collections
import json
import os
import random
import re
import subprocess
import sys

from demo_stories import story
from demo_talk import conversations

END = "<|endoftext|>"
OWN_STORIES, CONVERSATIONS = 2000, 4000
COMMON_WORDS = 1500     # words that count as plain, most frequent first
MOST_RARE = 0.12        # of a story's words that may be others
LENGTHS = range(200, 3500)
PLAIN = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u2013": "-", "\u2014": "-"})
NOTES = re.compile(r"author'?s note|translat|illustrat|http|glossary|_{3,}|-{3,}|copyright|\*", re.I)


def words_of(text):
    return [w.lower() for w in re.findall(r"[A-Za-z']+", text)]


def plain_stories(path):
    raw = subprocess.run(["zstd", "-dcf", path], check=True, capture_output=True).stdout.decode("utf-8")
    texts = [re.sub(r"\s*\n\s*", "\n", d.strip().translate(PLAIN)) for d in raw.split(END)]
    counts = collections.Counter(w for t in texts for w in words_of(t))
    common = {w for w, _ in counts.most_common(COMMON_WORDS)}
    chosen, bodies = {}, set()
    for text in texts:
        words = words_of(text)
        if len(text) not in LENGTHS or "\n" not in text or not text.isascii() or NOTES.search(text):
            continue
        title, body = text.split("\n", 1)
        if sum(w not in common for w in words) > MOST_RARE * len(words) or body[:120] in bodies:
            continue  # not plain, or another edition of one that is there
        bodies.add(body[:120])
        chosen.setdefault(title, text)
    return [chosen[title] for title in sorted(chosen)]


def own_stories():
    rng = random.Random(1)
    seen = {}
    while len(seen) < OWN_STORIES:
        title, text = story(rng)
        seen.setdefault(text, f"{title}\n{text}")
    return list(seen.values())


def talk():
    lines = []
    for turns in conversations(random.Random(2), CONVERSATIONS):
        messages = []
        for question, answer in turns:
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        lines.append(json.dumps({"messages": messages}))
    return sorted(set(lines))


def write(folder, name, text):
    path = os.path.join(folder, name)
    subprocess.run(["zstd", "-19", "-q", "-f", "-o", path], input=text.encode(), check=True)
    print(f"{path}: {len(text)} bytes, {os.path.getsize(path)} packed")
    return len(text)


def main():
    out = sys.argv[2] if len(sys.argv) > 2 else os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "demo")
    os.makedirs(out, exist_ok=True)
    books = plain_stories(sys.argv[1])
    total = write(out, "storybooks.txt.zst", "".join(f"{t}\n{END}\n" for t in books))
    total += write(out, "little-stories.txt.zst", "".join(f"{t}\n{END}\n" for t in own_stories()))
    total += write(out, "talk.jsonl.zst", "".join(line + "\n" for line in talk()))
    with open(os.path.join(out, "storybooks-titles.txt"), "w", encoding="utf-8") as file:
        file.write("".join(t.split("\n")[0] + "\n" for t in books))
    print(f"{len(books)} storybooks, {total} bytes in all")


if __name__ == "__main__":
    main()
