#!/usr/bin/env python3
"""Training runs that are killed at random moments, or asked to stop, end with the losses and the weights of one that was not.

    train_kill_test.py K3_BINARY [--kills N] [--seed S]
"""
import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from train_lab import Lab  # noqa: E402


def expect(fact, text):
    if not fact:
        raise AssertionError(text)


def killed_runs(lab, kills, rng, seconds, whole, weights):
    """Kills until `kills` were dealt; each run that gets to its end is compared, then another one begins."""
    dealt, runs, resumed_from = 0, 0, set()
    while dealt < kills or runs == 0 or lab.checkpoints("run-%d" % runs):
        folder = "run-%d" % runs
        process = lab.start(folder, "--quiet")
        # Late enough for some progress in most, early enough to fall into start and reading at times.
        delay = rng.uniform(0.0, 0.6 * seconds) if dealt < kills else 120
        try:
            _, err = process.communicate(timeout=delay)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            dealt += 1
            resumed_from.update(lab.checkpoints(folder)[-1:])
            continue
        expect(process.returncode == 0, "run %d after %d kills: exit code %d\n%s" % (runs, dealt, process.returncode, err))
        expect(lab.losses(folder) == whole, "run %d: other losses than the run that was not killed" % runs)
        expect(lab.exported(folder) == weights, "run %d: other weights than the run that was not killed" % runs)
        left = [name for name in os.listdir(lab.path(folder)) + os.listdir(lab.path(folder, "checkpoints"))
                if ".tmp-" in name or name == ".unfinished"]
        expect(not left, "run %d left %s" % (runs, left))
        runs += 1
    return dealt, runs, resumed_from


def asked_to_stop(lab, number, whole, weights):
    folder = "asked-%d" % number
    process = lab.start(folder)
    # Its first line of a step: the handler is there and a step is done.
    seen = ""
    while "pretrain" not in seen:
        line = process.stderr.readline()
        expect(line, "signal %d: the run ended early\n%s" % (number, seen))
        seen += line
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    expect(process.returncode == 0, "signal %d: exit code %d\n%s" % (number, process.returncode, err))
    expect("goes on from there" in out, "signal %d: %r" % (number, out))
    expect(lab.checkpoints(folder)[-1:] == [len(lab.losses(folder))], "signal %d: no checkpoint of the last step" % number)
    expect(len(lab.losses(folder)) < len(whole), "signal %d: the run was not stopped" % number)
    expect(lab.train(folder)[0] == 0, "signal %d: does not go on" % number)
    expect(lab.losses(folder) == whole and lab.exported(folder) == weights, "signal %d: goes on differently" % number)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 30)
    print("seed", seed, flush=True)  # the moments are not repeatable, their order of size is
    with tempfile.TemporaryDirectory() as root:
        lab = Lab(options.binary, root)
        begin = time.monotonic()
        code, text = lab.train("whole")
        seconds = time.monotonic() - begin
        expect(code == 0, text)
        whole, weights = lab.losses("whole"), lab.exported("whole")
        expect([r[0] for r in whole] == list(range(1, 61)), "60 steps, each once")
        dealt, runs, resumed = killed_runs(lab, options.kills, random.Random(seed), seconds, whole, weights)
        print("%d kills over %d runs of %.1f s, resumed after steps %s: losses and weights as without" %
              (dealt, runs, seconds, sorted(resumed)), flush=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            asked_to_stop(lab, number, whole, weights)
        print("SIGINT and SIGTERM: a checkpoint, exit code 0, the same end")


if __name__ == "__main__":
    main()
