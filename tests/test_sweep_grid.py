"""What is varied, as a person writes it, and the points that come of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooncake_bench.errors import BenchError, PolicyError, SetupError
from mooncake_bench.studies.sweep.axes import Axis, axis_of, parse_axis
from mooncake_bench.studies.sweep.grid import Policies, choices
from mooncake_bench.studies.sweep.points import Shard, parse_shard

TWO = "a=kvcache-centric:threshold=3+early"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("speedup=1,2,3", ("1", "2", "3")),
        ("cluster=6P+10D,8P+8D", ("6P+10D", "8P+8D")),
        ("slo.ttft_ms= 10s , 30s ", ("10s", "30s")),
        ("seed=0..3", ("0", "1", "2", "3")),
        ("seed=7,0..2,9", ("7", "0", "1", "2", "9")),
        ("speedup=1..2..0.5", ("1.0", "1.5", "2.0")),
        ("speedup=0.5..2", ("0.5", "1.5")),
        ("trace.path=../a.jsonl,b.jsonl", ("../a.jsonl", "b.jsonl")),
        # a further k=v after a parameter is one more parameter; anything else begins the next SPEC
        ("policy=random,kvcache-centric", ("random", "kvcache-centric")),
        ("policy=x:p=1,q=2,random", ("x:p=1,q=2", "random")),
        ("policy=a=x:p=1,b=y:p=2,q=3", ("a=x:p=1", "b=y:p=2,q=3")),
        ("policy=x:p=1+early,b=y", ("x:p=1+early", "b=y")),
        ("policy=a.py:Class,b=c.py:Other:k=1,l=2", ("a.py:Class", "b=c.py:Other:k=1,l=2")),
        ("policy=x:p=1;b=y", ("x:p=1", "b=y")),
        # whose values hold commas
        ("events=60s:fail:prefill:0,90s:recover:prefill:0", ("60s:fail:prefill:0,90s:recover:prefill:0",)),
        ("slo.classes=1=ttft:1s,tbt:50ms;1=ttft:2s", ("1=ttft:1s,tbt:50ms", "1=ttft:2s")),
    ],
)
def test_values_are_split_as_documented(text: str, values: tuple[str, ...]) -> None:
    assert parse_axis(text) == Axis(text.partition("=")[0], values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speedup", "expected KEY=V1,V2"),
        ("=1", "expected KEY=V1,V2"),
        ("speedup=", "expected KEY=V1,V2"),
        ("speedup=1,,2", "a value is missing"),
        ("speedup=1,2,1", "'1' is given twice"),
        ("seed=3..1", "A <= B"),
        ("seed=1..3..0", "a step above 0"),
        ("seed=0..1000000", "at most 100,000"),
    ],
)
def test_what_is_no_list_of_values_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(SetupError, match=said):
        parse_axis(text)


def test_a_list_of_toml_keeps_its_numbers_and_a_text_is_read_as_on_the_command_line() -> None:
    assert axis_of("speedup", [1, 2.5, "3..4"], "file").values == (1, 2.5, "3", "4")
    assert axis_of("seed", "0..2", "file").values == ("0", "1", "2")
    with pytest.raises(SetupError, match="file: expected a list of values"):
        axis_of("seed", [[1]], "file")


def chosen(specs: list[str], *axes: str, side_by_side: bool = False) -> list[tuple[str, dict[str, object]]]:
    found = choices(Policies(specs, ()), [parse_axis(text) for text in axes], side_by_side=side_by_side)
    return [(choice.spec, {**choice.given, **choice.parameters}) for choice in found]


def test_a_grid_has_policies_slowest_then_the_axes_in_the_order_given() -> None:
    assert chosen(["random", "round-robin"], "speedup=1,2", "seed=5,6") == [
        (spec, {"speedup": speedup, "seed": seed})
        for spec in ("random", "round-robin")
        for speedup in ("1", "2")
        for seed in ("5", "6")
    ]


def test_a_parameter_varies_only_the_policies_that_have_it() -> None:
    assert chosen(["random", "kvcache-centric"], "kvcache-centric.threshold=2,4") == [
        ("random", {}),
        ("kvcache-centric:threshold=2", {"kvcache-centric.threshold": 2.0}),
        ("kvcache-centric:threshold=4", {"kvcache-centric.threshold": 4.0}),
    ]


def test_a_parameter_is_named_by_the_label_or_by_the_policy_and_replaces_what_the_spec_says() -> None:
    wanted = ("a=kvcache-centric:threshold=9+early", 9.0)
    assert [(spec, *values.values()) for spec, values in chosen([TWO], "a.threshold=9")] == [wanted]
    assert [(spec, *values.values()) for spec, values in chosen([TWO], "kvcache-centric.threshold=9")] == [wanted]


def test_a_parameter_of_a_policy_file_is_named_by_its_policy(tmp_path: Path) -> None:
    file = tmp_path / "ours.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom mooncake_bench.api import Route, Router\n"
        "@dataclass\nclass Ours(Router):\n    name = 'ours'\n    k: int = 1\n    deep: bool = False\n"
        "    def route(self, request, cluster):\n        return Route(prefill=0)\n",
        encoding="utf-8",
    )
    assert chosen([f"{file}:Ours"], "ours.k=1,2", "ours.deep=true") == [
        (f"{file}:Ours:k={k},deep=true", {"ours.k": k, "ours.deep": True}) for k in (1, 2)
    ]


def test_side_by_side_takes_first_with_first() -> None:
    assert chosen(["random", "round-robin"], "speedup=1,2", "seed=5,6", side_by_side=True) == [
        ("random", {"speedup": "1", "seed": "5"}),
        ("round-robin", {"speedup": "2", "seed": "6"}),
    ]
    with pytest.raises(SetupError, match="speedup has 2, seed has 3"):
        chosen(["random"], "speedup=1,2", "seed=1,2,3", side_by_side=True)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("speedupp", "did you mean 'speedup'"),
        ("a.treshold", "did you mean 'a.threshold'"),
        ("kvcache.threshold", "neither a setting nor a parameter"),
        ("vram_tokens", "did you mean 'vram.tokens'"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(key: str, said: str) -> None:
    with pytest.raises(SetupError, match=said):
        chosen([TWO], f"{key}=1,2")


def test_a_value_that_a_parameter_does_not_take_is_refused() -> None:
    with pytest.raises(PolicyError, match="'threshold': expected a number, found 'x'"):
        chosen([TWO], "a.threshold=1,x")


def test_the_same_key_twice_is_refused() -> None:
    with pytest.raises(SetupError, match="speedup: is given twice"):
        chosen(["random"], "speedup=1,2", "speedup=3")


def test_shards_are_every_nth_point_and_together_all_of_them() -> None:
    numbers = list(range(10))
    shards = [Shard(i, 3).of(numbers) for i in (1, 2, 3)]  # type: ignore[arg-type]
    assert shards == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert parse_shard("2/4") == Shard(2, 4)


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "a/b", "1/0", ""])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="expected I/N"):
        parse_shard(text)
