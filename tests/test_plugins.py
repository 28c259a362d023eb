"""SPECs, parameters, policy files and where they are found; and the one line that says why something cannot be used."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, Literal

import pytest

from mooncake_bench.api import Admission, Cluster, Request, Route, Router
from mooncake_bench.errors import PolicyError
from mooncake_bench.plugins import build, catalogue, discover, find, parse, values

ROUTER = '''
from dataclasses import dataclass
from mooncake_bench.api import Route, Router

@dataclass
class Mine(Router):
    """To instance 0."""
    name = "mine"
    alpha: float = 0.5
    def route(self, request, cluster):
        return Route(prefill=0)
'''


def write(folder: Path, text: str, name: str = "ours.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# the grammar


def parts(text: str) -> list[tuple[str, str | None, dict[str, str]]]:
    return [(part.target, part.class_name, part.parameters) for part in parse(text).parts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lru", [("lru", None, {})]),
        ("predictive:td=12s,recheck=true", [("predictive", None, {"td": "12s", "recheck": "true"})]),
        (
            "kvcache-centric:threshold=2+predictive:td=12s+lru",
            [("kvcache-centric", None, {"threshold": "2"}), ("predictive", None, {"td": "12s"}), ("lru", None, {})],
        ),
        ("ours.py", [("ours.py", None, {})]),
        ("ours.py:Mine", [("ours.py", "Mine", {})]),
        ("ours.py:alpha=.3", [("ours.py", None, {"alpha": ".3"})]),
        ("a/b.c/ours.py:Mine:alpha=.3,k=v", [("a/b.c/ours.py", "Mine", {"alpha": ".3", "k": "v"})]),
        ("./ours.py+lru", [("./ours.py", None, {}), ("lru", None, {})]),
        ("queue-cap:limit=1e+3+lru", [("queue-cap", None, {"limit": "1e+3"}), ("lru", None, {})]),
        ("/home/c++/ours.py:Mine+lru", [("/home/c++/ours.py", "Mine", {}), ("lru", None, {})]),
        ("lru + early", [("lru", None, {}), ("early", None, {})]),
    ],
)
def test_spec_is_cut_into_policies_and_their_parameters(text: str, expected: list[Any]) -> None:
    assert parts(text) == expected


@pytest.mark.parametrize(
    ("text", "label", "target"),
    [
        ("lru", "lru", "lru"),
        ("early:recheck=true", "early:recheck=true", "early"),
        ("mine=ours.py:alpha=.3", "mine", "ours.py"),
        ("two words=early+lru", "two words", "early"),
    ],
)
def test_label_is_what_stands_before_the_first_equals_sign_or_the_spec_as_written(
    text: str, label: str, target: str
) -> None:
    spec = parse(text)
    assert (spec.label, spec.parts[0].target, spec.text) == (label, target, text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a policy is missing"),
        ("lru+", "a policy is missing"),
        ("+lru", "a policy is missing"),
        ("=lru", "the label before '=' is empty"),
        ("x=", "a policy is missing"),
        ("a/b=lru", "label 'a/b': use letters, digits, spaces and _ . @ - in a label, a letter first"),
        (":td=1", "':td=1' names no policy"),
        ("lru+x=early", "a label goes before the whole SPEC, not before 'early'"),
        ("early:", "found '' where 'early' takes k=v"),
        ("early:recheck", "found 'recheck' where 'early' takes k=v"),
        ("early:recheck=", "found 'recheck=' where 'early' takes k=v"),
        ("early:recheck=true,", "found '' where 'early' takes k=v"),
        ("early:recheck=true,recheck=false", "parameter 'recheck' is given twice"),
    ],
)
def test_malformed_spec_is_refused_in_one_line_with_the_grammar(text: str, why: str) -> None:
    with pytest.raises(PolicyError) as refused:
        parse(text)
    assert str(refused.value) == (
        f"policy SPEC {text!r}: {why}; "
        "expected [LABEL=]NAME or FILE.py[:Class], then [:k=v,k=v], joined by + across kinds"
    )


# values


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("12", int, 12),
        ("-3", int, -3),
        ("12", float, 12.0),
        ("1e+3", float, 1000.0),
        (".3", float, 0.3),
        ("inf", float, float("inf")),
        ("12s", float, 12_000.0),
        ("35ms", float, 35.0),
        ("250us", float, 0.25),
        ("1.5min", float, 90_000.0),
        ("true", bool, True),
        ("False", bool, False),
        ("12", str, "12"),
        ("none", int | None, None),
        ("7", int | None, 7),
        ("ewma", float | Literal["ewma"], "ewma"),
        ("5s", float | Literal["ewma"], 5000.0),
        ("queue", Literal["queue", "requests"], "queue"),
        ("2", Literal[1, 2], 2),
    ],
)
def test_value_is_read_as_its_field_is_annotated(text: str, annotation: Any, value: Any) -> None:
    found = values.read(text, annotation)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("1.5", int, "a whole number"),
        ("12s", int, "a whole number"),
        ("nan", float, "a number"),
        ("soon", float, "a number"),
        ("1", bool, "true or false"),
        ("sometimes", float | Literal["ewma"], "a number or a duration such as 12s or ewma"),
        ("both", Literal["queue", "requests"], "queue or requests"),
    ],
)
def test_value_that_does_not_fit_is_refused_saying_what_would(text: str, annotation: Any, expected: str) -> None:
    with pytest.raises(ValueError) as refused:
        values.read(text, annotation)
    assert str(refused.value) == f"expected {expected}, found {text!r}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("td", "a number or a duration such as 12s"),
        ("wait_ms", "a number or a duration such as 12s"),
        ("threshold", "a number"),
    ],
)
def test_durations_are_offered_where_a_parameter_is_a_time(name: str, expected: str) -> None:
    assert values.expected(float, name) == expected
    assert values.read("12s", float, name) == 12_000.0  # whatever its name


# building


def test_kinds_left_out_take_the_documented_defaults() -> None:
    policies = build("predictive:td=12s")
    names = (policies.router.name, policies.admission.name, policies.evictions().name)
    assert names == ("kvcache-centric", "predictive", "lru")
    assert (policies.label, policies.spec, policies.oracle) == ("predictive:td=12s", "predictive:td=12s", False)


def test_every_build_and_every_node_gets_fresh_objects() -> None:
    first, second = build("round-robin"), build("round-robin")
    assert first.router is not second.router
    assert first.evictions() is not first.evictions()


def test_sources_are_the_files_used_with_their_digests(tmp_path: Path) -> None:
    path = write(tmp_path, ROUTER)
    sources = build(f"{path}+early").sources
    assert sources[str(path)] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sorted(Path(file).name for file in sources) == ["lru.py", "ours.py", "slo_admission.py"]


def test_oracle_is_declared_when_any_of_the_policies_is_one() -> None:
    assert build("predictive-request+random").oracle


def test_parameters_reach_the_policy(tmp_path: Path) -> None:
    path = write(tmp_path, ROUTER)
    assert build(f"a label={path}:alpha=.3").router.alpha == 0.3  # type: ignore[attr-defined]
    assert build(f"{path}:Mine:alpha=2s").router.alpha == 2000.0  # type: ignore[attr-defined]


def test_class_of_two_kinds_is_one_object_that_serves_both(tmp_path: Path) -> None:
    text = '''
from mooncake_bench.api import Admission, Route, Router
class Both(Router, Admission):
    """Routes and admits."""
    name = "both"
    def route(self, request, cluster): return Route(prefill=0)
    def reject(self, request, route, cluster): return None
'''
    policies = build(str(write(tmp_path, text)))
    assert policies.router is policies.admission  # type: ignore[comparison-overlap]
    assert policies.evictions().name == "lru"


def test_two_classes_of_one_file_are_named_one_by_one_and_share_its_module(tmp_path: Path) -> None:
    text = (
        ROUTER
        + '''
from mooncake_bench.api import Admission
SEEN = []
class Guard(Admission):
    """Admits all."""
    name = "guard"
    def reject(self, request, route, cluster): return None
'''
    )
    path = write(tmp_path, text)
    policies = build(f"{path}:Mine+{path}:Guard")
    assert type(policies.router).__module__ == type(policies.admission).__module__
    with pytest.raises(
        PolicyError, match=r"ours.py defines several policies: name one as ours.py:Class \(Mine, Guard\)"
    ):
        build(str(path))


def test_two_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    for name, target in (("a", 0), ("b", 1)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, ROUTER.replace("prefill=0", f"prefill={target}"))
    first, second = (build(str(tmp_path / name / "ours.py")).router for name in "ab")
    assert type(first).__module__ != type(second).__module__
    nothing: Any = None
    assert (first.route(nothing, nothing).prefill, second.route(nothing, nothing).prefill) == (0, 1)


def test_file_is_read_anew_after_an_edit(tmp_path: Path) -> None:
    path = write(tmp_path, ROUTER)
    build(str(path))
    write(tmp_path, ROUTER.replace("alpha: float = 0.5", "alpha: float = 0.7"))
    assert build(str(path)).router.alpha == 0.7  # type: ignore[attr-defined]


def test_importing_and_building_needs_none_of_the_heavy_libraries() -> None:
    code = "import sys; from mooncake_bench.plugins import build; build('early'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "scipy", "pyarrow", "matplotlib"}.intersection(loaded)


# what cannot be built


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (
            "predictve",
            "unknown policy 'predictve'; did you mean 'predictive'?; `mooncake-bench policies list` shows all; "
            "a policy file's name ends in .py",
        ),
        (
            "zzz",
            "unknown policy 'zzz'; `mooncake-bench policies list` shows all; a policy file's name ends in .py",
        ),
        (
            "kvcache-centric+random",
            "policy SPEC 'kvcache-centric+random' has two policies of kind router: 'kvcache-centric' and 'random'; "
            "keep one of each kind",
        ),
        (
            "predictive:tdd=3",
            "policy 'predictive' has no parameter 'tdd'; did you mean 'td'?; its parameters: recheck, td",
        ),
        ("lru:k=3", "policy 'lru' has no parameter 'k'; its parameters: none"),
        (
            "predictive:td=soon",
            "policy 'predictive': parameter 'td': expected a number or a duration such as 12s or ewma, found 'soon'",
        ),
        ("queue-cap:limit=2.5", "policy 'queue-cap': parameter 'limit': expected a whole number, found '2.5'"),
        ("queue-cap:limit=0", "policy 'queue-cap': limit must be 1 or more, found 0"),
        ("predictive:td=-1", "policy 'predictive': td must be a duration above 0 or 'ewma', found -1.0"),
        (
            "kvcache-centric:threshold=0.5",
            "policy 'kvcache-centric': threshold must be 1 or more and finite (cache-aware never fetches), found 0.5",
        ),
        (
            "length-aware:bias=tail",
            "policy 'length-aware': parameter 'bias': expected evict or keep or position, found 'tail'",
        ),
        ("nowhere/ours.py", "policy file nowhere/ours.py cannot be read: No such file or directory"),
    ],
)
def test_spec_that_cannot_be_built_says_why_in_one_line(spec: str, line: str) -> None:
    with pytest.raises(PolicyError) as refused:
        build(spec)
    assert str(refused.value) == line
    assert refused.value.exit_code == 2


FAULTS = {
    "a syntax error": ("x = 1\ndef broken(:\n", ", line 2: SyntaxError: invalid syntax"),
    "an import that is not there": (
        "import numpy\nimport not_there_at_all\n",
        ", line 2: ModuleNotFoundError: No module named 'not_there_at_all'",
    ),
    "an error while it runs": ("a = 1\n\nb = a / 0\n", ", line 3: ZeroDivisionError: division by zero"),
    "a call to exit": ("raise SystemExit(3)\n", ", line 1: SystemExit: 3"),
    "what is no Exception": ("raise GeneratorExit\n", ", line 1: GeneratorExit: "),
    "no policy": (
        "x = 1\n",
        " defines no policy: expected a class derived from Router, Admission or Eviction of mooncake_bench.api",
    ),
    "a policy that is only imported": (
        "from mooncake_bench.api import Router\n",
        " defines no policy: expected a class derived from Router, Admission or Eviction of mooncake_bench.api",
    ),
    "a class of no kind": (
        "from mooncake_bench.api import Policy\nclass Odd(Policy):\n    name = 'odd'\n",
        ": class Odd is of no kind: derive it from Router, Admission or Eviction of mooncake_bench.api",
    ),
    "no name": (
        ROUTER.replace('    name = "mine"\n', ""),
        ': class Mine has no name: add name = "mine" (a mere base class starts with _)',
    ),
    "a name no SPEC can hold": (
        ROUTER.replace('"mine"', '"my own+router"'),
        ": class Mine: name 'my own+router' cannot be written in a SPEC: use letters, digits, '-', '_' and '.'",
    ),
    "no required method": (
        ROUTER.replace("def route", "def rout"),
        ": class Mine is a Router without its method route(); write it",
    ),
    "fields without @dataclass": (
        ROUTER.replace("@dataclass\n", ""),
        ": class Mine: alpha would be no parameters; parameters are dataclass fields: "
        "decorate the class with @dataclass",
    ),
    "an __init__ of its own": (
        ROUTER.replace("@dataclass\n", "").replace(
            "alpha: float = 0.5", "def __init__(self, alpha=0.5): self.alpha = alpha"
        ),
        ": class Mine: its __init__ hides its parameters; parameters are dataclass fields: "
        "decorate the class with @dataclass",
    ),
    "a parameter no SPEC can set": (
        ROUTER.replace("alpha: float = 0.5", "alpha: dict = None"),
        ": class Mine: parameter 'alpha' must be an int, float, bool, str, Literal or a union of these",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_policy_file_names_the_file_and_the_fault(fault: str, tmp_path: Path) -> None:
    text, line = FAULTS[fault]
    path = write(tmp_path, text)
    with pytest.raises(PolicyError) as refused:
        build(str(path))
    assert str(refused.value) == f"policy file {path}{line}"


def test_file_with_unreadable_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ours.py"
    path.write_bytes(b"name = '\xff\xfe'\n")
    with pytest.raises(PolicyError, match=r"policy file .*ours.py, line \d+: SyntaxError"):
        build(str(path))


def test_class_that_a_file_lacks_is_named_with_the_nearest_it_has(tmp_path: Path) -> None:
    path = write(tmp_path, ROUTER)
    with pytest.raises(PolicyError, match=r"ours.py has no policy class 'Mime'; did you mean 'Mine'\?; it has: Mine"):
        build(f"{path}:Mime")


def test_parameter_without_a_default_must_be_given(tmp_path: Path) -> None:
    path = write(tmp_path, ROUTER.replace("alpha: float = 0.5", "alpha: float"))
    with pytest.raises(PolicyError) as refused:
        build(str(path))
    assert str(refused.value) == "policy 'mine': parameter 'alpha' must be given (a number)"
    assert build(f"{path}:alpha=1").router.alpha == 1.0  # type: ignore[attr-defined]


def test_annotations_that_do_not_exist_at_run_time_fall_back_on_the_default(tmp_path: Path) -> None:
    text = "from __future__ import annotations\n" + ROUTER.replace("alpha: float = 0.5", "alpha: Fraction = 2")
    assert build(f"{write(tmp_path, text)}:alpha=3").router.alpha == 3  # type: ignore[attr-defined]


# discovery


def test_folder_adds_its_policies_and_a_broken_file_hides_no_other(tmp_path: Path) -> None:
    write(tmp_path, ROUTER)
    broken = write(tmp_path, "def broken(:\n", "broken.py")
    write(tmp_path, "raise RuntimeError\n", "_helper.py")
    found = discover([tmp_path])
    assert found["mine"].kinds == ("router",)
    assert found["mine"].doc == "To instance 0."
    assert found["mine"].parameters["alpha"].takes == "a number"
    assert found["broken"].error == f"policy file {broken}, line 1: SyntaxError: invalid syntax"
    assert "lru" in found
    assert "_helper" not in found
    assert build("mine:alpha=1", [tmp_path]).router.name == "mine"
    with pytest.raises(PolicyError, match=r"broken.py, line 1: SyntaxError"):
        build("broken", [tmp_path])


def test_environment_variable_names_more_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ROUTER)
    monkeypatch.setenv("MOONCAKE_BENCH_POLICIES", str(tmp_path))
    assert find("mine").file == tmp_path / "ours.py"


def test_folder_that_is_not_there_is_refused_naming_who_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PolicyError, match=r"--policy-dir: .*gone is not a folder of policy files"):
        discover([tmp_path / "gone"])
    monkeypatch.setenv("MOONCAKE_BENCH_POLICIES", str(tmp_path / "gone"))
    with pytest.raises(PolicyError, match=r"MOONCAKE_BENCH_POLICIES: .*gone is not a folder of policy files"):
        discover()


def test_name_that_two_files_share_is_refused_rather_than_guessed(tmp_path: Path) -> None:
    path = write(tmp_path, ROUTER.replace('"mine"', '"random"'))
    line = f"policy file {path}: the name 'random' is taken by .*uniform_random.py; rename one"
    with pytest.raises(PolicyError, match=line):
        build("random", [tmp_path])
    assert build(str(path)).router.name == "random"


def test_same_folder_named_twice_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, ROUTER)
    assert find("mine", [tmp_path, tmp_path / "."]).error is None


@dataclass
class Packaged(Router):
    """A policy of an installed package."""

    name = "packaged"

    def route(self, request: Request, cluster: Cluster) -> Route:
        return Route(prefill=0)


class Unnamed(Admission):
    """An installed policy with a fault."""

    def reject(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        return None


def test_entry_points_add_policies_and_a_broken_one_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def entries(group: str) -> EntryPoints:
        return EntryPoints(
            EntryPoint(name, f"{where}", group)
            for name, where in (
                ("packaged", f"{__name__}:Packaged"),
                ("unnamed", f"{__name__}:Unnamed"),
                ("gone", "not_there_at_all:Policy"),
                ("function", f"{__name__}:write"),
            )
        )

    monkeypatch.setattr(catalogue, "entry_points", entries)
    found = discover()
    assert found["packaged"].error is None
    assert build("packaged").sources.keys() >= {str(Path(__file__))}
    assert "No module named 'not_there_at_all'" in (found["gone"].error or "")
    assert (found["function"].error or "").endswith("is no policy class")
    assert 'class Unnamed has no name: add name = "unnamed"' in (found["unnamed"].error or "")


@pytest.mark.parametrize(
    ("rest", "label"),
    [("", "{}"), (":a=2", "{}:a=2"), (":Mine:a=2", "{}:a=2"), (":a=2+lfu", "{}:a=2+lfu")],
)
def test_a_file_is_called_by_its_policys_name_without_its_folders(rest: str, label: str, tmp_path: Path) -> None:
    path = tmp_path / "ours.py"
    path.write_text(
        "from dataclasses import dataclass\nfrom mooncake_bench.api import Admission\n@dataclass\n"
        "class Mine(Admission):\n    name = 'mine'\n    a: int = 1\n"
        "    def reject(self, request, route, cluster): ...\n",
        encoding="utf-8",
    )
    assert build(f"{path}{rest}").label == label.format("mine")
    assert build(f"x={path}{rest}").label == "x"
