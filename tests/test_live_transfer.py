"""Real transfers: copies, gloo and Mooncake's transfer engine, data checked, time fitted against bytes.

The machine may be busy: nothing here says how fast it must be, and where noise hides that time grows with bytes, the
measurement is made again; three such tries fail.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_bench.errors import NothingToConclude
from mooncake_bench.hardware import links
from mooncake_bench.live.transfer import engine, measure
from mooncake_bench.live.transfer.peers import Peer, two_peers

if TYPE_CHECKING:
    from fault_tools import Tool

pytestmark = pytest.mark.live

SIZES = (2**16, 2**19, 2**22, 2**24)
REPEAT = 5
TRIES = 3


def need(problem: str) -> None:
    if problem:
        pytest.skip(problem)


@pytest.fixture
def needs_torch() -> None:
    pytest.importorskip("torch", reason="needs torch; pip install '.[live]'")


@pytest.fixture
def needs_engine() -> None:
    need(engine.problem())


def conclusive(via: str) -> list[measure.Measured]:
    """All links of a way, each of them fitted."""
    for _ in range(TRIES):
        try:
            found = measure.measure([via], SIZES, REPEAT, "cpu", lambda *done: None)
        except NothingToConclude as reason:
            if "does not grow" not in str(reason):
                raise
            continue
        if all(one.fit for one in found):
            return found
    raise AssertionError(f"{via}: inconclusive {TRIES} times")


def assert_sound(found: list[measure.Measured], names: list[str]) -> None:
    assert [one.link.name for one in found] == names
    for one in found:
        assert len(one.link.ms) == len(SIZES) * REPEAT
        assert [size.nbytes for size in one.sizes] == list(SIZES)
        assert min(one.link.ms) > 0
        assert one.fit is not None
        assert one.fit.latency_ms >= 0
        assert 0.001 < one.fit.gbytes_per_s < 10_000  # slower than a modem, faster than any memory: a wrong unit
        assert one.fit.left_out_p90 >= one.fit.left_out_median >= 0


def test_the_transfer_engine_moves_data_between_two_processes_and_time_fits_bytes(needs_engine: None) -> None:
    assert_sound(conclusive("engine"), ["engine-write", "engine-read"])


def test_gloo_moves_data_between_two_processes_and_time_fits_bytes(needs_torch: None) -> None:
    found = conclusive("gloo")
    assert_sound(found, ["gloo", "gloo-send", "gloo-receive"])
    whole, sent, received = (one.link.ms for one in found)
    # the receiver asks before the sender starts, and both end clocks stop at or after what the whole is made of
    assert all(there <= asked for there, asked in zip(whole, received, strict=True))
    assert min(sent) > 0


def test_copies_on_a_cpu_say_that_they_stand_for_a_device(needs_torch: None) -> None:
    found = conclusive("copy")
    assert_sound(found, ["host-host"])
    assert "stands for host to device and back: there is no device" in found[0].link.description


def test_a_gpu_that_is_not_there_is_one_line_that_names_the_option(tool: Tool, needs_torch: None) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, out, err = tool("calibrate", "transfer", "--via", "copy", "--device", "cuda")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "sees no GPU" in err
    assert "use --device cpu" in err


ENDS = (("holder", "mover"), "mooncake_bench.live.transfer.engine", "main")


def test_the_transfer_engines_bytes_arrive_where_they_should_and_nowhere_else(needs_engine: None) -> None:
    """Written and read by hand, with a size that is no multiple of anything."""
    with two_peers(*ENDS) as (holder, mover):
        there = holder.ask("open", capacity=100_003)
        mover.ask("open", capacity=100_003)
        mover.ask("meet", target=f"127.0.0.1:{there['port']}", address=there["address"])
        holder.ask("wipe", nbytes=100_003)
        mover.ask("fill", seed=1, nbytes=100_003)
        mover.ask("move", kind="write", nbytes=99_001)
        assert holder.ask("check", seed=1, nbytes=99_001) == {"fault": ""}
        # the rest was not sent: of 1,002 bytes of the pattern about 1 in 256 is as the wiped buffer by chance
        told = holder.ask("check", seed=1, nbytes=100_003)["fault"]
        assert told.startswith(tuple(f"{wrong:,} of 100,003 bytes are wrong" for wrong in range(970, 1003)))
        mover.ask("fill", seed=2, nbytes=100_003)
        mover.ask("move", kind="read", nbytes=99_001)
        assert mover.ask("check", seed=2, nbytes=99_001)["fault"] != ""  # overwritten by what the holder has
        assert holder.ask("check", seed=1, nbytes=99_001) == {"fault": ""}  # a read changes nothing there


def test_a_transfer_that_fails_says_so_with_the_engines_own_words(needs_engine: None) -> None:
    with two_peers(*ENDS) as (holder, mover):
        there = holder.ask("open", capacity=1000)
        mover.ask("open", capacity=1000)
        mover.ask("meet", target=f"127.0.0.1:{there['port']}", address=there["address"] + (1 << 40))
        with pytest.raises(NothingToConclude, match=r"^mover: RuntimeError: transfer_sync_write returned -1; it print"):
            mover.ask("move", kind="write", nbytes=1000)
        holder.close()
        mover.ask("meet", target=f"127.0.0.1:{there['port']}", address=there["address"])
        with pytest.raises(NothingToConclude, match="transfer_sync_read returned -1"):
            mover.ask("move", kind="read", nbytes=1000)


def test_wrong_data_is_never_timed(needs_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiving process is told to expect another seed's bytes than were sent."""
    honest = Peer.ask

    def other_seed(peer: Peer, command: str, *moved: int, **given: Any) -> dict[str, Any]:
        return honest(peer, command, *moved, **given | ({"seed": 0} if command == "check" else {}))

    monkeypatch.setattr(Peer, "ask", other_seed)
    with pytest.raises(NothingToConclude, match=r"^transfer engine, write of 65,536 bytes: 65,\d\d\d of 65,536 bytes"):
        engine.measure(SIZES, REPEAT, lambda: None)


def test_the_command_measures_prints_and_writes_a_links_file(
    tool: Tool, needs_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--via", "engine", "--sizes", "64KiB,1MiB,16MiB", "--repeat", "5", "-o", "links.toml", "--force"]
    for _ in range(TRIES):
        code, out, err = tool("calibrate", "transfer", *words, "--format", "json")
        if code != 3:
            break
    assert (code, err) == (0, "written: links.toml\n")  # nothing of what the engine logs
    found = {one["name"]: one for one in json.loads(out)["links"]}
    assert set(found) == {"engine-write", "engine-read"}
    monkeypatch.setattr(links, "_FILE", Path("links.toml"))
    for name in links.link_names():
        assert links.load_link(name).gbytes_per_s == pytest.approx(found[name]["gbytes_per_s"], rel=1e-3)
        assert "mooncake-transfer-engine" in links.load_link(name).source


def children_of(pid: int) -> list[int]:
    """Linux: processes whose parent is this one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def test_ctrl_c_leaves_130_no_file_and_no_process(tool: Tool, needs_engine: None) -> None:
    words = ["calibrate", "transfer", "--via", "engine", "--sizes", "1KiB,1MiB,64MiB", "--repeat", "5000"]
    command = [sys.executable, "-m", "mooncake_bench", *words, "-o", "links.toml"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(children := children_of(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # somewhere in the transfers, or on the way to them
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"mooncake-bench: interrupted\n")
    assert list(Path().iterdir()) == []
    assert len(children) == 2
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
