#!/usr/bin/env python3
"""How fast one streaming client decodes against `k3 run`: single_stream.py --k3 build/release/k3 --model models/k3-mini

Pairs in alternating order: the same prompt, greedy, as many tokens, the same threads and dtypes of the caches, in one process
each. `k3 run --json` tells its own decode time (from the first sample to the last); the server's is taken at the client, from
the frame of the first token to that of the last. Both must write the same text. Reported: the median of the pairs' ratios.
"""
import argparse
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
from serve_process import ServeProcess  # noqa: E402

PROMPT = "It was a dark and stormy night, and the old captain began to tell his story."


def run_once(args):
    command = [*args.prefix.split(), args.k3, "run", args.model, "--raw", "-p", args.prompt, "--temperature", "0",
               "-n", str(args.tokens), "-t", str(args.threads), "--policy", args.policy, "--json"]
    answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True).stdout)
    return answer["text"], (answer["completion_tokens"] - 1) / answer["decode_seconds"], answer["completion_tokens"]


def start(args):
    small = ["--conv-dtype", "bf16", "--latent-dtype", "bf16"] if args.policy == "bf16" else []
    return ServeProcess(args.k3, args.model, "-q", "-t", str(args.threads), "--policy", args.policy,
                        *(args.serve.split() if args.serve is not None else small), prefix=args.prefix.split())


def serve_once(args, port, model):
    """Bytes are stamped as they come and understood afterwards: the client shall cost as little as it can."""
    body = json.dumps({"model": model, "prompt": args.prompt, "temperature": 0, "max_tokens": args.tokens, "stream": True,
                       "cache_prompt": False, "stream_options": {"include_usage": True}}).encode()
    parts = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
        while part := sock.recv(1 << 16):
            parts.append((time.perf_counter(), part))
    stamps, text, tokens, data = [], "", 0, b""
    for when, part in parts:
        data += part
        *lines, data = data.split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            frame = json.loads(line[6:])
            piece = "".join(choice["text"] for choice in frame.get("choices", []))
            text += piece
            if piece:
                stamps.append(when)
            tokens = (frame.get("usage") or {}).get("completion_tokens", tokens)
    # A token that makes a character only with the next one has no frame of its own; first and last ones have.
    return text, (tokens - 1) / (stamps[-1] - stamps[0]), tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k3", default="build/release/k3", help="default %(default)s")
    parser.add_argument("--model", default="models/k3-mini", help="default %(default)s")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("-n", "--tokens", type=int, default=512)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--policy", default="bf16")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--serve", help="options of k3 serve instead of those that make its caches like k3 run's")
    parser.add_argument("--prefix", default="", help="in front of both programs, like 'nice -n -5'")
    args = parser.parse_args()
    server = start(args)
    name = os.path.basename(os.path.normpath(args.model))
    ratios, rates = [], {"run": [], "serve": []}
    print(datetime.date.today(), " ".join(sys.argv), flush=True)
    try:
        run_once(args), serve_once(args, server.port, name)  # files into memory, pages of the pool
        for pair in range(args.pairs):
            order = ["run", "serve"] if pair % 2 == 0 else ["serve", "run"]
            results = {side: run_once(args) if side == "run" else serve_once(args, server.port, name) for side in order}
            (run_text, run_rate, run_tokens), (serve_text, serve_rate, serve_tokens) = results["run"], results["serve"]
            same = (run_text, run_tokens) == (serve_text, serve_tokens)
            ratios.append(serve_rate / run_rate)
            rates["run"].append(run_rate), rates["serve"].append(serve_rate)
            with open("/proc/loadavg", encoding="utf-8") as file:
                load = file.read().split()[0]
            print(f"pair {pair}: run {run_rate:7.1f}, serve {serve_rate:7.1f} tokens/s, ratio {ratios[-1]:.3f}, "
                  f"{run_tokens} tokens, "
                  f"{'same text' if same else f'OTHER TEXT ({serve_tokens} tokens)'}; load {load}", flush=True)
    finally:
        server.stop()
    print(f"median ratio {statistics.median(ratios):.3f} (run {statistics.median(rates['run']):.1f}, serve "
          f"{statistics.median(rates['serve']):.1f} tokens/s; best of each {max(rates['run']):.1f}, {max(rates['serve']):.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
