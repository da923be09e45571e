#!/bin/sh
# Puts an exported model into models/k3-mini, with new goldens: replace_mini.sh K3 EXPORT [TRAIN_LOG]
# Same tokenizer and chat format as before; at most 36,000,000 bytes of safetensors, in five files, as tests and README have them.
set -eu
[ $# -ge 2 ] || { sed -n 2,3p "$0" >&2; exit 2; }
k3=$1 from=$2 log=${3:-}
root=$(cd "$(dirname "$0")/.." && pwd)
mini=$root/models/k3-mini
fail() { echo "replace_mini.sh: $*" >&2; exit 1; }
for name in tiktoken.model tokenizer_config.json chat_format.json; do
  cmp -s "$from/$name" "$mini/$name" || fail "$from/$name is not that of $mini"
done
work=$(mktemp -d "$root/models/.replace-XXXXXX")
trap 'rm -rf "$work"' EXIT
"$k3" convert "$from" "$work/new" --shards 5
bytes=$(cat "$work"/new/*.safetensors | wc -c)
[ "$bytes" -le 36000000 ] || fail "$bytes bytes of safetensors; at most 36,000,000"
"$k3" inspect "$work/new" > "$work/inspect"
rm "$mini"/*.safetensors
mv "$work"/new/*.safetensors "$work/new/model.safetensors.index.json" "$work/new/config.json" "$mini/"
[ -z "$log" ] || cp "$log" "$mini/train.log"
"$root/tools/make_goldens.sh" "$mini"
cat "$work/inspect"
echo "$bytes bytes of safetensors. Next: ctest, models/k3-mini/README.md (tools/ask_chat20.py, k3 perplexity --documents), and what README.md says of the model."
