"""``hardware list`` and ``show``, and the links."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mooncake_bench.cli.app import run
from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.describe import describe, known, list_presets
from mooncake_bench.hardware.links import Link, link_names, load_link
from mooncake_bench.hardware.presets import load_engine

REPO = Path(__file__).resolve().parent.parent


def test_every_preset_is_listed_once_and_described() -> None:
    names = [(kind, name) for kind, of_kind in known().items() for name in of_kind]
    listed = list_presets()
    assert [(item["kind"], item["name"]) for item in listed] == names
    assert len({name for _, name in names}) == len(names)  # so that show needs no kind
    assert all(item["description"] for item in listed)


def test_one_kind_can_be_listed_in_either_number() -> None:
    assert [item["name"] for item in list_presets("links")] == link_names()
    assert list_presets("link") == list_presets("links")
    with pytest.raises(
        SetupError, match=r"unknown kind 'lonk'; did you mean 'link'\?; known: model, node, engine, link"
    ):
        list_presets("lonk")


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in known().items() for name in names])
def test_every_preset_can_be_shown_in_every_format(kind: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for shown in ("table", "json", "csv", "markdown", "latex"):
        assert run(["hardware", "show", name, "--format", shown]) == 0
        out = capsys.readouterr().out
        assert name in out
        if shown == "json":
            assert json.loads(out)["kind"] == kind
        if shown == "csv":
            assert ["kind", kind] in list(csv.reader(io.StringIO(out)))


def test_a_node_shows_what_its_coefficients_come_to(tmp_path: Path) -> None:
    node = tmp_path / "mine.toml"
    node.write_text(
        """
description = "a node that can be worked out by hand"
gpus = 4
pool_tokens = 1000
pool_source = "assumed"
nic_gbytes_per_s = 10.0
nic_status = "assumed"
nic_source = "assumed"
[costs.llama-3-70b]
status = "assumed"
source = "none"
error = "invented"
vram_tokens = 40_000
prefill = { floor_ms = 3.0, token_ms = 0.0078125, constant_ms = 2.0, token2_ms = 0.0, late_ms = 8.0, late_tokens = 512 }
decode = { floor_ms = 4.0, roof_ms = 0.0, sequence_ms = 0.5, token_ms = 0.001, root_ms = 2.0 }
""",
        encoding="utf-8",
    )
    costs = describe(str(node))["costs"][0]
    # 512 tokens: b n = 512 / 128 = 4, sqrt(3^2 + 4^2) = 5, + o 2, + half of h = 4: 11 ms
    assert costs["prefill"][0] == {"tokens": 512, "cached_ratio": 0.0, "ms": pytest.approx(11.0)}
    # batch 16 of 2,048: 4 + 0.5 x 16 + 2 x sqrt(16) + 0.001 x 32,768 = 52.768 ms; 64 x 2,048 tokens do not fit
    assert [(row["batch"], row["ms"]) for row in costs["decode"]] == [
        (1, pytest.approx(4 + 0.5 + 2 + 2.048)),
        (16, pytest.approx(52.768)),
    ]
    assert costs["status"] == "assumed"


def test_an_engine_adds_its_time_to_a_node() -> None:
    bare, served = (describe("h100", "llama-3-70b", engine)["costs"][0] for engine in (None, "mooncake-a800"))
    overhead = load_engine("mooncake-a800").overhead
    assert served["prefill"][0]["ms"] - bare["prefill"][0]["ms"] == pytest.approx(overhead.prefill_ms)
    assert served["decode"][0]["ms"] - bare["decode"][0]["ms"] == pytest.approx(overhead.decode_ms)


def test_the_engines_time_stands_on_the_nodes_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hardware", "show", "a800", "--engine", "mooncake-a800"]) == 0
    overhead = load_engine("mooncake-a800").overhead
    said = f"{overhead.prefill_ms:g} ms a prefill and {overhead.decode_ms:g} ms a decode step of engine mooncake-a800"
    assert said in " ".join(capsys.readouterr().out.split())


def test_files_of_ones_own_are_shown_by_what_they_hold(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    # 2 (K and V) x 2 layers x 4 KV heads x 16 x 2 bytes = 512 bytes a token
    sizes = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 4}
    rest = {"intermediate_size": 256, "vocab_size": 1000, "head_dim": 16, "torch_dtype": "bfloat16"}
    config.write_text(json.dumps({"model_type": "llama", **sizes, **rest}), encoding="utf-8")
    shown = describe(str(config))
    assert (shown["kind"], shown["layers"], shown["kv_bytes_per_token"]) == ("model", 2, 512)
    engine = tmp_path / "engine.toml"
    texts = 'description = "mine"\nstatus = "measured"\nsource = "a log"\nerror = "2 %"\nfitted_on = ["h100"]\n'
    engine.write_text(f"{texts}prefill_ms = 1.5\ndecode_ms = 0.5\n", encoding="utf-8")
    shown = describe(str(engine))
    assert (shown["kind"], shown["overhead"]) == ("engine", {"prefill_ms": 1.5, "decode_ms": 0.5})


def test_predicted_costs_say_so_to_programs() -> None:
    assert describe("h200", "deepseek-v3")["costs"][0]["status"] == "predicted"
    assert describe("h200", "llama-3-70b")["costs"][0]["status"] == "measured"
    assert describe("h200", "llama2-70b")["costs"][0]["status"] == "measured"  # by Llama-3-70B's


def test_a_name_or_an_option_that_means_nothing_is_refused() -> None:
    with pytest.raises(SetupError, match=r"unknown model, node, engine or link 'a8000'; did you mean 'a800'"):
        describe("a8000")
    with pytest.raises(SetupError, match=r"--model: no effect on the link 'fast25-4x200'"):
        describe("fast25-4x200", model="llama-3-70b")
    with pytest.raises(SetupError, match=r"--engine: no effect on the model 'llama-3-70b'"):
        describe("llama-3-70b", engine="none")


def test_a_transfer_takes_latency_and_bytes_over_bandwidth() -> None:
    link = Link("x", "network", "", gbytes_per_s=50.0, latency_ms=2.0, status="measured", source="", error="", points=1)
    # 1e9 bytes at 50e9 bytes/s: 20 ms, and 2 ms to start
    assert link.transfer_ms(1e9) == pytest.approx(22.0)


def test_what_a_link_was_not_measured_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for name in link_names():
        link = load_link(name)
        assert (link.points > 0) == (link.status == "measured")
        assert link.error
    assert load_link("aws-p5-read").latency_ms is None
    assert run(["hardware", "show", "aws-p5-read"]) == 0
    assert "latency not known" in capsys.readouterr().out


def test_links_move_kv_as_fast_as_the_paper_says() -> None:
    """FAST'25: 87 GB/s of 4 x 200 Gb/s for 40 GB, 190 GB/s of 8 x 400 Gb/s (section 5.3.1); within 10 %."""
    for name, gbytes_per_s in (("fast25-4x200", 87), ("fast25-8x400", 190)):
        assert 40e9 / load_link(name).transfer_ms(40e9) / 1e6 == pytest.approx(gbytes_per_s, rel=0.1)


def test_the_links_are_what_the_tool_derives(shared: Path) -> None:
    done = subprocess.run(
        [sys.executable, REPO / "tools" / "derive_links.py", shared / "measurements"],
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    fresh = tomllib.loads(done.stdout)
    assert list(fresh) == link_names()
    for name, entry in fresh.items():
        link = load_link(name)
        # another scipy may stop at another digit
        assert link.gbytes_per_s == pytest.approx(entry["gbytes_per_s"], rel=1e-3)
        assert (link.latency_ms or 0) == pytest.approx(entry.get("latency_ms", 0), rel=1e-2, abs=1e-3)
        assert (link.points, link.source) == (entry["points"], entry["source"])
