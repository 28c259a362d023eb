"""A trace sampled from ServeGen's client files: each client's arrivals by its own rates and gaps, all added up.

A client's arrivals are one renewal process in operational time: a gap has mean 1 and the distribution of the window
in which it begins, and time passes at the window's rate. So the expected number of requests is the sum of rate times
time over all windows, whatever the gaps' distribution, and a gap may span windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.errors import SetupError, TraceError
from mooncake_bench.trace.model import DEFAULT_BLOCK_TOKENS
from mooncake_bench.trace.schema import RawColumns, finish
from mooncake_bench.trace.synthetic import draws
from mooncake_bench.trace.synthetic.blocks import check_count
from mooncake_bench.trace.synthetic.draws import Draws
from mooncake_bench.trace.synthetic.servegen_files import LENGTHS_WINDOW_S, MEDIA, MOST_ITEMS, WINDOW_S, clients

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_bench.trace.model import Floats, Ints, Trace
    from mooncake_bench.trace.synthetic.servegen_files import Client, Pmf, Window

VERSION = "1"
BURN_IN = 30.0  # gaps, and as many times their squared variation, before the first window
MOST_REQUESTS = 100_000_000


@dataclass(frozen=True)
class Piece:
    """A part of one window: time in s from the trace's start, rate in requests/s."""

    start_s: float
    end_s: float
    rate_rps: float
    window: Window


def sample(
    folder: str | Path,
    chosen: str | None = None,
    start_ms: float = 0.0,
    duration_ms: float = 3_600_000.0,
    rate_rps: float | None = None,
    seed: int = 0,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
) -> Trace:
    """A trace of what the clients send from ``start_ms`` on; with ``rate_rps`` all rates are scaled to that mean.

    Its blocks have ids of their own (``prefix_ids`` is ``none``), for the files do not say what prompts share.
    Raises TraceError for a bad client file, SetupError for a time that they do not cover or without requests.
    """
    start_s, length_s = start_ms / 1000, duration_ms / 1000
    timetable = {client: _pieces(client, start_s, length_s) for client in clients(folder, chosen)}
    expected = sum(_expected(pieces) for pieces in timetable.values())
    if not expected:
        raise SetupError(f"--servegen {str(folder)!r}: the clients send nothing in that time; choose another --start")
    scale = 1.0 if rate_rps is None else rate_rps * length_s / expected
    if expected * scale > MOST_REQUESTS:
        raise SetupError(
            f"{expected * scale:,.0f} requests are more than {MOST_REQUESTS:,}; choose a shorter --duration"
        )
    parts = [
        _Sampler(client, Draws(seed, f"servegen/{client.number}"), start_s).draw_all(pieces, scale)
        for client, pieces in timetable.items()
    ]
    times, inputs, outputs = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(times, kind="stable")
    facts = {
        "source": f"synthetic: mooncake-bench traces synth --servegen, version {VERSION}",
        "about": f"sampled from {len(timetable)} ServeGen clients, from {start_s:g} s for {length_s:g} s",
        "seed": str(seed),
        "prefix_ids": "none",
    }
    return _trace(times[order], inputs[order], outputs[order], block_tokens, facts)


def _trace(times_s: Floats, inputs: Ints, outputs: Ints, block_tokens: int, facts: dict[str, str]) -> Trace:
    if not len(times_s):
        raise SetupError("0 requests were drawn; give a longer --duration or a higher --rate")
    notices = []
    for side, column in (("prompts", inputs), ("answers", outputs)):
        empty = int((column < 1).sum())
        if empty:
            notices.append(f"{empty:,} {side} of 0 tokens, as the client files have them, are given 1 token")
    inputs, outputs = np.maximum(inputs, 1), np.maximum(outputs, 1)
    offsets = np.zeros(len(inputs) + 1, np.int64)
    np.cumsum(-(-inputs // block_tokens), out=offsets[1:])
    check_count(int(offsets[-1]))
    raw = RawColumns(
        label="synthetic trace 'servegen'",
        timestamp=np.rint(times_s * 1e9) / 1e6,
        input_tokens=inputs,
        output_tokens=outputs,
        block_offsets=offsets,
        block_ids=np.arange(offsets[-1]),
        metadata=facts,
        notices=notices,
    )
    return finish(raw, "servegen", block_tokens, "ms")


def _pieces(client: Client, start_s: float, length_s: float) -> list[Piece]:
    """The client's windows cut to the wanted time, and at the edges of the windows of lengths."""
    windows = client.windows()
    for before, after in pairwise(windows):
        if after.start_s != before.start_s + WINDOW_S:
            found = f"a window at {after.start_s:g} s after one at {before.start_s:g} s"
            raise TraceError(f"{client.trace_path}: found {found}; expected windows {WINDOW_S} s apart")
    first, last, end_s = windows[0].start_s, windows[-1].start_s + WINDOW_S, start_s + length_s
    if not first <= start_s < end_s <= last:
        found = f"{start_s:g} s to {end_s:g} s"
        raise SetupError(
            f"{client.trace_path} covers {first:g} s to {last:g} s; found {found}: change --start, --duration"
        )
    assert LENGTHS_WINDOW_S % WINDOW_S == 0
    cut = [(window, max(start_s, window.start_s), min(end_s, window.start_s + WINDOW_S)) for window in windows]
    return [
        Piece(low - start_s, high - start_s, window.rate_rps, window)
        for window, low, high in cut
        if low < high and window.rate_rps > 0
    ]


def _expected(pieces: list[Piece]) -> float:
    return sum(piece.rate_rps * (piece.end_s - piece.start_s) for piece in pieces)


class _Sampler:
    """One client's requests."""

    def __init__(self, client: Client, draw: Draws, start_s: float) -> None:
        self.client, self.draw, self.start_s = client, draw, start_s

    def draw_lengths(self, times_s: Floats) -> tuple[Ints, Ints]:
        """Input and output tokens of requests at these times."""
        window = ((times_s + self.start_s) // LENGTHS_WINDOW_S).astype(np.int64)
        text = self.draw("input", len(times_s)), self.draw("output", len(times_s))
        inputs, outputs = np.zeros(len(times_s), np.int64), np.zeros(len(times_s), np.int64)
        for number in np.unique(window).tolist():
            rows = np.flatnonzero(window == number)
            at = number * LENGTHS_WINDOW_S
            whole = self.client.pmf(at, "input_tokens", optional=True)
            if whole is not None:
                inputs[rows] = whole(text[0][rows])
            else:
                inputs[rows] = self._pmf(at, "text_tokens")(text[0][rows])
                for medium in MEDIA:
                    inputs[rows] += self._items(at, medium, len(rows))
            outputs[rows] = self._pmf(at, "output_tokens")(text[1][rows])
        return inputs, outputs

    def _pmf(self, at_s: float, field: str) -> Pmf:
        found = self.client.pmf(at_s, field)
        assert found is not None
        return found

    def _items(self, at_s: float, medium: str, count: int) -> Ints:
        """Tokens of the images (sounds, films) of each request; every one has a size of its own."""
        how_many = self.client.pmf(at_s, f"{medium}_count", optional=True)
        size = self.client.pmf(at_s, f"{medium}_tokens", optional=True)
        if how_many is None or size is None:
            return np.zeros(count, np.int64)
        if how_many.values.max() > MOST_ITEMS:
            raise TraceError(
                f"{self.client.lengths_path}, field '{medium}_count': found more than {MOST_ITEMS:,} items"
            )
        items = how_many(self.draw(f"{medium} count/{at_s:g}", count))
        sizes = np.concatenate(([0], np.cumsum(size(self.draw(f"{medium} size/{at_s:g}", int(items.sum()))))))
        ends = np.cumsum(items)
        total: Ints = sizes[ends] - sizes[ends - items]
        return total

    def draw_times(self, pieces: list[Piece], scale: float) -> Floats:
        """Arrival times in s from the trace's start, at ``scale`` times the pieces' rates."""
        if not pieces:
            return np.empty(0)
        variation = _squared_cv(pieces[0].window)
        rest = self._points("before", pieces[0].window, 0.0, BURN_IN * (1 + variation))[1]
        found = []
        for piece in pieces:
            rate = piece.rate_rps * scale
            name = f"{piece.window.start_s:g}"
            points, rest = self._points(name, piece.window, rest, rate * (piece.end_s - piece.start_s))
            found.append(piece.start_s + points / rate)
        return np.concatenate(found)

    def _points(self, name: str, window: Window, first: float, length: float) -> tuple[Floats, float]:
        """The points of the process before ``length``, the first at ``first``; and how far beyond the next one is."""
        if first >= length:
            return np.empty(0), first - length
        size = int(length + 10 * np.sqrt(length * max(1.0, _squared_cv(window)))) + 100
        while True:
            uniform = self.draw(f"gap/{name}", size)
            shaped = draws.gamma_of if window.pattern == "Gamma" else draws.weibull_of
            points = first + np.concatenate(([0.0], np.cumsum(shaped(uniform, window.shape))))
            if points[-1] >= length:
                end = int(np.searchsorted(points, length, side="left"))
                return points[:end], float(points[end]) - length
            size *= 2

    def draw_all(self, pieces: list[Piece], scale: float) -> tuple[Floats, Ints, Ints]:
        """Times (s) and lengths of the client's requests."""
        times = self.draw_times(pieces, scale)
        return times, *self.draw_lengths(times)


def _squared_cv(window: Window) -> float:
    """Variance of the gaps over their squared mean."""
    if window.pattern == "Gamma":
        return 1 / window.shape
    from scipy.special import gammaln

    return float(np.exp(gammaln(1 + 2 / window.shape) - 2 * gammaln(1 + 1 / window.shape)) - 1)
