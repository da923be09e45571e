"""`k3 serve` on a free port, for the scripts that test or measure it (they put this folder on sys.path)."""
import atexit
import re
import subprocess
import tempfile
import time
import urllib.request


class ServeProcess:
    """Running and listening once made. Its stderr goes to a file: a pipe that nobody reads would stop it."""

    def __init__(self, program, model, *options, prefix=()):
        self.log = tempfile.NamedTemporaryFile("w+", prefix="k3-serve-", suffix=".log")
        self.command = [*prefix, program, "serve", model, "--port", "0", *options]
        self.process = subprocess.Popen(self.command, stderr=self.log)
        atexit.register(self.process.kill)  # no effect on one that has ended
        end = time.time() + 120
        while not (found := re.search(r"listening on (http://\S+:(\d+))", self.text())):
            if self.process.poll() is not None or time.time() > end:
                self.process.kill()
                raise RuntimeError("the server did not start:\n" + self.text())
            time.sleep(0.05)
        self.url, self.port = found[1], int(found[2])

    def text(self):
        """What it has written to stderr so far."""
        with open(self.log.name, encoding="utf-8") as file:
            return file.read()

    def ask(self, path, body=None):
        request = urllib.request.Request(self.url + path, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def metrics(self):
        """Name (with labels) to value."""
        lines = (line.rsplit(" ", 1) for line in self.ask("/metrics").splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def gauge(self, name):
        return self.metrics()[name]

    def stop(self):
        """Asks it to end; the exit code, which should be 0."""
        self.process.terminate()
        return self.wait()

    def wait(self):
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
