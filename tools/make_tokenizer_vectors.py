#!/usr/bin/env python3
"""Writes tests/data/tokenizer/vectors.json with the tiktoken library (PyPI) as the independent reference.

Run in a venv: pip install tiktoken; tools/make_tokenizer_vectors.py. Only characters assigned in Unicode 14 are used,
so that the answer does not depend on the Unicode version of the library.
"""
import base64
import json
import random
from itertools import groupby
from pathlib import Path

import tiktoken

ROOT = Path(__file__).resolve().parent.parent
UPPER, LOWER = (rf"[{a}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for a in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
FIRST, CONTRACTION = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([  # model.md 5.2
    r"[\p{Han}]+", f"{FIRST}{UPPER}*{LOWER}+{CONTRACTION}", f"{FIRST}{UPPER}+{LOWER}*{CONTRACTION}", r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

TEXTS = [
    "", " ", "\n", "\r\n\r\n", "a", " a", "  a", "a ", "a  ", "a \n b", " \n \n  x", "\t\tx", "x\t\n\t y", "\u00a0\u2003x\u3000y",
    "a\x1cb\x1d \x1e\x1f", "a\u180eb", "a\u0085b\u2028c", "\ufeffBOM", "a\u200bb", "\x00\x01 \x7f",
    "don't DON'T Don'T I'm we've they'll he'd you're it's", "'s 't x''s 'll'll", "don\u2019t", "a'\u017f b'\u017fs", "l'l l'L L'lL",
    "1 12 123 1234 12345678", "3.14159e-10", "\u00bd\u2167\u0663\u0664\u0665\u0666", "\u4e00\u4e8c3\u4e09", "\u3007\u3021\u3005\u303b", "1\u30072",
    "HTTPServer getHTTPResponseCode aB Ab aBcD ABCdef", "\u01c5ungla \u01c4\u01c5\u01c6", "\u00c9COLE \u00e9cole e\u0301cole \u0301x \u0301AB",
    "\u02b0a\u02b0A", "\u3042A\u3044B\u3046", "A\u3042", "\u4f60\u597dworld\u4e16\u754cHello", "\u3001\u4f60\u3002\u597d\uff0c\u300c\u9f8d\u300d", "\u2e80\u2f00x!\u2e80",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4.", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0441\u044a\u0435\u0448\u044c \u0435\u0449\u0451 \u042d\u0422\u0418\u0425",
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\U0001f642\U0001f44d\U0001f3fd\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7", "\U00020000\U0002a6d6\u2ff0",
    "\U00016ff0\U00016fe2\U00016fe3", "\U0001d400\U0001d41b", "\U00010400\U00010428", "\u2603\ufe0f !!!???", " !x ?y", "  !x", "!\n\n!\r\n", "a!\n b", "/* x */ // y\n#include <z>\n",
    "def f(x):\n\treturn {'k': x**2}  # 100%\n\n\nclass A(B): pass\n", "if (a && b || c) { d->e::f(); }", "\\u0041 \\n \"q\" 'q' `q`",
    "{\"a\":[1,2.5,null,true],\"b\":\"\u4e2d\u6587\"}", "<|open|>message<|sep|>[BOS][EOS]<|reserved_token_163600|>", "https://example.org/a?b=c&d=%20#e",
    "x" * 600, "ab" * 300, " " * 300 + "x", "\n" * 200, "!" * 300, "\u6f22\u5b57" * 200, "0" * 100, "aA" * 300, "\u3042B" * 200, "\u4e2d\u6587abc " * 40,
]
LONG = [  # (text, count) parts: the cuts at 25,000 characters of a kind and 400,000 of any
    [["a", 24999]], [["a", 25000]], [["a", 25001]], [["x ", 1], ["a", 25001], [" y", 1]], [[" ", 24999]], [[" ", 25000]], [[" ", 25001]],
    [[" ", 25000], ["b", 1]], [[" ", 24990], ["\x1c", 20], ["b", 1]], [["a", 24990], ["\x1c", 25010], ["b", 1]], [["\u6f22", 25001]],
    [["\n", 50001]], [["\U0001f600", 25001]], [["ab c ", 80000], ["ab c", 1]], [["abcd ", 79999], ["abcdefgh", 1]],
]
SPECIAL_TEXTS = [
    "<|open|>message<|sep|>hi<|close|>message<|sep|><|end_of_msg|>", "[BOS]a[EOS]", "<|open|", "<<|open|>>", "a <|sep|> b",
    "<|reserved_token_163600|>x<|reserved_token_163587|>", "[PAD][UNK][EOT]", "<|media_begin|>image 640x480<|media_content|><|media_pad|><|media_end|>",
]


def load(folder):
    ranks = {}
    for line in (folder / "tiktoken.model").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    named = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    specials = {named.get(str(i), {"content": f"<|reserved_token_{i}|>"})["content"]: i for i in range(len(ranks), len(ranks) + 256)}
    return tiktoken.Encoding(folder.name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=specials)


def chunks(text):
    for begin in range(0, len(text), 400_000):
        part, start, run, kind = text[begin:begin + 400_000], 0, 0, None
        for i, c in enumerate(part):
            run, kind = (run + 1, kind) if c.isspace() == kind else (1, c.isspace())
            if run > 25_000:
                yield part[start:i]
                start, run = i, 1
        yield part[start:]


def encode(encoding, text):
    return [i for chunk in chunks(text) for i in encoding.encode_ordinary(chunk)]


def random_texts(count):
    rng = random.Random(5)
    alphabet = list("'sSdDlLreAZaz09 \n\r\t!.-_") + ["\u017f", "\u0301", "\u3042", "\u6f22", "\u3005", "\u2e80", "\u00e9", "\u01c5", "\u2028", "\u0664", "\U0001f600"]
    return ["".join(rng.choices(alphabet, k=rng.randint(2, 24))) for _ in range(count)]


def main():
    folders = {"released": ROOT / "tests/data/tokenizer", "mini": ROOT / "models/k3-mini"}
    encodings = {name: load(folder) for name, folder in folders.items()}
    texts = [{"text": t, **{n: encode(e, t) for n, e in encodings.items()}} for t in TEXTS + random_texts(150)]
    runs = []
    for parts in LONG:
        ids = encode(encodings["released"], "".join(t * n for t, n in parts))
        # [[cycle of ids, times], ...] keeps repeated ids short
        packed, i = [], 0
        while i < len(ids):
            best = (1, 1)
            for width in (1, 2, 3):
                times = 1
                while ids[i + width * times:i + width * times + width] == ids[i:i + width]:
                    times += 1
                if times > 1 and width * times > best[0] * best[1]:
                    best = (width, times)
            packed.append([ids[i:i + best[0]], best[1]])
            i += best[0] * best[1]
        runs.append({"parts": parts, "released": packed})
    specials = [{"text": t, "released": encodings["released"].encode(t, allowed_special="all")} for t in SPECIAL_TEXTS]
    lines = [f' "{key}": [\n' + ",\n".join("  " + json.dumps(row) for row in rows) + "\n ]"
             for key, rows in (("texts", texts), ("long", runs), ("specials", specials))]
    note = f' "note": "Made by tools/make_tokenizer_vectors.py with tiktoken {tiktoken.__version__}."'
    (ROOT / "tests/data/tokenizer/vectors.json").write_text("{\n" + ",\n".join([note] + lines) + "\n}\n")


if __name__ == "__main__":
    main()
