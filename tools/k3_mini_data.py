#!/usr/bin/env python3
"""Makes the training data of models/k3-mini: splits the corpus's conversations by kind, so that a config can weigh them, and runs `k3 prepare`.

usage: k3_mini_data.py CORPUS OUT [--k3 build/release/k3] [--tokenizer models/k3-mini]

CORPUS has the files that models/k3-mini/README.md lists; OUT gets chat-*.jsonl and the prepared folder OUT/data. Sources of conversations
(field `source` of a line) nobody knows are an error, so that nothing is left out unseen."""
import argparse
import glob
import json
import os
import shutil
import subprocess
import sys

KINDS = {
    'chat-talk': ['own small talk en', 'own small talk zh'],
    'chat-facts': ['wikipedia en', 'wikipedia zh', 'open english wordnet', 'openstax glossaries'],
    'chat-tasks': ['gsm8k', 'python functions', 'open storybooks en', 'open storybooks zh', 'chinese-poetry'],
    'chat-dialogues': ['schema-guided dialogues'],
}


def unpacked(path):
    if not os.path.exists(path):
        sys.exit(f'{path}: no such file; CORPUS is a folder with the texts that models/k3-mini/README.md lists')
    if not shutil.which('zstd'):
        sys.exit('zstd is missing: apt-get install zstd')
    return subprocess.run(['zstd', '-dc', '--long=27', path], check=True, stdout=subprocess.PIPE).stdout.decode('utf-8')


def by_source(path, kinds):
    """The lines of each kind of conversation, by the sources that belong to it."""
    kind_of = {source: kind for kind, sources in kinds.items() for source in sources}
    lines = {kind: [] for kind in kinds}
    for number, line in enumerate(unpacked(path).split('\n'), 1):
        if not line.strip():
            continue
        source = json.loads(line).get('source')
        if source not in kind_of:
            sys.exit(f'{path}:{number}: source {source!r} belongs to no kind: add it in {sys.argv[0]}')
        lines[kind_of[source]].append(line)
    return lines


def write(out, name, text):
    path = os.path.join(out, name)
    with open(path, 'w', encoding='utf-8') as f:
        f.write(text)
    return path


def write_conversations(out, lines):
    return [write(out, kind + '.jsonl', '\n'.join(some) + '\n') for kind, some in lines.items()]


def parser_of(description):
    parser = argparse.ArgumentParser(description=description.split('\n')[0])
    parser.add_argument('corpus')
    parser.add_argument('out')
    parser.add_argument('--k3', default='build/release/k3')
    parser.add_argument('--tokenizer', default='models/k3-mini')
    return parser


def want_program(options):
    if not os.path.exists(options.k3):
        sys.exit(f'{options.k3}: no such program; `make release` builds it, --k3 names another')


def prepare(options, held_out, files):
    """Runs `k3 prepare`; its exit code."""
    valid = [argument for name in held_out for argument in ('--valid', os.path.join(options.corpus, name))]
    return subprocess.run([options.k3, 'prepare', '--force', '--tokenizer', options.tokenizer, '--out', os.path.join(options.out, 'data'),
                           *valid, *files]).returncode


def main():
    options = parser_of(__doc__).parse_args()
    want_program(options)
    os.makedirs(options.out, exist_ok=True)
    chats = write_conversations(options.out, by_source(os.path.join(options.corpus, 'chat-train.jsonl.zst'), KINDS))
    texts = sorted(path for path in glob.glob(os.path.join(options.corpus, '*.txt.zst')) if not os.path.basename(path).startswith('val'))
    sys.exit(prepare(options, ['val.txt.zst'], [*texts, *chats]))


if __name__ == '__main__':
    main()
