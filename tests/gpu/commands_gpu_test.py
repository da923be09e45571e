"""`k3 logits`, `perplexity` and `run` on a GPU with the trained model, against its float64 forward and the CPU in the same policy.

usage: commands_gpu_test.py PROGRAM MODEL_FOLDER [--device cpu]
MODEL_FOLDER: models/k3-mini with its golden folder. Exit code 77: no GPU or no weights.
The median row of logits within 3e-2 (norm ratio) of float64, the same best token where the golden two best are more than 0.25 apart, nll within 0.02.
Of all rows the ratio is told alone: a token that goes to another expert is off by up to 0.3 (golden_gpu_test.cc looks at the experts themselves)."""
import ast
import array
import json
import math
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

RATIO, GAP, NLL = 3e-2, 0.25, 0.02


def read_npy(path):
    """Rows of a two-dimensional float32 array."""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<H", data[8:10])[0]
    head = ast.literal_eval(data[10:10 + size].decode())
    assert head["descr"] == "<f4" and not head["fortran_order"], head
    values, (rows, columns) = array.array("f", data[10 + size:]), head["shape"]
    return [values[i * columns:(i + 1) * columns] for i in range(rows)]


def logsumexp(row):
    top = max(row)
    return top + math.log(sum(math.exp(x - top) for x in row))


def k3(program, *arguments, text=None):
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def logits_of(program, model, ids, out, *options):
    k3(program, "logits", model, "--ids", ",".join(map(str, ids)), "--out", out, *options)
    return read_npy(out)


def check_rows(got, golden, ids, what):
    def ratio(rows):
        return math.sqrt(sum((x - y) ** 2 for i in rows for x, y in zip(got[i], golden[i])) / sum(y * y for i in rows for y in golden[i]))

    rows = range(len(golden))
    scored = [i for i in rows if i + 1 < len(ids)]
    nll = sum(logsumexp(got[i]) - got[i][ids[i + 1]] - logsumexp(golden[i]) + golden[i][ids[i + 1]] for i in scored) / len(scored)
    median = sorted(ratio([i]) for i in rows)[len(rows) // 2]
    clear = [i for i in rows if sorted(golden[i])[-1] - sorted(golden[i])[-2] > GAP]
    equal = sum(golden[i][max(range(len(got[i])), key=got[i].__getitem__)] == max(golden[i]) for i in clear)
    print(f"{what}: ratio {ratio(rows):.2e}, median row {median:.2e}, nll {nll:+.4f}; best token {equal} of {len(clear)}")
    assert median <= RATIO and equal == len(clear) and abs(nll) <= NLL, what


def main():
    program, model = sys.argv[1:3]
    device = sys.argv[sys.argv.index("--device") + 1] if "--device" in sys.argv else "cuda"
    folder = pathlib.Path(model)
    if (device != "cpu" and shutil.which("nvidia-smi") is None) or not list(folder.glob("*.safetensors")):
        sys.exit(77)
    golden = json.loads((folder / "golden" / "golden.json").read_text())
    on = ["--device", device]
    with tempfile.TemporaryDirectory(prefix="k3-commands-") as work:
        out = work + "/logits.npy"
        for name in ("prose", "chat"):
            want = read_npy(folder / "golden" / f"logits_{name}.npy")
            prompt = golden["prompts"][name]
            ids = (prompt["prompt_ids"] + prompt["greedy_ids"])[:len(want)]
            for how, more in (("whole", []), ("chunks of 7", ["--chunk", "7"]), ("deterministic", ["--deterministic"])):
                check_rows(logits_of(program, model, ids, out, *on, *more), want, ids, f"{name}, {how}")
            a, b = (logits_of(program, model, ids, out, *on, "--deterministic", "--chunk", n) for n in ("5", "16"))
            assert a == b, "deterministic logits depend on the chunks"
    values = [json.loads(k3(program, "perplexity", model, "--ids", ",".join(map(str, golden["val_ids"])), "--json", "--device", d)) for d in (device, "cpu")]
    print("perplexity:", values)
    for d, nll in (("GPU", values[0]["nats_per_token"]), ("CPU", values[1]["nats_per_token"])):
        assert abs(nll - golden["val_mean_nll"]) <= NLL, (d, nll, golden["val_mean_nll"])
    answers = [json.loads(k3(program, "run", model, "--device", d, "-p", "What is the capital of France?", "--temperature", "0", "-n", "32", "--json"))
               for d in (device, "cpu")]
    print("run:", [a["text"] for a in answers])
    said = golden["prompts"]["chat"]["greedy_text"]  # with the words of the tags that close it
    assert answers[0]["text"] and said.startswith(answers[0]["text"]) and answers[0]["text"] == answers[1]["text"], said
    print("all good")


if __name__ == "__main__":
    main()
