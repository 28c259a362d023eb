#!/usr/bin/env bash
# Everything that live kernels must show on a machine, in one go: are they right (against float64), is layer-wise
# prefill faster than serialised, what does a calibration grid fit to, and does a replay of 50 requests run on them.
#
#   tools/live_check.sh [FOLDER]      results as files in FOLDER [default: $OUT, else live-check]
#
# Works offline in a checkout with torch, numpy, scipy, pyarrow, typer, rich and msgspec; nothing needs to be installed.
# It ends within TOTAL_S, 4 minutes unless told: a step for which no time is left fails. Settings, as environment
# variables:
#   DEVICE=auto|cpu|cuda:N  MODEL=llama-3-8b  TP=1  DTYPE=auto  GRID=full|small|none  REQUESTS=50  STEP_S=100
#   TOTAL_S=235
# For a look on a CPU: DEVICE=cpu MODEL=tiny-llama tools/live_check.sh
set -uo pipefail
cd "$(dirname "$0")/.."

out=${1:-${OUT:-live-check}}
python=${PYTHON:-python3}
device=${DEVICE:-auto}
dtype=${DTYPE:-auto}
model=${MODEL:-llama-3-8b}
ranks=${TP:-1}
requests=${REQUESTS:-50}
step_s=${STEP_S:-100}
total_s=${TOTAL_S:-235}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUTF8=1 PYTHONDONTWRITEBYTECODE=1 COLUMNS=100
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)}
mkdir -p "$out" || exit 2
: >"$out/log.txt"
: >"$out/summary.txt"
failed=0

# NAME COMMAND...: run it, keep what it prints, note how long it took and whether it worked.
step() {
  local name=$1 start=$SECONDS code=0 limit=$((total_s - SECONDS))
  ((limit <= step_s)) || limit=$step_s
  ((limit >= 1)) || limit=1
  shift
  printf '== %s: %s\n' "$name" "$*" >>"$out/log.txt"
  timeout --foreground "$limit" "$@" >"$out/$name.txt" 2>>"$out/log.txt" || code=$?
  local word=ok
  ((code == 0)) || word="FAILED ($code)" failed=1
  ((code == 124)) && word="FAILED (longer than $limit s)"
  printf '%-12s %4d s  %s\n' "$name" $((SECONDS - start)) "$word" | tee -a "$out/summary.txt"
  return "$code"
}

missing=$("$python" - <<'PY'
from importlib.util import find_spec
print(*(name for name in ("torch", "numpy", "scipy", "pyarrow", "typer", "rich", "msgspec") if find_spec(name) is None))
PY
) || exit 2
if [[ -n $missing ]]; then
  echo "live_check: $python lacks: $missing; install them, or put them on PYTHONPATH" | tee -a "$out/summary.txt" >&2
  exit 2
fi

step environment "$python" tools/live_check.py environment "$device" "$dtype" "$out/environment.json" || {
  tail -n 3 "$out/log.txt" >&2
  exit 2
}
on_cpu=$(grep -c '"kind": "cpu"' "$out/environment.json")
if ((on_cpu)); then grid=${GRID:-small}; else grid=${GRID:-full}; fi

step correctness "$python" tools/live_check.py correctness "$device" "$out/correctness.json"
step modes "$python" tools/live_check.py modes "$device" "$dtype" "$model" "$ranks" "$out/modes.json"

"$python" tools/live_check.py node "$ranks" "$out/local.toml" 2>>"$out/log.txt"
kernels=(--live-device "$device" --live-dtype "$dtype")
if [[ $grid != none ]]; then
  step calibrate "$python" -m mooncake_bench calibrate live --model "$model" --tensor-parallel "$ranks" \
    "${kernels[@]}" --grid "$grid" --rows "$out/rows.csv" -o "$out/node.toml" --force --format markdown
fi

trace=conversation-like
if ((on_cpu)); then
  trace=$out/short.jsonl
  "$python" tools/live_check.py trace "$requests" "$trace" 2>>"$out/log.txt"
fi
rm -rf "$out/live" "$out/analytic"
common=("$trace" --model "$model" --engine none --cluster 2P+2D --max-requests "$requests" --format markdown)
((on_cpu)) && common+=(--vram 16384)
step live "$python" -m mooncake_bench replay "${common[@]}" --node "$out/local.toml" --cost live "${kernels[@]}" \
  --live-repeat 3 --live-cache "$out/cache" --run-dir "$out/live"
if [[ -f $out/node.toml ]]; then
  step analytic "$python" -m mooncake_bench replay "${common[@]}" --node "$out/node.toml" --run-dir "$out/analytic"
  step compare "$python" -m mooncake_bench compare "$out/live" "$out/analytic" --format markdown
fi
printf '%-12s %4d s\n' total "$SECONDS" | tee -a "$out/summary.txt"
exit "$failed"
