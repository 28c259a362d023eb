"""One run: its manifest and tables, in memory or in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.results import advice, manifest, metrics, store
from mooncake_bench.results.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from mooncake_bench.results.facts import Rejections
    from mooncake_bench.results.metrics import Value
    from mooncake_bench.results.steps import Bools
    from mooncake_bench.sim.replay import Replay


class Run:
    """What a replay did: ``requests``, ``timeline``, ``segments`` and ``stays`` (Arrow tables), ``manifest`` (dict).

    The tables of a stored run are read when first asked for. ``run.requests.to_pandas()`` gives a data frame.
    """

    def __init__(self, manifest: dict[str, Any], tables: dict[str, pa.Table], path: Path | None = None) -> None:
        self.manifest = manifest
        self.path = path
        self._tables = tables
        self._metrics: dict[str, Value] | None = None

    @classmethod
    def from_replay(
        cls, replay: Replay, *, wall_s: float | None = None, name: str | None = None, trace_path: str | None = None
    ) -> Run:
        """A run, not yet stored, from what the simulator kept.

        ``wall_s`` is how long the replay took, ``name`` groups runs, ``trace_path`` is how the user named the trace.
        Raises InvariantError when the replay contradicts itself.
        """
        from mooncake_bench.results.invariants import check
        from mooncake_bench.results.records import Records
        from mooncake_bench.results.timeline import timeline

        records = Records.of(replay)
        check(records)
        tables = {
            "requests": records.requests(),
            "timeline": timeline(records),
            "segments": records.segment_table(),
            "stays": records.stay_table(),
        }
        run = cls(manifest.build(replay, tables, wall_s=wall_s, name=name, trace_path=trace_path), tables)
        run.manifest["notices"] = [*replay.trace.notices, *advice.notices(run)]
        return run

    def save(self, out_dir: str | Path = store.OUT, *, run_dir: str | Path | None = None) -> Path:
        """Store the run in the next free number of ``out_dir``, or in exactly ``run_dir``; returns its folder.

        Raises ResultError when the folder exists or cannot be written.
        """
        tables = {name: self._table(name) for name in store.TABLES}
        self.path = store.write_run(self.manifest, tables, out_dir, None if run_dir is None else Path(run_dir))
        return self.path

    def __repr__(self) -> str:
        trace, where = self.manifest["trace"]["name"], self.path or "not stored"
        return f"Run({self.label!r} on {trace!r}, {self.manifest['status']}, {where})"

    @property
    def label(self) -> str:
        """The policy's label."""
        return str(self.manifest["policy"]["label"])

    @property
    def interrupted(self) -> bool:
        """True when the replay was stopped before its end."""
        return bool(self.manifest["status"] == "interrupted")

    @property
    def completed_requests(self) -> int:
        """How many requests completed, warm-up included."""
        return int(self.manifest["counts"]["completed"])

    @property
    def requests(self) -> pa.Table:
        """One row a request."""
        return self._table("requests")

    @property
    def timeline(self) -> pa.Table:
        """Both pools, sampled over time."""
        return self._table("timeline")

    @property
    def segments(self) -> pa.Table:
        """Decode stretches at constant batch, integer ps."""
        return self._table("segments")

    @property
    def stays(self) -> pa.Table:
        """Each request's times in a decode batch, integer ps."""
        return self._table("stays")

    @property
    def notices(self) -> list[str]:
        """What a person should know before believing the numbers, one line each."""
        return advice.notices(self)

    def metrics(self, where: Bools | None = None) -> dict[str, Value]:
        """Every metric by name; with ``where`` (one truth a row of ``requests``), over those requests only."""
        if where is not None:
            return metrics.compute(Facts(self.manifest, self, where))
        if self._metrics is None:
            self._metrics = metrics.compute(Facts(self.manifest, self))
        return self._metrics

    def rejections(self) -> list[Rejections]:
        """The rejected requests by stage and reason, most frequent first (warm-up left out)."""
        return Facts(self.manifest, self).rejections()

    def summary(self) -> str:
        """The run in a few lines of plain text."""
        from mooncake_bench.results.summary import summary

        return summary(self)

    def _table(self, name: str) -> pa.Table:
        if name not in self._tables:
            assert self.path is not None
            self._tables[name] = store.read_table(self.path, name, self.manifest)
        return self._tables[name]


def open_run(path: str | Path) -> Run:
    """The run stored in a folder. Raises ResultError when it is missing, damaged, or of a newer format."""
    folder = Path(path)
    return Run(store.read_manifest(folder), {}, folder)


def open_runs(references: Sequence[str], out_dir: str | Path = store.OUT) -> list[Run]:
    """The runs meant by folders, numbers, names or ``@last:N``. Raises ResultError for one that means nothing."""
    return [open_run(folder) for folder in store.resolve_runs(references, out_dir)]
