#!/bin/sh
# Writes golden/ of a model in the released layout: make_goldens.sh [MODEL]     (default: models/k3-mini; minutes)
# golden.json, logits_*.npy: a float64 forward in PyTorch (tools/oracle/golden.py); router_margins.json, router_experts.json: one in NumPy, which first checks those
# logits (tools/oracle/k3_numpy_ref.py). Both read the stored weights with readers of their own. The validation ids of the golden.json that is
# there stay. PYTHON names an interpreter with torch, numpy and regex (Debian: python3-torch python3-numpy python3-regex).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
model=${1:-$root/models/k3-mini}
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import numpy, regex, torch' 2> /dev/null || {
  echo "make_goldens.sh: $python lacks torch, numpy or regex: apt-get install python3-torch python3-numpy python3-regex, or set PYTHON" >&2
  exit 1
}
"$python" "$root/tools/oracle/golden.py" "$model"
"$python" "$root/tools/oracle/k3_numpy_ref.py" --mla-eps config margins "$model"
"$python" - "$model" << 'END'
import json, sys
folder = sys.argv[1] + '/golden/'
prompts = json.load(open(folder + 'golden.json'))['prompts']
margins = json.load(open(folder + 'router_margins.json'))
specials = json.load(open(sys.argv[1] + '/config.json'))['bos_token_id']
answer = prompts['chat']['greedy_ids']
closed = next((i for i, x in enumerate(answer) if x >= specials), None)
print('rows with a layer whose router decides by less than 6e-4:', {name: f'{sum(x < 6e-4 for x in m)} of {len(m)}' for name, m in margins.items()})
if closed is None or closed < 5 or prompts['chat']['smallest_greedy_gap'] < 0.25:
    print('warning: tests/e2e asks this model', repr('What is the capital of France?'), 'and needs a closed answer of 5 to 32 tokens whose choices are 0.25 apart')
    sys.exit(1)
END
