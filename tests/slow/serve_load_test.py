#!/usr/bin/env python3
"""Load on `k3 serve` for minutes: serve_load_test.py K3 MODEL [--seconds 300] [--streams 64]

Streams of many users at once, a third of them cancelled at a random point, then a look at what is left: no error, pages,
slots, pins, connections and file descriptors as before, memory within 5 %, and no request that waited more than 20 median
gaps for a token. The server is deterministic, so equal requests must get equal answers whatever ran beside them; a cancelled
one must have got a beginning of it. Then: what 1,000 waiting streams cost. `--seconds 20` is for use by hand.
"""
import argparse
import asyncio
import json
import os
import random
import re
import resource
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
from serve_process import ServeProcess  # noqa: E402

MOST_GAPS = 20           # a token within so many median gaps
RSS_SHARE = 0.05
WAITING = 1000
WAITING_BYTES = 50e6
CANCELLED = 0.33
WORDS = ("the water house light small green river stone after under night morning letter paper table world people city road "
         "number story field music garden winter summer north south open close begin again never always until where").split()


class Server(ServeProcess):
    def rss(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) * 1024

    def settle(self):
        """Waits until nothing runs, waits or is connected but this question."""
        end = time.time() + 60
        while True:
            m = self.metrics()
            if m["k3:sequences_running"] == m["k3:requests_waiting"] == 0 and m["k3:http_connections"] == 1:
                return m
            if time.time() > end:
                raise AssertionError(f"still busy: {m}")
            time.sleep(0.1)

    def state(self):
        """What must be the same before and after: with idle sequences erased and the cache emptied."""
        self.settle()
        for slot in json.loads(self.ask("/slots")):
            self.ask(f"/slots/{slot['id']}?action=erase", b"{}")
        m = self.settle()
        running = {name: m[f'k3:pages{{use="{name}"}}'] for name in ("running_mla", "running_kda", "quarantined")}
        self.ask("/reset_prefix_cache", b"{}")
        m = self.settle()
        fds = set(os.listdir(f"/proc/{self.process.pid}/fd"))
        for _ in range(20):  # a question's own connection closes a moment after its answer
            time.sleep(0.02)
            fds &= set(os.listdir(f"/proc/{self.process.pid}/fd"))
        return {**running, "free pages": m['k3:pages{use="free"}'], "pins": m["k3:pages_pinned"],
                "checkpoints": m["k3:checkpoints"],
                "busy slots": sum(slot["state"] != "empty" for slot in json.loads(self.ask("/slots"))),
                "file descriptors": len(fds)}, self.rss(), m

    def stop(self):
        code = super().stop()
        if code != 0:
            raise AssertionError(f"exit code {code}:\n" + self.text()[-2000:])


def catalogue(rng, count):
    """Requests with long common beginnings; more than the pool can keep. Answers take more time than prompts: two cores that
    cannot keep up with the prompts of 64 users would say nothing about the server."""
    heads = [" ".join(rng.choices(WORDS, k=rng.randint(60, 300))) for _ in range(6)]
    out = []
    for index in range(count):
        text = (rng.choice(heads) + " " if rng.random() < 0.7 else "") + " ".join(rng.choices(WORDS, k=rng.randint(5, 30)))
        body = {"model": "k3-mini", "stream": True, "max_tokens": rng.randint(100, 250), "temperature": rng.choice([0, 1]),
                "seed": index}
        if rng.random() < 0.3:
            body.update(messages=[{"role": "user", "content": text}], thinking={"type": "disabled"})
        else:
            body.update(prompt=text)
        out.append(("/v1/chat/completions" if "messages" in body else "/v1/completions", json.dumps(body).encode()))
    return out


def head_of(path, body):
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def frames(reader):
    """The data of each frame of a chunked stream, until [DONE]; the answer's head is read first."""
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise AssertionError(head.decode(errors="replace") + (await reader.read(400)).decode(errors="replace"))
    buffer = b""
    while size := int(await reader.readline(), 16):
        buffer += (await reader.readexactly(size + 2))[:-2]
        *whole, buffer = buffer.split(b"\n\n")
        for frame in whole:
            yield frame.removeprefix(b"data: ")
    await reader.readline()


class Load:
    def __init__(self, port, requests, rng):
        self.port, self.requests, self.rng = port, requests, rng
        self.gaps, self.first, self.errors, self.answers = [], [], [], {}
        self.sent = self.finished = self.cancelled = self.compared = 0

    async def run(self, streams, seconds):
        end = time.monotonic() + seconds
        done = lambda: time.monotonic() > end or self.errors
        ramp = min(20, seconds / 4)  # users do not all come in one instant
        await asyncio.gather(*(self.user(ramp * i / streams, done) for i in range(streams)))

    async def user(self, delay, done):
        connection = None
        await asyncio.sleep(delay)
        while not done():
            try:
                connection = connection or await asyncio.open_connection("127.0.0.1", self.port)
                if not await self.ask(*connection):
                    connection = None
            except Exception as error:
                self.errors.append(repr(error))
        if connection:
            connection[1].close()

    async def ask(self, reader, writer):
        """One request; false when the connection is gone."""
        which = self.rng.randrange(len(self.requests))
        cancel_after = self.rng.randint(0, 40) if self.rng.random() < CANCELLED else None
        writer.write(head_of(*self.requests[which]))
        self.sent += 1
        last, text, finish, seen = time.monotonic(), "", None, 0
        if cancel_after == 0:
            await asyncio.sleep(self.rng.uniform(0, 0.2))
        else:
            async for frame in frames(reader):
                if frame == b"[DONE]":
                    continue
                choice = json.loads(frame)["choices"][0]
                piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
                finish = choice["finish_reason"]
                if not piece and not finish:
                    continue  # the frame that opens a chat message: no token yet
                now = time.monotonic()
                (self.gaps if seen else self.first).append(now - last)
                last, seen, text = now, seen + 1, text + piece
                if seen == cancel_after:
                    break
        if finish in ("stop", "length"):
            self.finished += 1
        elif cancel_after is None:
            raise AssertionError(f"a stream ended with {finish}")
        self.compare(which, text, finish)
        self.cancelled += finish is None
        if finish and cancel_after != seen and self.rng.random() < 0.5:
            return True
        if self.rng.random() < 0.5:
            writer.transport.abort()
        writer.close()
        return False

    def compare(self, which, text, finish):
        known = self.answers.get(which)
        if known is not None:
            self.compared += 1
            if not (text == known if finish else known.startswith(text)):
                raise AssertionError(f"request {which} answered {text!r} after {known!r}")
        elif finish:
            self.answers[which] = text


def check(name, good, text):
    print(f"{'ok  ' if good else 'FAIL'} {name}: {text}", flush=True)
    return good


def steady(args, rng):
    server = Server(args.k3, args.model, "--dev", "--max-running", str(args.streams), "--ctx", "1024", "--deterministic", *args.serve)
    requests = catalogue(rng, 400)
    # What stays for good (buffers, connection pools, the pool's own pages) is touched before the comparison begins.
    full = lambda: server.metrics()["k3:evicted_pages_total"] > 0
    warm = Load(server.port, requests, rng)
    end = time.monotonic() + 180
    while not full() and not warm.errors and time.monotonic() < end:
        asyncio.run(warm.run(args.streams, 5))
    before, rss_before, m0 = server.state()
    load = Load(server.port, requests, rng)
    load.answers, begin = warm.answers, time.monotonic()
    asyncio.run(load.run(args.streams, args.seconds))
    took = time.monotonic() - begin
    after, rss_after, m1 = server.state()
    server.stop()
    delta = {name: m1[name] - m0[name] for name in m1 if name in m0}
    median = statistics.median(load.gaps)
    total = lambda end: int(delta[f'k3:requests_total{{end="{end}"}}'])
    good = [
        check("errors", not load.errors and not warm.errors, (warm.errors + load.errors)[:3] or "none"),
        check("requests", total("failed") == total("rejected") == 0 and delta["k3:nonfinite_total"] == 0,
              f"{load.sent} in {took:.0f} s, {load.finished} whole, {load.cancelled} cancelled by the client "
              f"({total('cancelled')} of them before their end); failed {total('failed')}, rejected {total('rejected')}"),
        check("answers", load.compared > 0, f"{load.compared} compared with an earlier one of the same request"),
        check("as before", before == after, f"{after}" if before == after else f"{before} became {after}"),
        check("memory", abs(rss_after - rss_before) <= RSS_SHARE * rss_before,
              f"{rss_before / 1e6:.1f} MB before, {rss_after / 1e6:.1f} MB after"),
        check("gaps", max(load.gaps) <= MOST_GAPS * median,
              f"median {median * 1e3:.1f} ms, largest {max(load.gaps) * 1e3:.1f} ms = {max(load.gaps) / median:.1f} medians"),
        check("first tokens", max(load.first) <= MOST_GAPS * median,
              f"median {statistics.median(load.first) * 1e3:.1f} ms, largest {max(load.first) * 1e3:.1f} ms = "
              f"{max(load.first) / median:.1f} gaps"),
    ]
    print(f"     {delta['k3:generated_tokens_total'] / took:.0f} tokens/s generated, "
          f"{delta['k3:computed_tokens_total'] / took:.0f} prompt tokens/s computed, {delta['k3:prefix_hit_tokens_total'] / took:.0f} from the cache, "
          f"{delta['k3:evicted_pages_total']:.0f} pages evicted, {delta['k3:preemptions_total']:.0f} preemptions")
    return all(good)


async def crowd(server, count):
    """So many streams that wait, behind a few that hold every slot."""
    text = " ".join(random.Random(1).choices(WORDS, k=60))
    body = json.dumps({"model": "k3-mini", "stream": True, "max_tokens": 4000, "ignore_eos": True,
                       "messages": [{"role": "user", "content": text}]}).encode()
    connections = []

    async def more(total):
        while len(connections) < total:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(head_of("/v1/chat/completions", body))
            connections.append(writer)

    async def until(waiting):
        for _ in range(600):
            if (await asyncio.to_thread(server.metrics))["k3:requests_waiting"] == waiting:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"not {waiting} waiting")

    await more(2 + 20)  # two run; a few waiters first, so that what one costs is not mistaken for what each costs
    await until(20)
    before = server.rss()
    await more(2 + 20 + count)
    await until(20 + count)
    rss = server.rss() - before
    for writer in connections:
        writer.transport.abort()
    return rss


def queue(args):
    server = Server(args.k3, args.model, "--dev", "--max-running", "2", "--max-queued", "2000", "--ctx", "8192")
    before, _, _ = server.state()
    cost = asyncio.run(crowd(server, WAITING))
    after, _, m = server.state()
    server.stop()
    good = [check("waiting", cost < WAITING_BYTES, f"{WAITING} streams in the queue cost {cost / 1e6:.1f} MB"),
            check("as before", before == after and m['k3:requests_total{end="failed"}'] == 0,
                  f"{after}" if before == after else f"{before} became {after}")]
    return all(good)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("k3")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", nargs="*", default=[], help="more options of k3 serve, without their dashes: threads=1")
    args = parser.parse_args()
    args.serve = [part for option in args.serve for part in ("--" + option).split("=", 1)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print(f"seed {args.seed}", flush=True)
    good = [queue(args), steady(args, random.Random(args.seed))]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
