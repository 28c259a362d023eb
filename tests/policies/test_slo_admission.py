"""Rule 9 by hand. A step of the still cluster takes 10 ms + 1 ms a request + 0.001 ms a context token.

Every request here has 999 prompt tokens, so 1000 once it decodes: a batch of k of them steps in 10 + 2k ms.
Instances 0-1 prefill, 2-3 decode (2 alone where ``decode=1``); the candidate decodes on 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mooncake_bench.api import Request, Route
from mooncake_bench.checks import Scene
from mooncake_bench.plugins import build

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.api import Admission

REQUEST = Request(row=77, arrival_ms=100.0, input_tokens=999, blocks=(0, 1), output_tokens=5)
ROUTE = Route(prefill=0, decode=2, ttft_ms=50.0)  # at now = 100 its prefill ends at 150
TOKENS = 1000


def admission(spec: str) -> Admission:
    built = build(spec).admission
    built.start(Scene(), np.random.default_rng(0))
    return built


def scene(
    joined: Sequence[float] = (), waiting: Sequence[float] = (), promised: Sequence[float] = (), **changes: Any
) -> Scene:
    """At 100 ms, requests of 1000 tokens on instance 2, by when they joined, their KV arrived, their prefill ends."""
    known = {
        "joined_rows": [(2, since, TOKENS) for since in joined],
        "waiting_rows": [(2, since, TOKENS) for since in waiting],
        "promised_rows": [(2, since, TOKENS) for since in promised],
        "batch": [len(joined)],
        "context": [len(joined) * TOKENS],
        "decode": 1,
        "now_ms": 100.0,
    }
    return Scene(**(known | changes))


def counted(policy: Admission, **known: Any) -> int:
    """How many requests the decode check counts, the candidate included: the SLO at which it starts to reject tells."""
    for count in range(1, 20):
        if policy.reject(REQUEST, ROUTE, scene(**known, tbt_slo_ms=10.0 + 2 * count)) is None:
            assert policy.reject(REQUEST, ROUTE, scene(**known, tbt_slo_ms=10.0 + 2 * count - 0.001)) == "tbt"
            return count
    raise AssertionError("it always rejects")


ALL = ["baseline", "early", "early:recheck=true", "predictive", "predictive:td=12s", "predictive-request"]


@pytest.mark.parametrize("spec", ALL)
def test_a_ttft_over_its_slo_rejects_at_arrival_and_one_equal_to_it_does_not(spec: str) -> None:
    policy = admission(spec)
    assert policy.reject(REQUEST, ROUTE, scene(ttft_slo_ms=50.0)) is None
    assert policy.reject(REQUEST, ROUTE, scene(ttft_slo_ms=49.999)) == "ttft"


# the check at the decode instance


@pytest.mark.parametrize("spec", ["baseline", "early:recheck=true", "predictive:td=12s,recheck=true"])
def test_the_check_at_kv_arrival_counts_decoding_waiting_and_itself_on_its_own_instance(spec: str) -> None:
    policy = admission(spec)
    # 1 decoding + 1 waiting + itself = 3: a step of 16 ms; the promised one is not there yet, instance 3 is not asked
    known: dict[str, Any] = {"joined": [0], "waiting": [90], "promised": [95], "decode": 2}
    known |= {"batch": [1, 50], "context": [1000, 900_000]}
    assert policy.reject_decode(REQUEST, ROUTE, scene(**known, tbt_slo_ms=16.0)) is None
    assert policy.reject_decode(REQUEST, ROUTE, scene(**known, tbt_slo_ms=15.999)) == "tbt"
    # 3000 tokens in all
    assert policy.reject_decode(REQUEST, ROUTE, scene(**known, vram=3000)) is None
    assert policy.reject_decode(REQUEST, ROUTE, scene(**known, vram=2999)) == "vram"


@pytest.mark.parametrize("spec", ["early", "predictive:td=12s", "predictive", "predictive-request"])
def test_without_recheck_nothing_is_rejected_at_kv_arrival(spec: str) -> None:
    assert admission(spec).reject_decode(REQUEST, ROUTE, scene(tbt_slo_ms=0.001)) is None


def test_baseline_does_not_look_at_decode_at_arrival() -> None:
    assert admission("baseline").reject(REQUEST, ROUTE, scene(joined=[0] * 9, tbt_slo_ms=0.001)) is None


# early


def test_early_counts_who_decodes_or_waits_now_and_the_candidate_but_not_the_promised() -> None:
    assert counted(admission("early"), joined=[0, 0], waiting=[90], promised=[95, 120]) == 4


def test_early_takes_the_mean_over_the_pool_and_an_idle_instance_counts_as_zero() -> None:
    policy = admission("early")
    # instance 2: 1 decoding + the candidate, a step of 14 ms; instance 3 idle: the mean is 7 ms over the SLO
    known: dict[str, Any] = {"joined": [0], "decode": 2}
    assert policy.reject(REQUEST, ROUTE, scene(**known, tbt_slo_ms=7.0)) is None
    assert policy.reject(REQUEST, ROUTE, scene(**known, tbt_slo_ms=6.999)) == "tbt"


def test_early_takes_each_instance_at_the_worse_of_step_and_memory_before_the_mean() -> None:
    policy = admission("early")
    # instance 2, the candidate alone: step 12 / 24 = .5, memory 1000 / 4000 = .25;
    # instance 3, 2 requests of 6000 tokens in all: step 18 / 24 = .75, memory 6000 / 4000 = 1.5
    # the mean of the worse is (.5 + 1.5) / 2 = 1: admitted; of 4000 tokens one less, and memory weighs more in all
    known: dict[str, Any] = {"decode": 2, "batch": [0, 2], "context": [0, 6000], "tbt_slo_ms": 24.0}
    assert policy.reject(REQUEST, ROUTE, scene(**known, vram=4000)) is None
    assert policy.reject(REQUEST, ROUTE, scene(**known, vram=3999)) == "vram"


# predictive: at 150 ms, td = 60 ms


def test_predictive_lets_a_joined_request_leave_td_after_its_join() -> None:
    # 90 + 60 <= 150 has left; 90.5 + 60 > 150 has not
    assert counted(admission("predictive:td=60ms"), joined=[10, 90, 90.5, 99]) == 2 + 1


def test_predictive_counts_a_promised_request_from_its_prefill_end_until_td_later() -> None:
    # 80 + 60 and 90 + 60 have come and gone; 91 and 150 are there; 150.5 is still in prefill
    assert counted(admission("predictive:td=60ms"), promised=[80, 90, 91, 150, 150.5]) == 2 + 1


def test_predictive_counts_a_waiting_request_from_its_kv_arrival() -> None:
    assert counted(admission("predictive:td=60ms"), waiting=[90, 90.5, 100]) == 2 + 1


def test_predictive_reads_td_as_a_duration_and_bare_numbers_as_ms() -> None:
    # joined at 10: gone at 150 when td = 140 ms
    assert counted(admission("predictive:td=0.14s"), joined=[10]) == 1
    assert counted(admission("predictive:td=140"), joined=[10]) == 1
    assert counted(admission("predictive:td=140.1ms"), joined=[10]) == 2


def finish(policy: Admission, times: int, duration_ms: float, first_row: int = 0) -> None:
    """Tell it of requests that joined at 0 and finished after ``duration_ms``."""
    for row in range(first_row, first_row + times):
        policy.on_event("first_token", row, Scene(now_ms=0.0))
        policy.on_event("joined", row, Scene(now_ms=0.0))
        policy.on_event("finished", row, Scene(now_ms=duration_ms))


def test_predictive_with_an_ewma_acts_as_early_until_twenty_completions() -> None:
    policy = admission("predictive")
    finish(policy, 19, 60.0)
    assert counted(policy, joined=[90], promised=[120]) == 1 + 1  # early: who decodes now, none in prefill
    finish(policy, 1, 60.0, first_row=19)
    assert counted(policy, joined=[90], promised=[120]) == 1 + 1  # td = 60: joined has left, promised has come
    assert counted(policy, joined=[90], promised=[]) == 1


def test_predictive_with_an_ewma_gives_the_newest_decode_a_tenth() -> None:
    policy = admission("predictive")
    finish(policy, 19, 60.0)
    finish(policy, 1, 160.0, first_row=19)
    # td = 60 + (160 - 60) / 10 = 70: at 150, 80 + 70 has left and 80.5 + 70 has not
    assert counted(policy, joined=[80, 80.5]) == 1 + 1


def test_predictive_learns_nothing_from_requests_that_never_decoded() -> None:
    policy = admission("predictive")
    for row in range(30):  # answers of one token, and rejections
        policy.on_event("finished" if row % 2 else "rejected", row, Scene(now_ms=1.0))
    assert counted(policy, joined=[0]) == 1 + 1  # still early


def test_predictive_measures_from_the_last_join_of_a_preempted_request() -> None:
    policy = admission("predictive")
    finish(policy, 19, 60.0)
    policy.on_event("joined", 19, Scene(now_ms=0.0))
    policy.on_event("joined", 19, Scene(now_ms=940.0))
    policy.on_event("finished", 19, Scene(now_ms=1000.0))
    assert counted(policy, joined=[90, 90.5]) == 1 + 1  # td is 60 still


# the oracle of request-level prediction


def admit(policy: Admission, row: int, output_tokens: int, **known: Any) -> None:
    """A request of 999 tokens is admitted at 100 ms; its prefill is to end at 150."""
    request = REQUEST._replace(row=row, output_tokens=output_tokens)
    assert policy.reject(request, ROUTE, scene(**known)) is None


def test_predictive_request_counts_a_request_for_its_own_steps_at_the_current_step_time() -> None:
    policy = admission("predictive-request")
    for row, output_tokens in ((1, 6), (2, 7), (3, 50)):
        admit(policy, row, output_tokens)
        policy.on_event("first_token", row, scene(now_ms=88.0))
        policy.on_event("joined", row, scene(now_ms=90.0))
    # the batch of 1 steps in 12 ms: from 90, 5 steps end at 150 and are over, 6 steps end at 162, 49 later
    known: dict[str, Any] = {"batch": [1], "context": [1000]}
    # the two that stay have done (100 - 90) / 12 steps by now, which lengthens their contexts by 2 * 0.83 tokens
    slo_ms = 10 + 3 + 0.001 * (3 * 1000 + 2 * 10 / 12)
    assert policy.reject(REQUEST, ROUTE, scene(**known, tbt_slo_ms=slo_ms + 1e-9)) is None
    policy = admission("predictive-request")
    for row, output_tokens in ((1, 6), (2, 7), (3, 50)):
        admit(policy, row, output_tokens)
        policy.on_event("joined", row, scene(now_ms=90.0))
    assert policy.reject(REQUEST, ROUTE, scene(**known, tbt_slo_ms=slo_ms - 1e-9)) == "tbt"


def test_predictive_request_counts_the_promised_from_the_end_of_their_prefill() -> None:
    policy = admission("predictive-request")
    admit(policy, 1, 50)  # predicted to end at 150: there at 150
    later = ROUTE._replace(ttft_ms=49.0)  # the candidate's prefill ends at 149: row 1 is not there yet
    assert policy.reject(REQUEST, later, scene(tbt_slo_ms=12.0)) is None
    policy.on_event("rejected", REQUEST.row, scene())
    assert policy.reject(REQUEST, ROUTE, scene(tbt_slo_ms=13.999)) == "tbt"


def test_predictive_request_forgets_who_finished_failed_or_was_rejected() -> None:
    for event in ("finished", "failed", "rejected"):
        policy = admission("predictive-request")
        admit(policy, 1, 50)
        policy.on_event(event, 1, scene())
        assert policy.reject(REQUEST, ROUTE, scene(tbt_slo_ms=12.0)) is None


def test_predictive_request_counts_nobody_on_an_instance_that_does_not_step() -> None:
    # One step of infinite length, and none of them (0 x inf): neither is an error, or a request that stays.
    class Still(Scene):
        def step_ms(self, batch, tokens):
            return np.full(len(np.asarray(batch)), np.inf)

    policy = admission("predictive-request")
    admit(policy, 1, 1)
    admit(policy, 2, 2)
    with np.errstate(all="raise"):
        batches = policy.batches(ROUTE, Still(now_ms=100.0, batch=[0], context=[0], decode=1))
    assert batches.requests.sum() == 0


@pytest.mark.parametrize(("output_tokens", "there"), [(1, 0), (2, 1)])
def test_predictive_request_counts_no_answer_that_ends_with_its_first_token(output_tokens: int, there: int) -> None:
    policy = admission("predictive-request")
    admit(policy, 1, output_tokens)
    assert policy.batches(ROUTE, scene()).requests.sum() == there
