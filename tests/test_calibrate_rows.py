"""Tables of measured times: what a row means, which columns say it, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.calibrate.reading import Measurements, parse_pairs, read_tables

if TYPE_CHECKING:
    from pathlib import Path


def read(tmp_path: Path, text: str, where: str = "", columns: str = "") -> Measurements:
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return read_tables([path], parse_pairs(where, "--where"), parse_pairs(columns, "--columns"))


@pytest.mark.parametrize(
    ("text", "n", "s"),
    [
        ("n,ms\n100,5\n", 100, 5000),  # 100^2 / 2
        ("n,prefix,ms\n100,50,5\n", 100, 10_000),  # 100 * 50 + 100^2 / 2
        ("computed_tokens,cached_tokens,t\n100,50,5\n", 100, 10_000),
        ("n,s,ms\n100,7000,5\n", 100, 7000),
        ("batch,isl,ms\n4,100,5\n", 400, 20_000),  # 4 * 100^2 / 2
        ("batch,isl,prefix,ms\n4,100,50,5\n", 400, 40_000),  # 4 * (100 * 50 + 100^2 / 2)
        ("b,isl,n,S2,g,t\n4,100,400,20000,1,5\n", 400, 20_000),
        ("# a remark\n\nn,ms\n100,5\n", 100, 5000),
        ("\ufeffn,ms\r\n100,5\r\n", 100, 5000),
    ],
)
def test_a_prefill_is_its_computed_tokens_and_s(text: str, n: float, s: float, tmp_path: Path) -> None:
    found = read(tmp_path, text)
    assert found.decode is None
    assert found.prefill is not None
    assert [*found.prefill.n, *found.prefill.s, *found.prefill.ms] == [n, s, 5]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("batch,tokens,ms\n8,800,5\n", 800), ("batch,context,ms\n8,800,5\n", 6400), ("B,ctx,T,t\n8,100,800,5\n", 800)],
)
def test_a_decode_step_is_its_sequences_and_the_context_of_all(text: str, tokens: float, tmp_path: Path) -> None:
    found = read(tmp_path, text)
    assert found.prefill is None
    assert found.decode is not None
    assert [*found.decode.batch, *found.decode.tokens, *found.decode.ms] == [8, tokens, 5]


def test_a_column_phase_says_what_each_row_is(tmp_path: Path) -> None:
    found = read(tmp_path, "phase,batch,n,prefix,context,ms\nprefill,1,64,32,,5\ndecode,8,,,100,6\n")
    assert found.prefill is not None
    assert found.decode is not None
    assert found.prefill.s.tolist() == [64 * 32 + 64 * 64 / 2]
    assert found.decode.tokens.tolist() == [800]


def test_columns_have_the_names_that_one_says(tmp_path: Path) -> None:
    found = read(tmp_path, "new,old,t_ms,ms\n100,50,5,99\n", columns="n=new,prefix=old,ms=t_ms")
    assert found.prefill is not None
    assert (found.prefill.s.tolist(), found.prefill.ms.tolist()) == ([10_000], [5])


def test_rows_are_chosen_by_the_values_of_columns_also_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = {"hw": ["a", "a", "b"], "tp": [8, 4, 8], "n": [1, 2, 3], "ms": [1.0, 2.0, 3.0]}
    pq.write_table(pa.table(table), path)
    found = read_tables([path, path], {"hw": "a", "tp": "8"})
    assert found.prefill is not None
    assert found.prefill.n.tolist() == [1, 1]


def test_a_prefill_of_which_nothing_more_is_known_is_one_whole_prompt_and_that_is_said(tmp_path: Path) -> None:
    assert "each prefill is taken for one whole prompt" in read(tmp_path, "n,ms\n100,5\n").notices[0]
    assert read(tmp_path, "n,prefix,ms\n100,0,5\n").notices == []


@pytest.mark.parametrize(
    ("text", "where", "columns", "reason"),
    [
        ("n,ms\n100,5\n200,x\n", "", "", r"rows.csv, line 3, field 'ms': found 'x'; expected a number above 0"),
        ("n,ms\n100,0\n", "", "", "line 2, field 'ms': found '0'"),
        ("n,ms\n100,nan\n", "", "", "field 'ms': found 'nan'"),
        ("n,ms\n-1,5\n", "", "", "field 'n': found '-1'"),
        ("n,prefix,ms\n1,-1,5\n", "", "", "field 'prefix': found '-1'; expected a number of at least 0"),
        ("n,ms\n1,2,3\n", "", "", "line 2: found 3 fields; expected 2"),
        ("n,n,ms\n1,2,3\n", "", "", "found the column 'n' twice"),
        ("n,ms\n", "", "", "holds no rows"),
        ("", "", "", "the file is empty"),
        ("x,y\n1,2\n", "", "", "neither prefills nor decode steps"),
        ("n,batch,tokens,ms\n1,2,3,4\n", "", "", "both prefills and decode steps; add a column phase"),
        ("n,tokens\n1,2\n", "", "", "no column for ms"),
        ("phase,n,ms\nprefil,1,2\n", "", "", "field 'phase': found 'prefil'; expected prefill or decode"),
        ("n,ms,model\n1,2,a100\n", "modell=a100", "", "has no column 'modell'; did you mean 'model'"),
        ("n,ms,hw\n1,2,a100\n", "hw=a10", "", "leaves 0 of 1 rows of .*; did you mean 'a100'"),
        ("n,ms,hw\n1,2,a100\n", "hw", "", "--where: expected NAME=VALUE"),
        ("n,ms\n1,2\n", "", "m=ms", "--columns: no key 'm'"),
        ("n,times\n1,2\n", "", "ms=time", "--columns ms=time: .* has no such column; did you mean 'times'"),
        ("n,ms,t\n1,2,3\n", "", "", "the columns 'ms', 't' may all be ms"),
        (  # 8 x 100 = 800, which rounding of the context may make 792 to 808
            "batch,context,tokens,ms\n8,100,808,5\n8,100,900,5\n",
            "",
            "",
            r"rows.csv, line 3, field 'tokens': found 900; expected 800 \(batch x context\)",
        ),
        # 100 x 50 + 100^2 / 2 = 10,000
        ("n,prefix,s,ms\n100,50,10050,5\n100,50,5000,5\n", "", "", r"line 3, field 's': found 5000; expected 10000 \("),
        # 4 x 100 = 400 tokens: S is 400 x 50 + 4 x 100^2 / 2 of equal prompts, + 400^2 / 2 at most
        ("batch,isl,prefix,s,ms\n4,100,50,200000,5\n", "", "", "field 's': found 200000; expected 40000 to 100000"),
        ("batch,isl,n,ms\n4,100,100,5\n", "", "", r"field 'n': found 100; expected 400 \(batch x isl\)"),
    ],
)
def test_a_table_that_cannot_be_read_gets_one_line_that_says_why(
    text: str, where: str, columns: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(SetupError, match=reason) as caught:
        read(tmp_path, text, where, columns)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"absent.csv: cannot be read"):
        read_tables([tmp_path / "absent.csv"])
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and no more")
    with pytest.raises(SetupError, match=r"broken.parquet: the parquet file is damaged"):
        read_tables([broken])


def test_the_composed_tables_are_read_as_they_are(shared: Path) -> None:
    folder = shared / "measurements" / "derived"
    where = {"hw": "a100_sxm", "model": "llama-70b", "tp": "8"}
    found = read_tables([folder / "composed_prefill_ms.parquet", folder / "composed_decode_ms.parquet"], where)
    assert found.prefill is not None
    assert found.decode is not None
    # one prompt of 16 tokens takes 19.63 ms; its S is 16^2 / 2
    first = found.prefill.n.argmin()
    assert (found.prefill.n[first], found.prefill.s[first]) == (16, 128)
    assert found.prefill.ms[first] == pytest.approx(19.63, abs=0.01)
