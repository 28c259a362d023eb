"""Time and peak memory of converting and replaying a large synthetic trace, as Markdown.

    python tools/large_trace.py 500000 5000000
    python tools/large_trace.py 5000000 --policy cache-aware --folder /path/with/room

Each size is made (sessions of four turns behind eight system prompts, about six blocks and 2,800 prompt tokens a
request, 150 output tokens, 20 requests/s: a moderate load for 8P+8D), read and written again, and replayed, each in a
process of its own. Everything is deleted afterwards. Temporary columns go to TMPDIR: about 1 kB a request.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REQUESTS_PER_S = 20.0
TURNS = 4
SYSTEM_PROMPTS = 8
BLOCK_TOKENS = 512
IDS = 16  # set aside for each session: ten for what its turns share, then one for the partial end of each turn
CONVERT = "import sys; from mooncake_bench.trace import load, save; save(load(sys.argv[1]), sys.argv[2])"


def make(requests: int, path: str) -> None:
    """Write a trace of so many requests."""
    import numpy as np

    from mooncake_bench import spool
    from mooncake_bench.trace import save
    from mooncake_bench.trace.schema import RawColumns, finish

    rng = np.random.default_rng(requests)
    sessions = -(-requests // TURNS)
    begin = np.cumsum(rng.exponential(1000 * TURNS / REQUESTS_PER_S, sessions))
    waits = np.cumsum(rng.exponential(60_000, (sessions, TURNS)), axis=1)
    arrival = np.round((begin[:, None] + waits).ravel()[:requests], 3)
    order = np.argsort(arrival, kind="stable")
    session, turn = order // TURNS, order % TURNS
    counts = 3 + 2 * turn  # a system prompt, what came before, and what is new
    ids = spool.Growing(np.int64)
    for part in spool.parts(requests):
        here = counts[part]
        place = np.arange(here.sum()) - np.repeat(np.cumsum(here) - here, here)
        base = np.repeat(SYSTEM_PROMPTS + IDS * session[part], here)
        last = place == np.repeat(here, here) - 1
        own = base + np.where(last, IDS - TURNS + np.repeat(turn[part], here), place)
        ids.append(np.where(place == 0, np.repeat(session[part] % SYSTEM_PROMPTS, here), own))
    raw = RawColumns(
        label="large trace",
        timestamp=arrival[order],
        input_tokens=(counts - 1) * BLOCK_TOKENS + rng.integers(1, BLOCK_TOKENS + 1, requests),
        output_tokens=rng.integers(20, 281, requests),
        block_offsets=np.concatenate(([0], np.cumsum(counts))),
        block_ids=ids.column(),
        session_id=session,
    )
    save(finish(raw, f"large-{requests}", BLOCK_TOKENS, "ms"), path)


def measured(*arguments: str) -> tuple[float, float, float]:
    """Wall seconds, process seconds and peak MiB of a Python process. Raises SystemExit when it fails."""
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(child.returncode)
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main(given: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requests", nargs="+", type=int, help="sizes of the traces, such as 5000000")
    parser.add_argument("--policy", default="kvcache-centric", help="policy SPEC [default: kvcache-centric]")
    parser.add_argument("--folder", type=Path, help="where traces and runs lie meanwhile [default: TMPDIR]")
    parser.add_argument("--make", help=argparse.SUPPRESS)  # the trace's file: what the process of that does
    options = parser.parse_args(given)
    if options.make:
        make(options.requests[0], options.make)
        return 0
    print("| requests | file, MB | step | wall s | CPU s | CPU µs a request | peak MiB |\n|" + "---|" * 7)
    for requests in options.requests:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            first, second = f"{folder}/first.arrow", f"{folder}/second.arrow"
            steps = {
                "make": (__file__, str(requests), "--make", first),
                "convert": ("-c", CONVERT, first, second),
                "replay": ("-m", "mooncake_bench", "replay", second, "-p", options.policy, "-q", "--out", folder),
            }
            for name, arguments in steps.items():
                wall_s, cpu_s, peak_mib = measured(*arguments)
                size = Path(first).stat().st_size / 1e6
                numbers = f"{wall_s:.1f} | {cpu_s:.1f} | {1e6 * cpu_s / requests:.0f} | {peak_mib:,.0f}"
                print(f"| {requests:,} | {size:,.1f} | {name} | {numbers} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
