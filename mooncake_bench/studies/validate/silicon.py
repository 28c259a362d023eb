"""What the two checks of aiconfigurator's serving points share: reading them, and why some take no part."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mooncake_bench.studies.validate.files import Line

FILE = "aiconfigurator/silicon_sample.csv.gz"
SOURCE = "aiconfigurator's silicon_sample (NVIDIA), end-to-end TPOT"
SYSTEMS = {"h100_sxm": "h100", "h200_sxm": "h200"}
"""System -> node preset."""
ENGINES = {"vllm": "vLLM", "trtllm": "TRT-LLM", "sglang": "SGLang"}
SHORT = {"Qwen3-235B-A22B-FP8": "Qwen3-235B", "Qwen3.5-397B-A17B": "Qwen3.5-397B"}
MOST_TTFT_MS = 5000.0
"""From here on a first token has waited in a queue: such a row's concurrency is not its batch."""


@dataclass(frozen=True)
class Serving:
    """One serving point: a fixed concurrency of equal requests, prefill and decode on the same GPUs."""

    model: str
    system: str
    backend: str
    tp: int
    precision: str
    layout: str
    """How experts and data are spread; empty when only tensors are."""
    batch: float
    """Sequences on each copy of the attention layers."""
    prompt: float
    answer: float
    tpot_ms: float

    @property
    def key(self) -> tuple[float, float, float]:
        return self.batch, self.prompt, self.answer

    @property
    def label(self) -> str:
        return f"{self.prompt:g} in, {self.answer:g} out, batch {self.batch:g}"

    @property
    def tokens(self) -> float:
        """Context of the batch, halfway through the answer."""
        return self.batch * (self.prompt + self.answer / 2)

    @property
    def group(self) -> tuple[str, str, str, int, str, str]:
        return self.model, self.system, self.backend, self.tp, self.precision, self.layout

    @property
    def name(self) -> str:
        """Short name of the group."""
        layout = f" {self.layout}" if self.layout else ""
        return f"{SHORT.get(self.model, self.model)} {SYSTEMS[self.system]} {ENGINES[self.backend]} TP{self.tp}{layout}"


def servings(lines: Iterable[Line], models: Sequence[str]) -> tuple[list[Serving], tuple[str, ...]]:
    """The points of ``models`` (the last part of their path) that a fixed batch describes; the others, in words."""
    left: Counter[str] = Counter()
    found = []
    for line in lines:
        why = _unfit(line, models)
        if why:
            left[why] += 1
        else:
            found.append(_serving(line))
    return found, tuple(f"{count} rows {why}" for why, count in left.items())


def _unfit(line: Line, models: Sequence[str]) -> str:
    if line.text("system") not in SYSTEMS:
        return "on GPUs without a preset here"
    if line.text("mode") != "agg":
        return "with prefill and decode on different GPUs"
    if line.text("backend") not in ENGINES or _model(line) not in models:
        return "of other models"
    if line.number_of("silicon_ttft_ms") >= MOST_TTFT_MS:
        return f"with a TTFT of {MOST_TTFT_MS / 1000:g} s or more: queueing"
    return ""


def _model(line: Line) -> str:
    return line.text("model_path").rsplit("/", 1)[-1]


def _serving(line: Line) -> Serving:
    batch, prompt, answer, tpot = (line.positive(key) for key in ("batch_size", "isl", "osl", "silicon_tpot_ms"))
    return Serving(
        model=_model(line),
        system=line.text("system"),
        backend=line.text("backend"),
        tp=int(line.positive("tp_size")),
        precision=line.text("gemm_quant_mode"),
        layout=_layout(line),
        batch=batch,
        prompt=prompt,
        answer=answer,
        tpot_ms=tpot,
    )


def _layout(line: Line) -> str:
    """Expert and data parallelism where there is any; a blank cell says none."""
    parts = (("EP", "moe_ep_size"), ("DP", "attention_dp_size"))
    sizes = {name: int(line.positive(key)) if line.text(key) else 1 for name, key in parts}
    shown = [f"{name}{size}" for name, size in sizes.items() if size > 1]
    expert_tp = int(line.positive("moe_tp_size")) if line.text("moe_tp_size") else 1
    if expert_tp * sizes["EP"] not in (1, int(line.positive("tp_size")) * sizes["DP"]):
        shown.append(f"MoE-TP{expert_tp}")  # as the table has it, though it does not add up to the GPUs
    return " ".join(shown)


def grouped(found: Iterable[Serving]) -> list[list[Serving]]:
    """The points of one model, system, engine, parallelism and precision together."""
    groups: dict[object, list[Serving]] = defaultdict(list)
    for one in found:
        groups[one.group].append(one)
    return list(groups.values())


def names(groups: Sequence[Sequence[Serving]]) -> list[str]:
    """A name for each group, with the precision where two would share one."""
    plain = [group[0].name for group in groups]
    return [
        name if plain.count(name) == 1 else f"{name} {group[0].precision or 'precision not said'}"
        for name, group in zip(plain, groups, strict=True)
    ]
