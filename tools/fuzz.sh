#!/bin/sh
# Runs every fuzz target for SECONDS each: fuzz.sh BUILD_DIR SECONDS. New inputs stay in BUILD_DIR/corpus; a finding is
# written to BUILD_DIR and fails the script. Put it into tests/fuzz/corpus/<name>/ together with the fix.
set -eu
build="$1"; seconds="$2"
root="$(cd "$(dirname "$0")/.." && pwd)"
for target in "$build"/*_fuzz; do
  name="$(basename "$target" _fuzz)"
  mkdir -p "$build/corpus/$name"
  echo "fuzz $name for $seconds s"
  "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="$build/finding-$name-" "$build/corpus/$name" "$root/tests/fuzz/corpus/$name" 2>&1 |
    grep -E "ERROR|SUMMARY|number_of_executed_units|Test unit written" || true
  if ls "$build/finding-$name-"* > /dev/null 2>&1; then
    echo "finding in $name: $(ls "$build/finding-$name-"*)" >&2
    exit 1
  fi
done
echo "no finding"
