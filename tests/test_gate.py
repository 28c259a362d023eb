"""Rules and verdicts of a gate: what must fail fails, with its reason, and what must pass passes."""

from __future__ import annotations

from typing import Any

import pytest
from fault_tools import strict

from mooncake_bench.errors import SetupError
from mooncake_bench.report.gate_sheets import gate_json, report
from mooncake_bench.results.gate.judge import FAIL, INCONCLUSIVE, NO_BASELINE, PAIRED, PASS, RANKED, Pair, Sample, judge
from mooncake_bench.results.gate.outcome import Outcome
from mooncake_bench.results.gate.rules import Declared, doubts, parse_rules

KNOWN = {
    "p99_ttft_ms": Declared("p99_ttft_ms", "ms", "lower"),
    "completed_ratio": Declared("completed_ratio", "ratio", "higher"),
    "completions": Declared("completed_ratio", "ratio", "higher"),  # an alias
    "offered_requests": Declared("offered_requests", "requests", "none"),
    "mean": Declared("mean", "s", "lower"),
}


def verdict(rule: str, base: float | None, new: float | None, **more: Any) -> tuple[str, str]:
    """Of one rule on one number a side."""
    (parsed,) = parse_rules([rule], KNOWN)
    sides = [{parsed.metric.name: Sample.one(value, parsed.metric.unit)} for value in (base, new)]
    (check,) = judge([parsed], [Pair("ours", *sides, **more)])
    return check.verdict, check.reason


@pytest.mark.parametrize(
    ("rule", "base", "new", "expected"),
    [
        # relative: 2 % of 100 is 2
        ("p99_ttft_ms:+2%", 100, 102.1, FAIL),
        ("p99_ttft_ms:+2%", 100, 102, PASS),
        ("p99_ttft_ms:+2%", 100, 50, PASS),
        ("p99_ttft_ms:2%", 100, 102.1, FAIL),  # lower is better: worse is more
        ("completed_ratio:-1%", 0.9, 0.89, FAIL),  # a fall by 1.1 %
        ("completed_ratio:-1%", 0.9, 0.891, PASS),  # by exactly 1 %, in decimals
        ("completed_ratio:1%", 0.9, 0.89, FAIL),
        ("completed_ratio:1%", 0.9, 0.99, PASS),
        ("completions:1%", 0.9, 0.89, FAIL),
        # 0.1 % of an exact number is seen, and so is its last decimal
        ("p99_ttft_ms:0%", 22299.90607316311, 22299.90607316311 * 1.001, FAIL),
        ("p99_ttft_ms:0%", 22299.90607316311, 22299.90607316312, FAIL),
        ("p99_ttft_ms:0%", 22299.90607316311, 22299.90607316311, PASS),
        ("p99_ttft_ms:0%", 22299.90607316311, 22299.90607316310, PASS),
        ("p99_ttft_ms:+-0%", 22299.90607316311, 22299.90607316310, FAIL),
        # absolute, in the metric's unit or another
        ("p99_ttft_ms:+50ms", 100, 150.5, FAIL),
        ("p99_ttft_ms:+50ms", 100, 150, PASS),
        ("p99_ttft_ms:50", 100, 151, FAIL),
        ("p99_ttft_ms:0.05s", 100, 151, FAIL),
        ("p99_ttft_ms:50000us", 100, 150, PASS),
        # digits on one side of the point are enough
        ("p99_ttft_ms:+.5%", 100, 100.6, FAIL),
        ("p99_ttft_ms:+.5%", 100, 100.5, PASS),
        ("p99_ttft_ms:+5.", 100, 105, PASS),
        ("p99_ttft_ms:+5.", 100, 105.1, FAIL),
        ("mean:5ms", 0.1, 0.1051, FAIL),
        ("mean:5ms", 0.1, 0.105, PASS),
        ("completed_ratio:-0.01", 0.9, 0.889, FAIL),
        # either way; a metric without a better side
        ("offered_requests:+-0", 10, 9, FAIL),
        ("offered_requests:±0", 10, 11, FAIL),
        ("offered_requests:-0%", 10, 11, PASS),
        # from 0 there is no relative growth, and any growth is too much
        ("p99_ttft_ms:+50%", 0, 0.001, FAIL),
        ("p99_ttft_ms:+50%", 0, 0, PASS),
        ("p99_ttft_ms:+50%", -10, -6, PASS),  # by 40 % of its size
        ("p99_ttft_ms:+50%", -10, -4, FAIL),
        # bounds, on NEW alone
        ("p99_ttft_ms>100", None, 100.1, FAIL),
        ("p99_ttft_ms>100", None, 100, PASS),
        ("p99_ttft_ms >= 0.1s", None, 100, FAIL),
        ("completed_ratio<90%", None, 0.899, FAIL),
        ("completed_ratio<0.9", None, 0.9, PASS),
        ("completed_ratio<=0.9", None, 0.9, FAIL),
        ("p99_ttft_ms<-5", None, -6, FAIL),
    ],
)
def test_a_rule_fails_beyond_what_it_allows_and_not_before(
    rule: str, base: float | None, new: float, expected: str
) -> None:
    assert verdict(rule, base, new)[0] == expected


def test_a_reason_says_by_how_much() -> None:
    # (103.5 - 100) / 100
    assert verdict("p99_ttft_ms:+2%", 100, 103.5) == (FAIL, "grew by 3.5 %, from 100 to 103.5 ms")
    assert verdict("completed_ratio:-0.01", 0.9, 0.8) == (FAIL, "fell by 0.1, from 0.9 to 0.8")
    assert verdict("p99_ttft_ms>100", None, 1234567.8) == (FAIL, "is 1,234,568 ms")


def row(rule: str, base: float | None, new: float) -> tuple[str, ...]:
    """As the table shows it."""
    (parsed,) = parse_rules([rule], KNOWN)
    sides = [{parsed.metric.name: Sample.one(value, parsed.metric.unit)} for value in (base, new)]
    outcome = Outcome(tuple(judge([parsed], [Pair("ours", *sides)])), "a", "b")
    assert strict(gate_json(outcome))["checks"][0]["new"] == new
    return report(outcome).sheets[0].rows[0]


def test_numbers_that_differ_look_so() -> None:
    assert row("p99_ttft_ms>=29880", 29879.966, 29879.966)[1:] == ("29,879.97", "29,879.97", "–", "pass")
    assert row("p99_ttft_ms>29879.96", 1.0, 29879.966)[2:] == ("29,879.97", "–", "FAIL")
    assert row("p99_ttft_ms>=29880", 1.0, 29880.0)[1:] == ("1", "29,880", "–", "FAIL")
    # change: 1e-9 / 0.1 is 1e-6 %
    assert row("p99_ttft_ms:0%", 0.1, 0.100000001)[1:] == ("0.1", "0.100000001", "+1e-06 %", "FAIL")
    assert verdict("p99_ttft_ms:0%", 22299.906073163, 22299.906073164)[1].endswith(
        "from 22,299.906073163 to 22,299.906073164 ms"
    )
    assert row("p99_ttft_ms:0%", 9999999.96, 9999999.98)[1:3] == ("9,999,999.96", "9,999,999.98")


def test_huge_numbers_are_short_and_judged() -> None:
    assert row("p99_ttft_ms:0%", 1.0, 1e308)[1:] == ("1", "1e+308", "+1.00e+310 %", "FAIL")
    assert row("p99_ttft_ms:0%", 1e-300, 1e308)[3] == "+1.00e+610 %"  # a part that no float holds
    assert row("p99_ttft_ms:5", -1.5e308, 1.5e308)[1:] == ("-1.5e+308", "1.5e+308", "+3.00e+308", "FAIL")
    assert row("p99_ttft_ms<1e999", None, 10**308)[1:] == ("–", "1e+308", "–", "FAIL")


@pytest.mark.parametrize(
    ("base", "new", "words"),
    [
        (None, 1.0, "undefined in BASE"),
        (1.0, None, "undefined in NEW"),
        (None, None, "undefined in NEW"),
    ],
)
def test_what_was_not_measured_fails(base: float | None, new: float | None, words: str) -> None:
    found, reason = verdict("p99_ttft_ms:100%", base, new)
    assert (found, words in reason) == (FAIL, True)


def test_an_undefined_number_is_within_no_bound() -> None:
    assert verdict("p99_ttft_ms>100", 1.0, None)[0] == FAIL


def test_a_missing_metric_and_another_unit_fail() -> None:
    rules = parse_rules(["p99_ttft_ms:2%"], KNOWN)
    here, seconds = {"p99_ttft_ms": Sample.one(1.0, "ms")}, {"p99_ttft_ms": Sample.one(1.0, "s")}
    pairs = [Pair("a", {}, here), Pair("b", here, {}), Pair("c", seconds, here), Pair("d", here, None)]
    checks = judge(rules, pairs)
    assert [(check.verdict, check.reason) for check in checks] == [
        (FAIL, "missing in BASE"),
        (FAIL, "missing in NEW"),
        (FAIL, "in s in BASE, and in ms here"),
        (FAIL, "not in NEW"),  # a policy that is no longer replayed does not pass
    ]


def test_every_breach_is_told_not_the_first() -> None:
    rules = parse_rules(["p99_ttft_ms:2%", "completed_ratio:1%", "p99_ttft_ms>500"], KNOWN)
    base = {"p99_ttft_ms": Sample.one(100, "ms"), "completed_ratio": Sample.one(1.0, "ratio")}
    new = {"p99_ttft_ms": Sample.one(900, "ms"), "completed_ratio": Sample.one(0.5, "ratio")}
    outcome = Outcome(tuple(judge(rules, [Pair("a", base, new), Pair("b", base, new)])), "x", "y")
    assert [check.policy for check in outcome.of(FAIL)] == ["a"] * 3 + ["b"] * 3
    assert outcome.exit_code == 1


@pytest.mark.parametrize(("missing", "code"), [(None, 3), ("pass", 0), ("fail", 1)])
def test_without_a_baseline_the_exit_code_is_as_asked(missing: str | None, code: int) -> None:
    rules = parse_rules(["p99_ttft_ms:2%"], KNOWN)
    checks = judge(rules, [Pair("a", None, {"p99_ttft_ms": Sample.one(1.0, "ms")})])
    assert [check.verdict for check in checks] == [NO_BASELINE]
    assert Outcome(tuple(checks), "x", "y", missing_baseline=missing).exit_code == code


def test_bounds_are_judged_without_a_baseline_and_a_breach_outweighs_its_absence() -> None:
    rules = parse_rules(["p99_ttft_ms:2%", "p99_ttft_ms>0.5"], KNOWN)
    checks = judge(rules, [Pair("a", None, {"p99_ttft_ms": Sample.one(1.0, "ms")})])
    assert Outcome(tuple(checks), "x", "y", missing_baseline="pass").exit_code == 1


# ---- rules that are none


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("p99_ttft_ms", "in a shell, > and < need quotes"),
        ("p99_ttft_ms:", "expected METRIC:CHANGE"),
        ("p99_ttft_ms=5", "expected METRIC:CHANGE"),
        ("p99_ttft_ms==5", "expected METRIC:CHANGE"),
        ("p99_ttft_ms:+2%%", "expected METRIC:CHANGE"),
        ("p99_ttft_ms:+nan%", "expected METRIC:CHANGE"),
        ("p99_ttft_ms:+1e9999", "expected METRIC:CHANGE"),
        ("p99_ttft_ms>", "expected METRIC:CHANGE"),
        ("", "expected METRIC:CHANGE"),
        ("p99_tftt_ms:+2%", "did you mean 'p99_ttft_ms'"),
        (">5", "no metric ''"),
        ("offered_requests:2%", "say which way"),
        ("p99_ttft_ms:-2%", "pass however bad it gets; write p99_ttft_ms:.2%"),
        ("completed_ratio:+0.01", "only when completed_ratio gets better"),
        ("p99_ttft_ms>5%", "in ms, not in %"),
        ("p99_ttft_ms:+2min", "a number alone or with us, ms, s or %, got 'min'"),
        ("p99_ttft_ms>2 min", "a number alone or with us, ms, s, got 'min'"),
        ("completed_ratio:1TB", "in parts of 1; expected a number alone or with %, got 'TB'"),
        ("offered_requests>1TB", "in requests; expected a number alone or with requests, got 'TB'"),
        ("p99_ttft_ms:+٢%", "expected METRIC:CHANGE"),
        ("p99_ttft_ms:+.%", "expected METRIC:CHANGE"),
        ("p99_ttft_ms:5GB", "expected a number alone or with us, ms, s or %, got 'GB'"),
        ("completed_ratio:5ms", "in parts of 1"),
    ],
)
def test_what_is_no_rule_is_refused_with_the_way_to_write_it(rule: str, words: str) -> None:
    with pytest.raises(SetupError, match=words) as caught:
        parse_rules([rule], KNOWN)
    assert caught.value.exit_code == 2


def test_a_rule_given_twice_is_refused_and_a_bound_on_the_good_side_is_told_of() -> None:
    with pytest.raises(SetupError, match="given twice"):
        parse_rules(["p99_ttft_ms:2%", "p99_ttft_ms:2%"], KNOWN)
    rules = parse_rules(["p99_ttft_ms<100", "completed_ratio<0.9", "p99_ttft_ms>5"], KNOWN)
    assert [line.split("'")[1] for line in doubts(rules)] == ["p99_ttft_ms<100"]


# ---- jittered replays and measurements


def many(rule: str, base: list[float | None], new: list[float | None], how: Any) -> tuple[str, str]:
    (parsed,) = parse_rules([rule], KNOWN)
    sides = [{parsed.metric.name: Sample.many(values, parsed.metric.unit)} for values in (base, new)]
    (check,) = judge([parsed], [Pair("ours", *sides, how)])
    return check.verdict, check.reason


def test_pairs_of_the_same_arrivals_are_judged_by_their_median_change() -> None:
    # Medians 200 and 206, but each pair has grown by 10 %, 1 % and 3 %: the median is 3 %.
    base, new = [100.0, 200.0, 300.0], [110.0, 202.0, 309.0]
    assert many("p99_ttft_ms:2%", base, new, PAIRED)[0] == FAIL
    assert many("p99_ttft_ms:3%", base, new, PAIRED)[0] == PASS
    # One wild pair of five decides nothing; alone, it would fail.
    assert many("p99_ttft_ms:1%", [100.0] * 5, [900.0, 100.5, 100.0, 99.0, 100.2], PAIRED)[0] == PASS


def test_a_number_undefined_in_one_replay_fails() -> None:
    assert many("p99_ttft_ms:2%", [1.0, 1.0], [1.0, None], PAIRED) == (
        FAIL,
        "undefined in NEW in 1 of 2 replays: nothing was measured",
    )


def test_measurements_fail_only_when_the_change_is_large_and_told_apart() -> None:
    base = [100.0, 101, 102, 103, 104]
    slower = [110.0, 111, 112, 113, 114]
    # Every slower one above every base one: one-sided exact p = 1 / C(10, 5) = 1/252.
    found, reason = many("p99_ttft_ms:5%", base, slower, RANKED)
    assert found == FAIL
    assert "p = 0.004" in reason
    assert many("p99_ttft_ms:15%", base, slower, RANKED)[0] == PASS  # told apart, but not too large
    assert many("p99_ttft_ms:5%", slower, base, RANKED)[0] == PASS
    # 3 against 3: at best p = 1 / C(6, 3) = 0.05, which is not below 0.05.
    found, reason = many("p99_ttft_ms:5%", base[:3], slower[:3], RANKED)
    assert found == INCONCLUSIVE
    assert "cannot be told apart" in reason
    # Overlapping: the median grew by 10 %, yet 2 of 5 lie among the others.
    assert many("p99_ttft_ms:5%", base, [90.0, 95, 112.2, 113, 114], RANKED)[0] == INCONCLUSIVE
    assert many("p99_ttft_ms:5%", [100.0], [110.0], RANKED)[0] == INCONCLUSIVE


def test_what_cannot_be_told_apart_is_nothing_to_conclude_unless_another_rule_fails() -> None:
    rules = parse_rules(["p99_ttft_ms:5%", "p99_ttft_ms>500"], KNOWN)
    base, new = ({"p99_ttft_ms": Sample.many(values, "ms")} for values in ([100.0, 101.0], [110.0, 111.0]))
    checks = tuple(judge(rules, [Pair("a", base, new, RANKED)]))
    assert [check.verdict for check in checks] == [INCONCLUSIVE, PASS]
    assert Outcome(checks, "x", "y").exit_code == 3
    worse = {"p99_ttft_ms": Sample.many([900.0, 901.0], "ms")}
    assert Outcome(tuple(judge(rules, [Pair("a", base, worse, RANKED)])), "x", "y").exit_code == 1
