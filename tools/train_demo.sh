#!/bin/sh
# From the texts in data/demo to a model that answers: tokenizer, shards, training, export, a question. About ten minutes on two cores.
# usage: tools/train_demo.sh K3 [FOLDER]     goes on where it was stopped
set -eu
k3=$1
out=${2:-build/demo}
root=$(cd "$(dirname "$0")/.." && pwd)
begin=$(date +%s)
mkdir -p "$out"
if [ ! -f "$out/data/manifest.json" ]; then
  "$k3" train-tokenizer --vocab 3072 --force --out "$out/tokenizer" "$root"/data/demo/*.zst
  "$k3" prepare --tokenizer "$out/tokenizer" --holdout 0.02 --force --out "$out/data" "$root"/data/demo/*.zst
fi
"$k3" train "$root/configs/k3-nano.json" -o "$out/run" --set tokenizer="$(cd "$out/tokenizer" && pwd)" --set data="$(cd "$out/data" && pwd)"
"$k3" export --force "$out/run" "$out/model"
echo "from raw text to a model in $(($(date +%s) - begin)) s; try: $k3 chat $out/model"
"$root/tools/check_demo.py" "$k3" "$out/model" "$root/data/demo"
