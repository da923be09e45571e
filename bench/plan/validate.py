#!/usr/bin/env python3
"""Does `k3 sim` tell what `k3 serve` does? validate.py --k3 build/release/k3 [--model models/k3-mini] [--device cuda]

Three parts on this machine, a table at the end:
1. Calibration. `k3 bench` measures steps while `k3 loadgen` runs beside it, against a stub that answers at a model's pace without computing.
   What the server adds (to a request, and to a step) follows from synthetic requests to `k3 serve`, one at a time, a few new tokens behind a
   cached prefix, held against the simulation of the same requests.
2. Measurement. `k3 serve` answers a trace replayed by `k3 loadgen`: several users at once, closed loop.
3. Simulation of the same trace, on that clock: hits with the order of admission that was recorded (equal request by request), times with the
   starts that were recorded (medians within 15 %, p95 within 30 %).
Every part is done --rounds times; the spread is the half range of a figure over the rounds. Exit code 1: something is beyond its bound.
"""
import argparse
import datetime
import http.server
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
from serve_process import ServeProcess  # noqa: E402

MEDIAN_BOUND, P95_BOUND = 0.15, 0.30
# Steps as the engine makes them: parts of a prompt of at most 512 tokens (on a GPU 2,048), decodes of as many sequences as there may be
# users at once, histories as the trace has them (4,000 tokens in the mean).
DEPTHS = ["-d", "0,1024,4096"]
PROMPTS = {"cpu": ["-p", "16,32,64,128,256,512"], "gpu": ["-p", "16,64,128,256,512,1024,2048", "--chunk", "2048"]}
DECODES = ["-p", "0", "-n", "32", *DEPTHS, "-b", "1,2,3,4"]
NEW, CACHED = 64, 4096  # prompts by which the server's share is found: new tokens behind a prefix that is cached
STUB_SECONDS_A_TOKEN = 0.01


class Stub(http.server.BaseHTTPRequestHandler):
    """Streams as many tokens as are asked for, one at a time."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        body = b'{"object":"list","data":[{"id":"stub","object":"model","meta":{"n_vocab":12288}}]}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        count = asked["max_tokens"]
        try:
            for i in range(count):
                time.sleep(STUB_SECONDS_A_TOKEN)
                last = "\"length\"" if i + 1 == count else "null"
                self.wfile.write(b'data: {"choices":[{"index":0,"text":" a","finish_reason":%s}]}\n\n' % last.encode())
            usage = {"choices": [], "usage": {"prompt_tokens": len(asked["prompt"]), "completion_tokens": count}}
            self.wfile.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
        except OSError:  # the client has gone
            pass


def run(o, *arguments):
    done = subprocess.run([o.k3, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"k3 {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def bench(o, path):
    """Steps of the model with the load generator beside."""
    stub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=stub.serve_forever, daemon=True).start()
    command = [o.k3, "loadgen", f"http://127.0.0.1:{stub.server_port}", "-n", "1000000", "--input", "1000", "--output", str(o.max_output), "--users", str(o.users),
               "--json"]
    client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        prompts = [*PROMPTS["cpu" if o.device == "cpu" else "gpu"], "-n", "0", *DEPTHS]
        grids = [json.loads(run(o, "bench", o.model, "--json", "--device", o.device, *threads(o), "-r", "3", "--no-ceilings", *grid)) for grid in (prompts, DECODES)]
        if client.poll() is not None:
            sys.exit("validate: the load generator ended before the bench did")
    finally:
        client.send_signal(signal.SIGINT)
        client.wait(60)
        stub.shutdown()
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"results": [r for grid in grids for r in grid["results"]]}, file)


def load(o, server, *options):
    result = json.loads(run(o, "loadgen", server.url, "--json", *options))
    bad = [r for r in result["requests"] if r["outcome"] != "ok"]
    if bad:
        sys.exit(f"validate: {len(bad)} requests failed: {bad[0]}")
    return result


def threads(o):
    return ["-t", str(o.threads)] if o.device == "cpu" else []


def serve(o):
    return ServeProcess(o.k3, o.model, "-q", "--device", o.device, *threads(o), "--ctx", str(o.ctx), "--max-running", str(o.max_running), "--block-tokens", str(o.block_tokens))


def simulate(o, clock, *options):
    phases = [] if o.device == "cpu" else ["--apart"]
    out = run(o, "sim", o.model, *options, *phases, "--made-up-answers", "--clock", clock["file"], "--step-overhead-ms", repr(1e3 * clock["step"]), "--request-ms",
              repr(1e3 * clock["request"]), "--ctx", str(o.ctx), "--max-running", str(o.max_running), "--block-tokens", str(o.block_tokens), "--json", "-")
    return json.loads(out)


def times(requests):
    """TTFT and TPOT of each request, by its place in the trace."""
    ttft, tpot = {}, {}
    for place, r in enumerate(requests):
        at = r.get("index", place)
        begin = r["start_s"] if "start_s" in r else r["arrival_s"]
        end = r["last_token_s"] if "last_token_s" in r else r["end_s"]
        ttft[at] = r["first_token_s"] - begin
        if r["output_tokens"] > 1:
            tpot[at] = (end - r["first_token_s"]) / (r["output_tokens"] - 1)
    return ttft, tpot


def quantile(values, share):
    values = sorted(values)
    at = share * (len(values) - 1)
    low = int(at)
    return values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def overheads(o, server, clock):
    """What a step and a request take beyond the bench's steps: parsing, keys of blocks, the restored state, sampling, sending."""
    shape = ["-n", "30", "--input", str(NEW), "--shared-prefix", str(CACHED), "--output", "33", "--seed", "7"]
    measured = times(load(o, server, *shape)["requests"][6:])
    simulated = times(simulate(o, dict(clock, step=0, request=0), "synthetic", *shape, "--users", "1")["requests"][6:])
    beyond = [statistics.median(m.values()) - statistics.median(s.values()) for m, s in zip(measured, simulated)]
    step = max(0.0, beyond[1])
    return step, max(0.0, beyond[0] - step)  # the prompt's new tokens are one step


def one_round(o, folder, number):
    clock = {"file": f"{folder}/bench-{number}.json"}
    bench(o, clock["file"])
    server = serve(o)
    try:
        clock["step"], clock["request"] = overheads(o, server, clock)
    finally:
        server.stop()
    cut = ["--scale", str(o.scale), "--max-output", str(o.max_output), "--users", str(o.users), "--speed", str(o.speed)]
    server = serve(o)
    try:
        recorded = load(o, server, "--trace", o.trace, *cut)
    finally:
        server.stop()
    path = f"{folder}/run-{number}.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(recorded, file)
    cut = cut[:4]
    ordered = simulate(o, clock, o.trace, *cut, "--recorded-order", path)
    timed = simulate(o, clock, o.trace, *cut, "--recorded", path)
    closed = simulate(o, clock, o.trace, *cut, "--users", str(o.users), "--speed", str(o.speed))
    by_index = {r["index"]: r for r in recorded["requests"]}
    different = [i for i, r in enumerate(ordered["requests"]) if r.get("index", i) in by_index and r["cached_tokens"] != by_index[r.get("index", i)]["cached_tokens"]]
    out = {"step_overhead_s": clock["step"], "request_s": clock["request"], "requests": len(by_index), "different_hits": len(different),
           "hit_tokens": sum(r["cached_tokens"] for r in recorded["requests"])}
    for name, values in (("measured", times(recorded["requests"])), ("simulated", times(timed["requests"])), ("closed", times(closed["requests"]))):
        for kind, of in zip(("ttft", "tpot"), values):
            for label, share in (("p50", 0.5), ("p95", 0.95)):
                out[f"{name}_{kind}_{label}"] = quantile(of.values(), share)
    print(f"round {number + 1} of {o.rounds}: {json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in out.items()})}", file=sys.stderr, flush=True)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--k3", default="build/release/k3")
    p.add_argument("--model", default="models/k3-mini")
    p.add_argument("--trace", default=os.path.join(HERE, "..", "serve", "agent_sessions_0_11.jsonl"))
    p.add_argument("--scale", type=float, default=0.1)
    p.add_argument("--max-output", type=int, default=24)
    p.add_argument("--users", type=int, default=3)
    p.add_argument("--speed", type=float, default=4, help="of the trace's think times")
    p.add_argument("--ctx", type=int, default=8192)
    p.add_argument("--max-running", type=int, default=8)
    p.add_argument("--block-tokens", type=int, default=64)
    p.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="of the CPU")
    p.add_argument("--device", default="cpu", help="where the model runs: cpu, cuda, cuda:1")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--json", help="write all rounds")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [one_round(o, folder, i) for i in range(o.rounds)]
    if o.json:
        with open(o.json, "w", encoding="utf-8") as file:
            json.dump(rounds, file, indent=1)
    middle = lambda key: statistics.median(r[key] for r in rounds)
    spread = lambda key: (max(r[key] for r in rounds) - min(r[key] for r in rounds)) / 2 / middle(key)
    ok = all(r["different_hits"] == 0 for r in rounds)
    print(f"{datetime.date.today()}, {o.model}, {os.path.basename(o.trace)} at {o.scale:g}, answers of at most {o.max_output} tokens, {o.users} users, think times over {o.speed:g}, "
          f"{o.device}{f', {o.threads} threads' if o.device == 'cpu' else ''}")
    print(f"hits: {sum(r['different_hits'] for r in rounds)} of {sum(r['requests'] for r in rounds)} requests differ ({middle('hit_tokens'):.0f} tokens hit a round)")
    print(f"added to a step {1e3 * middle('step_overhead_s'):.3f} ms, to a request {1e3 * middle('request_s'):.2f} ms\n")
    print("| | measured ms | spread | simulated ms | spread | error | bound | closed loop simulated ms | error |\n|---|---|---|---|---|---|---|---|---|")
    for kind in ("ttft", "tpot"):
        for label, bound in (("p50", MEDIAN_BOUND), ("p95", P95_BOUND)):
            m, s, c = (f"{name}_{kind}_{label}" for name in ("measured", "simulated", "closed"))
            error = middle(s) / middle(m) - 1
            ok = ok and abs(error) <= bound
            print(f"| {kind.upper()} {label} | {1e3 * middle(m):.2f} | {spread(m):.0%} | {1e3 * middle(s):.2f} | {spread(s):.0%} | {error:+.1%} | {bound:.0%} | "
                  f"{1e3 * middle(c):.2f} | {middle(c) / middle(m) - 1:+.1%} |")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
