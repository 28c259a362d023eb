#!/usr/bin/env bash
# Replays the start of a bundled trace and gates it, exactly, against tests/golden/gate/baseline.json: any change of what
# the simulator or a bundled policy does fails. `tools/golden_gate.sh --update` writes that file anew; review it like code.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
baseline=tests/golden/gate/baseline.json

rules=()
for metric in completed_requests rejected_requests good_requests request_goodput_ratio rejected_tokens_ratio \
  p50_ttft_ms p99_ttft_ms p99_tbt_ms p99_e2e_ms p99_queue_ms hit_ratio_tokens computed_tokens wasted_prefill_tokens; do
  rules+=(--fail-if "$metric:+-0%")
done

mooncake-bench replay conversation-like --speedup 2.5 --vram 160000 --max-requests 500 --out "$work" --name golden -q \
  -p random -p cache-aware -p baseline -p predictive >"$work/replay.txt"
if [ "${1:-}" = --update ]; then
  mooncake-bench gate --write-baseline "$baseline" golden --out "$work" --force "${rules[@]}"
else
  mooncake-bench gate "$baseline" golden --out "$work" "${rules[@]}"
fi
