"""Coverage-guided fuzzing of the trace readers, by hand: nothing but one line or a valid trace may come out.

``pip install atheris``, then ``python tests/fuzz_trace_reading.py [CORPUS] -max_total_time=60``. The first byte of an
input chooses the size of the pieces and whether columns are mapped; the rest is the file.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["mooncake_bench"]):
    from mooncake_bench.errors import BenchError
    from mooncake_bench.trace import load, pieces
    from mooncake_bench.trace.formats import all_formats

    list(all_formats())

from trace_files import MAPPING, SAMPLES

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-traces-"))


def one_input(data: bytes) -> None:
    """Read a file of any bytes."""
    choice, path = data[:1], FOLDER / "t"
    pieces.PIECE_BYTES = 2**24 if choice < b"\x80" else 40
    path.write_bytes(data[1:])
    try:
        trace = load(path, columns=MAPPING if choice and choice[0] % 2 else None)
    except BenchError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert len(trace) >= 1
        assert all("\n" not in notice for notice in trace.notices)


def main() -> None:
    """Start from the samples of every format."""
    seeds = FOLDER / "seeds"
    seeds.mkdir()
    for sample in SAMPLES:
        (seeds / sample.name).write_bytes((b"\x01" if sample.options else b"\x00") + sample.data)
    atheris.Setup([*sys.argv, str(seeds)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
