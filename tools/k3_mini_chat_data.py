#!/usr/bin/env python3
"""Makes the data of models/k3-mini's further chat phase (configs/k3-mini-chat.json) and runs `k3 prepare`.

usage: k3_mini_chat_data.py CORPUS OUT [--k3 build/release/k3] [--tokenizer models/k3-mini] [--files-only]

CORPUS is that of k3_mini_data.py, with chat-test.jsonl.zst besides. OUT gets
  chat-SOURCE.jsonl    the conversations of chat-train by where they come from, so that each can be weighed by itself
  chat-joined.jsonl    two or three of them one after another as one conversation: the user changes the subject
  TEXT.txt             a sample of each text: parts of about 60 kB, cut between paragraphs, chosen by their hash
  data/                the prepared folder, with val and chat-test held out
All of it follows from the corpus alone; the same corpus gives the same bytes."""
import hashlib
import json
import os
import random
import re
import sys

from k3_mini_data import by_source, parser_of, prepare, unpacked, want_program, write, write_conversations

# Sources of conversations by the name they get here.
FINER = {
    'chat-talk': ['own small talk en', 'own small talk zh'],
    'chat-glossary': ['openstax glossaries'],
    'chat-words': ['open english wordnet'],
    'chat-wiki': ['wikipedia en', 'wikipedia zh'],
    'chat-sums': ['gsm8k'],
    'chat-python': ['python functions'],
    'chat-stories': ['open storybooks en', 'open storybooks zh'],
    'chat-poems': ['chinese-poetry'],
    'chat-dialogues': ['schema-guided dialogues'],
}
# Joined conversations: how often each kind is drawn, how many are made, and their most characters, so that they fit 1,024 tokens.
JOINED = {'chat-talk': 5, 'chat-glossary': 2, 'chat-words': 2, 'chat-sums': 1.5, 'chat-python': 1.5, 'chat-stories': 3, 'chat-poems': 0.5}
JOINED_COUNT, JOINED_CHARACTERS = 4000, 2800

# Bytes of each text, 30 MB in all: as the first training mixed them, so that equal weights are its mixture.
SAMPLE = {
    'en-books-0': 5_200_000, 'en-books-1': 5_200_000, 'en-books-2': 5_200_000, 'en-stories': 1_300_000, 'en-textbooks': 3_600_000,
    'en-wiki': 3_000_000, 'zh-wiki': 2_700_000, 'zh-literature': 2_600_000, 'code': 1_200_000,
}
PART_BYTES = 60_000


def joined(lines):
    """Conversations that follow one another, each drawn by its kind's weight; the same for the same lines."""
    draw = random.Random(0)
    messages = {name: [json.loads(line)['messages'] for line in lines[name]] for name in JOINED}
    out = []
    while len(out) < JOINED_COUNT:
        chosen = []
        for name in draw.choices(list(JOINED), weights=list(JOINED.values()), k=draw.choice((2, 2, 3))):
            chosen += draw.choice(messages[name])
        if sum(len(m['content'].encode()) for m in chosen) <= JOINED_CHARACTERS:
            out.append(json.dumps({'source': 'joined', 'messages': chosen}, ensure_ascii=False))
    return out


def parts(document):
    """Of about PART_BYTES, cut at empty lines."""
    out, size = [], 0
    for paragraph in re.split(r'\n\n+', document):
        if not out or size > PART_BYTES:
            out.append([])
            size = 0
        out[-1].append(paragraph)
        size += len(paragraph.encode()) + 2
    return ['\n\n'.join(part) for part in out]


def sample(text, most_bytes):
    """Parts in the order of their hashes, until there are so many bytes; then in the order of the text."""
    found = [part for document in text.split('\n<|endoftext|>') for part in parts(document.strip()) if part]
    order = sorted(range(len(found)), key=lambda i: hashlib.sha256(found[i].encode()).digest())
    chosen, size = [], 0
    for i in order:
        if size + len(found[i].encode()) <= most_bytes:
            chosen.append(i)
            size += len(found[i].encode())
    return ''.join(found[i] + '\n<|endoftext|>\n' for i in sorted(chosen))


def main():
    parser = parser_of(__doc__)
    parser.add_argument('--files-only', action='store_true', help='do not run k3 prepare')
    options = parser.parse_args()
    if not options.files_only:
        want_program(options)
    os.makedirs(options.out, exist_ok=True)
    lines = by_source(os.path.join(options.corpus, 'chat-train.jsonl.zst'), FINER)
    lines['chat-joined'] = joined(lines)
    files = write_conversations(options.out, lines)
    for name, most_bytes in SAMPLE.items():
        files.append(write(options.out, name + '.txt', sample(unpacked(os.path.join(options.corpus, name + '.txt.zst')), most_bytes)))
    if not options.files_only:
        sys.exit(prepare(options, ['val.txt.zst', 'chat-test.jsonl.zst'], files))


if __name__ == '__main__':
    main()
