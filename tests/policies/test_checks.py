"""The generic suite finds what it is there to find, and a new policy's own test passes as written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mooncake_bench.checks import Check, check_file, template
from mooncake_bench.checks.template import KINDS, file_name
from mooncake_bench.errors import PolicyError

ROUTER = '''
import numpy as np
from mooncake_bench.api import Route, Router

class Mine(Router):
    """To instance 0."""
    name = "mine"
    def route(self, request, cluster):
        {body}
        return Route(prefill={prefill})
'''
EVICTION = '''
from mooncake_bench.api import Eviction

class Mine(Eviction):
    """Oldest first."""
    name = "mine"
    def open(self, capacity): self.order = dict()
    def insert(self, blocks, positions): self.order.update(dict.fromkeys(blocks))
    def evict(self, pinned):
        {evict}
    def remove(self, block): {remove}
'''
OLDEST = "victim = next(block for block in self.order if block not in pinned); del self.order[victim]; return victim"


def write(folder: Path, text: str) -> Path:
    path = folder / "ours.py"
    path.write_text(text, encoding="utf-8")
    return path


def router(folder: Path, body: str = "pass", prefill: str = "0") -> Path:
    return write(folder, ROUTER.format(body=body, prefill=prefill))


def eviction(folder: Path, evict: str = OLDEST, remove: str = "del self.order[block]") -> Path:
    return write(folder, EVICTION.format(evict=evict, remove=remove))


def faults(path: Path) -> list[Check]:
    return [check for check in check_file(path) if check.status != "passed"]


def only_fault(path: Path) -> tuple[str, str, str]:
    (found,) = faults(path)
    return found.status, found.name, found.detail


def test_ten_lines_of_a_stranger_pass(tmp_path: Path) -> None:
    assert faults(router(tmp_path)) == []
    assert faults(eviction(tmp_path)) == []


def test_file_that_cannot_be_loaded_is_a_result_and_not_an_exception(tmp_path: Path) -> None:
    status, name, detail = only_fault(write(tmp_path, "def broken(:\n"))
    assert (status, name) == ("failed", "can be loaded")
    assert detail.endswith("ours.py, line 1: SyntaxError: invalid syntax")


def test_decision_for_an_instance_of_the_wrong_role_fails(tmp_path: Path) -> None:
    status, name, detail = only_fault(router(tmp_path, prefill="int(np.flatnonzero(cluster.is_decode)[0])"))
    assert status == "failed"
    assert name == "decides validly on a small trace"
    assert "'mine'" in detail


def test_error_raised_by_a_policy_names_its_line(tmp_path: Path) -> None:
    path = router(tmp_path, body="1 / 0")
    status, _, detail = only_fault(path)
    assert status == "failed"
    assert "ZeroDivisionError: division by zero" in detail
    assert f"{path}, line 9" in detail


def test_router_that_remembers_across_runs_decides_differently_the_second_time(tmp_path: Path) -> None:
    # an attribute of a class from the standard library outlives the module of one run
    body = "import fractions; n = fractions.n = getattr(fractions, 'n', -1) + 1"
    status, name, detail = only_fault(router(tmp_path, body=body, prefill="n // 7 % 3"))
    assert (status, name) == ("failed", "decides alike when run twice")
    assert "prefill_instance of request" in detail


PEEK = """
        import sys
        frame, seen = sys._getframe(), 0
        while frame:
            for local in frame.f_locals.values():
                if local is not request and getattr(local, "row", None) == request.row:
                    seen = getattr(local, "output_tokens", None) or seen
            frame = frame.f_back
"""


def test_router_that_peeks_at_output_lengths_without_declaring_it_is_caught(tmp_path: Path) -> None:
    status, name, detail = only_fault(router(tmp_path, body=PEEK.strip(), prefill="seen % 3"))
    assert (status, name) == ("failed", "does not depend on output lengths before a finish")
    assert detail.startswith("permuting output lengths changed prefill_instance of request")


def test_clock_and_unseeded_draws_are_warned_about(tmp_path: Path) -> None:
    status, name, detail = only_fault(router(tmp_path, body="import time, random"))
    assert (status, name) == ("warning", "is repeatable")
    assert detail == "it imports random, time: use the rng given to start() and cluster.now_ms instead"


def test_imports_beyond_the_api_and_numpy_are_warned_about(tmp_path: Path) -> None:
    status, name, detail = only_fault(router(tmp_path, body="import scipy.stats, mooncake_bench.errors"))
    assert (status, name) == ("warning", "imports only the policy API")
    assert detail.startswith(
        "it imports mooncake_bench.errors, scipy.stats: a policy needs only mooncake_bench.api and numpy"
    )


@pytest.mark.parametrize("body", ["cluster.queue_ms[0] = 0", "cluster.cached_tokens(request)[:] = 1"])
def test_writing_into_the_view_fails(tmp_path: Path, body: str) -> None:
    status, name, detail = only_fault(router(tmp_path, body=body))
    assert (status, name) == ("failed", "leaves what it sees alone")
    assert "read-only" in detail


def test_forcing_the_view_writable_is_noticed(tmp_path: Path) -> None:
    body = "cluster.queue_ms.flags.writeable = True; cluster.queue_ms[0] += 1"
    assert only_fault(router(tmp_path, body=body)) == (
        "failed",
        "leaves what it sees alone",
        "it changed what it was shown: queue_ms",
    )


def test_class_without_a_docstring_fails_even_as_a_dataclass(tmp_path: Path) -> None:
    text = ROUTER.format(body="pass", prefill="0").replace('    """To instance 0."""\n', "")
    text = text.replace("class Mine", "import dataclasses\n@dataclasses.dataclass\nclass Mine")
    assert only_fault(write(tmp_path, text))[:2] == ("failed", "is documented")


EVICTS = "evicts only stored blocks that are not pinned"


def test_eviction_of_a_pinned_block_fails(tmp_path: Path) -> None:
    status, name, detail = only_fault(
        eviction(tmp_path, evict="victim = next(iter(self.order)); del self.order[victim]; return victim")
    )
    assert (status, name) == ("failed", EVICTS)
    assert "which is pinned" in detail


def test_eviction_that_names_a_block_twice_fails(tmp_path: Path) -> None:
    status, name, detail = only_fault(eviction(tmp_path, evict="return next(b for b in self.order if b not in pinned)"))
    assert (status, name) == ("failed", EVICTS)
    assert "which is not stored" in detail


def test_eviction_that_ignores_remove_fails(tmp_path: Path) -> None:
    status, name, detail = only_fault(eviction(tmp_path, remove="pass"))
    assert (status, name) == ("failed", EVICTS)
    assert "which is not stored" in detail


def test_eviction_that_loses_blocks_fails(tmp_path: Path) -> None:
    lossy = "self.order.update(dict.fromkeys(blocks))"
    text = EVICTION.format(evict=OLDEST, remove="del self.order[block]").replace(
        lossy, "self.order.update(dict.fromkeys(blocks[1:]))"
    )
    status, name, detail = only_fault(write(tmp_path, text))
    assert (status, name) == ("failed", EVICTS)
    assert "StopIteration" in detail


def test_declared_oracle_skips_the_check_on_the_future_and_says_so() -> None:
    skipped = [check for check in check_file("predictive-request") if check.status == "skipped"]
    assert [(check.name, check.detail) for check in skipped] == [
        ("does not depend on output lengths before a finish", "it declares oracle = True, which every report says")
    ]


def test_parameters_of_a_spec_are_checked_too(tmp_path: Path) -> None:
    assert {check.status for check in check_file("length-aware:bias=keep")} == {"passed"}
    (fault,) = [check for check in check_file("length-aware:bias=x") if check.status == "failed"]
    assert fault.name == "can be built"


# templates


@pytest.mark.parametrize("kind", KINDS)
def test_new_policy_and_its_test_pass_as_written(kind: str, tmp_path: Path) -> None:
    policy, test = template(kind, "my-own")
    (tmp_path / file_name("my-own")).write_text(policy, encoding="utf-8")
    (tmp_path / f"test_{file_name('my-own')}").write_text(test, encoding="utf-8")
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["route", "router", "none", "uuid", "A_b-3"])
def test_new_policy_of_an_awkward_name_passes_the_suite(kind: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / file_name(name)
    path.write_text(template(kind, name)[0], encoding="utf-8")
    assert faults(path) == []
    assert path.stem not in sys.stdlib_module_names


def test_new_router_is_ten_lines_below_its_docstring() -> None:
    lines = [line for line in template("router", "mine")[0].splitlines()[1:] if line.strip()]
    assert len(lines) == 10


def test_unknown_kind_and_unusable_name_are_refused() -> None:
    with pytest.raises(
        PolicyError,
        match=r"unknown policy kind 'routr'; did you mean 'router'\?; the kinds are router, admission, eviction",
    ):
        template("routr", "mine")
    with pytest.raises(PolicyError, match="policy name 'my policy': use a letter, then letters"):
        template("router", "my policy")


def test_name_of_another_policy_is_warned_about(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(template("router", "random")[0], encoding="utf-8")
    (warning,) = [check for check in check_file(path) if check.status == "warning"]
    assert warning.name == "has a name of its own"
    assert "uniform_random.py" in warning.detail


def test_ctrl_c_ends_the_checks_instead_of_blaming_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    source = template("router", "mine")[0].replace(
        "        cost =", "        if request.row == 100:\n            raise KeyboardInterrupt\n        cost ="
    )
    path.write_text(source, encoding="utf-8")
    with pytest.raises(KeyboardInterrupt):
        check_file(path)
