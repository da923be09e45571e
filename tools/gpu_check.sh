#!/bin/bash
# Builds the GPU tests and benches (or takes built ones), runs them on this machine's GPU and prints one table.
set -u

usage() {
  cat <<'TEXT'
usage: tools/gpu_check.sh [--sanitize | --only TOOL] [--tests FILTER] [--bench TEXT,TEXT | --no-bench] [BIN_DIR]

BIN_DIR       folder with k3_gpu_test, k3_gpu_bench, k3 (for the tests of server and commands; left out without it) and, for racecheck,
              k3_gpu_racecheck_test; without it the preset `cuda` is built into build/cuda
--sanitize    the *Sanitize* tests again under compute-sanitizer, memcheck and racecheck
--only TOOL   nothing but those tests under memcheck or racecheck
--tests       which tests (a GoogleTest filter); all without it
--bench       which benches (names that contain a text); all without it
--no-bench    tests only
Everything ends within 9 minutes. Exit code: 0 all passed, 1 something failed or ran out of time, 2 could not start, 77 no GPU.
TEXT
}

here=$(cd "$(dirname "$0")/.." && pwd)
sanitize="" tests="*" bench="" benches=1 tools_only="" bin=""
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --sanitize) sanitize="memcheck racecheck" ;;
    --only) sanitize="${2:?}" tools_only=1; shift ;;
    --tests) tests="${2:?}"; shift ;;
    --bench) bench="${2:?}"; shift ;;
    --no-bench) benches="" ;;
    -*) usage >&2; exit 2 ;;
    *) bin="$1" ;;
  esac
  shift
done

deadline=$((SECONDS + 530))
left() { echo $((deadline - SECONDS > 1 ? deadline - SECONDS : 1)); }

if ! command -v nvidia-smi > /dev/null || ! nvidia-smi -L 2> /dev/null | grep -q GPU; then
  echo "gpu_check.sh: this machine has no NVIDIA GPU (nvidia-smi lists none); nothing was run" >&2
  exit 77
fi

if [ -z "$bin" ]; then
  bin="$here/build/cuda"
  targets="k3_gpu_test"
  [ -n "$tools_only" ] || targets="$targets k3"
  [ -n "$benches" ] && [ -z "$tools_only" ] && targets="$targets k3_gpu_bench"
  [[ "$sanitize" == *racecheck* ]] && targets="$targets k3_gpu_racecheck_test"
  log=$(mktemp)
  # shellcheck disable=SC2086  # a list of words
  if ! (cd "$here" && cmake --preset cuda && timeout "$(left)" cmake --build --preset cuda --target $targets) > "$log" 2>&1; then
    grep -n -m 20 -E "error|FAILED|Error" "$log" >&2 || tail -20 "$log" >&2
    echo "gpu_check.sh: the build failed or took too long (log: $log); build first with: cmake --build --preset cuda" >&2
    exit 2
  fi
  rm -f "$log"
fi
for program in k3_gpu_test ${benches:+${tools_only:-k3_gpu_bench}}; do
  if [ "$program" != 1 ] && [ ! -x "$bin/$program" ]; then
    echo "gpu_check.sh: no $program in $bin" >&2
    exit 2
  fi
done

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0

# run_tests NAME FILTER SHARDS COMMAND...: runs the tests, in so many processes at once, and leaves a line of the table in $out/table.
run_tests() {
  local name="$1" filter="$2" shards="$3" begin=$SECONDS code=0 program=k3_gpu_test i one note=""
  # The same tests with barriers that racecheck can follow (src/k3/ops/cuda/warp_arrive.cuh).
  [ "$name" = racecheck ] && program=k3_gpu_racecheck_test
  shift 3
  if [ ! -x "$bin/$program" ]; then
    echo "gpu_check.sh: no $program in $bin" >&2
    failed=1
    return
  fi
  for ((i = 0; i < shards; ++i)); do
    mkdir -p "$out/tmp.$i"
    (
      TMPDIR="$out/tmp.$i" TEST_TMPDIR="$out/tmp.$i" GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i \
        timeout "$(left)" "$@" "$bin/$program" --gtest_filter="$filter" --gtest_color=no > "$out/$name.$i" 2>&1
      echo $? > "$out/$name.$i.code"
    ) &
  done
  wait
  for ((i = 0; i < shards; ++i)); do
    one=$(cat "$out/$name.$i.code")
    [ "$one" -ne 0 ] || continue
    code=$one
    if [ "$one" -eq 124 ]; then
      note="$note out of time in $(grep '^\[ RUN' "$out/$name.$i" | tail -1 | sed 's/.*\] //')"
    elif ! grep -q '^\[  FAILED  \] .*ms)$' "$out/$name.$i"; then
      note="$note ended with code $one in $(grep '^\[ RUN' "$out/$name.$i" | tail -1 | sed 's/.*\] //')"
    fi
    # Which tests, then what the first of them says; of a race both sides.
    grep -E '^\[  FAILED  \] .*ms\)$' "$out/$name.$i" | head -20 >> "$out/failures"
    grep -E '^========= (Invalid|Race|Error|ERROR|Warning|Program hit|Uninit)|^=========     and |Failure$' "$out/$name.$i" | head -20 >> "$out/failures"
    grep -q '^\[  FAILED  \] .*ms)$' "$out/$name.$i" || tail -5 "$out/$name.$i" >> "$out/failures"
  done
  cat "$out/$name".*[0-9] > "$out/$name"
  local passed skipped broken
  passed=$(grep -c '^\[       OK \]' "$out/$name")
  skipped=$(grep -c '^\[  SKIPPED \] .*ms)$' "$out/$name")
  broken=$(grep -c '^\[  FAILED  \] .*ms)$' "$out/$name")
  [ $((code + passed + skipped)) -ne 0 ] || note="no such test"
  [ "$code" -eq 0 ] || failed=1
  printf '%-12s %8s %8s %8s %6ss  %s\n' "$name" "$passed" "$broken" "$skipped" $((SECONDS - begin)) "$note" >> "$out/table"
}

# run_script NAME: tests/gpu/NAME_gpu_test.py with the program and the model of the repository; 77: left out.
run_script() {
  local name="$1" begin=$SECONDS code note=""
  timeout "$(left)" python3 "$here/tests/gpu/${name}_gpu_test.py" "$bin/k3" "$here/models/k3-mini" > "$out/$name" 2>&1
  code=$?
  [ $code -eq 124 ] && note="out of time"
  printf '%-12s %8s %8s %8s %6ss  %s\n' "$name" $((code == 0)) $((code != 0 && code != 77)) $((code == 77)) $((SECONDS - begin)) "$note" >> "$out/table"
  if [ $code -ne 0 ] && [ $code -ne 77 ]; then
    failed=1
    tail -5 "$out/$name" >> "$out/failures"
  fi
}

[ -n "$tools_only" ] || run_tests tests "$tests" 4 env
if [ -z "$tools_only" ] && [ "$tests" = "*" ] && [ -x "$bin/k3" ] && command -v python3 > /dev/null; then
  run_script commands
  run_script serve
fi
if [ -n "$sanitize" ]; then
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  processes=$(nproc)  # of tests that mostly keep a processor busy
  [ "$processes" -le 16 ] || processes=16
  if [ -x "$sanitizer" ]; then
    for tool in $sanitize; do
      filter='*Sanitize*'
      # racecheck reports kernels of cuBLASLt (some of training's ops have no other products), and what has many launches or rows does not
      # end in a minute: docs/cuda.md, "Not shown".
      [ "$tool" = racecheck ] && filter='*Sanitize*-*SanitizeLibrary*:TrainOpsGpu.EmbeddingAndLoss*:TrainOpsGpu.RoutedExperts*:TrainOpsGpu.Mla*'
      [ "$tool" = racecheck ] && filter="$filter:*SanitizeSteps*:*SanitizeSampling*:SamplingGpu.SanitizeGreedy"
      run_tests "$tool" "$filter" "$processes" "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20
    done
  else
    echo "gpu_check.sh: no compute-sanitizer (it comes with the CUDA toolkit)" >&2
    [ -n "$tools_only" ] && exit 77
    failed=1
  fi
fi
if [ -n "$benches" ] && [ -z "$tools_only" ]; then
  timeout "$(left)" "$bin/k3_gpu_bench" --filter "$bench" > "$out/bench" 2> "$out/bench.errors"
  code=$?
  if [ $code -ne 0 ]; then
    failed=1
    echo "k3_gpu_bench ended with code $code$([ $code -eq 124 ] && echo ' (out of time)')" >> "$out/failures"
    tail -3 "$out/bench.errors" >> "$out/failures"
  fi
fi

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1
printf '%-12s %8s %8s %8s %7s\n' "" passed failed skipped time
cat "$out/table"
if [ -s "$out/bench" ]; then
  grep '^{"device"' "$out/bench" | tr -d '{}"'
  if grep -q '^kernel ' "$out/bench"; then
    sed -n '/^kernel /,$p' "$out/bench"
  else
    grep '^{"kernel"' "$out/bench"  # it did not come to its table
  fi
fi
if [ -s "$out/failures" ]; then
  echo "failed:"
  cat "$out/failures"
fi
exit $failed
