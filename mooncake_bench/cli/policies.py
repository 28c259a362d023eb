"""``policies list``, ``show``, ``check`` and ``new``."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import render_list
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, note, policies_print_to_stderr
from mooncake_bench.errors import PolicyError, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.plugins import Parameter, PolicyClass

_ORDER = {"router": 0, "admission": 1, "eviction": 2}
HELP = "Policies: what there is, what each does, and writing one."
EXAMPLES = (
    Example("policies list", "every policy that can be given as -p"),
    Example("policies show predictive", "what one does and which parameters it has"),
    Example("policies new router mine", "a policy file of your own, and its test"),
)


@options.takes(options.policy_dir_option(), options.format_option())
def list_policies(**given: Any) -> None:
    """List the policies that can be given as -p, by kind."""
    shown = options.chosen_format(given["format"])
    from mooncake_bench.plugins import discover

    with policies_print_to_stderr():
        found = discover(given["policy_dir"] or ())
    usable = [policy for policy in found.values() if policy.error is None]
    items = [_item(policy) for policy in sorted(usable, key=lambda policy: (_ORDER[policy.kinds[0]], policy.name))]
    answer(render_list("Policies", [_narrow(item) for item in items] if shown == "table" else items, shown))
    for policy in found.values():
        if policy.error:
            note(policy.error)


def _item(policy: PolicyClass) -> dict[str, Any]:
    return {
        "kind": "+".join(policy.kinds),
        "name": policy.name,
        "parameters": [_assignment(key, parameter) for key, parameter in policy.parameters.items()],
        "does": policy.doc.splitlines()[0] if policy.doc else "",
    }


def _narrow(item: dict[str, Any]) -> dict[str, Any]:
    """The parameters behind the sentence: four columns do not fit a terminal."""
    parameters = f" [{', '.join(item['parameters'])}]" if item["parameters"] else ""
    return {"kind": item["kind"], "name": item["name"], "does": f"{item['does']}{parameters}"}


def _assignment(key: str, parameter: Parameter) -> str:
    return key if parameter.required else f"{key}={parameter.default}"


@options.takes(argument("name", str, "Policy name, or FILE.py[:Class]"), options.policy_dir_option())
def show(**given: Any) -> None:
    """Show what a policy does, where it comes from and which parameters it has."""
    from mooncake_bench.plugins import find, load_file, parse
    from mooncake_bench.plugins.load import choose

    part = parse(given["name"]).parts[0]
    _refuse_idle_folders(given["name"], part.is_file, given["policy_dir"])
    path = Path(part.target)
    with policies_print_to_stderr():
        if part.is_file:
            policy = choose(load_file(path), part.class_name, path)
        else:
            policy = find(part.target, given["policy_dir"] or ())
    answer("\n".join(_description(policy)))


def _refuse_idle_folders(name: str, is_file: bool, folders: Sequence[Path] | None) -> None:
    if is_file and folders:
        raise SetupError(f"--policy-dir {folders[0]}: no effect, {name} names its file; drop it")


def _description(policy: PolicyClass) -> Iterator[str]:
    yield f"{policy.name} ({', '.join(policy.kinds)})"
    for text in (policy.doc, policy.source):
        if text:
            yield f"\n{_filled(text)}"
    yield "\nParameters" if policy.parameters else "\nNo parameters."
    for key, parameter in policy.parameters.items():
        default = "must be given" if parameter.required else f"default {parameter.default}"
        yield f"  {key}: {parameter.takes}; {default}"
    if policy.oracle:
        yield "\nAn oracle: it sees output lengths, which no real scheduler knows."
    yield f"\nFile {policy.file}, sha256 {policy.sha256[:12]}"


def _filled(text: str) -> str:
    """Paragraphs at the width of the terminal; one with indented lines stays as it is."""
    width = shutil.get_terminal_size().columns
    paragraphs = text.split("\n\n")
    return "\n\n".join(part if "\n " in part else textwrap.fill(part, width) for part in paragraphs)


@options.takes(
    argument("file", str, "Policy file, FILE.py:Class for one of its classes, or a policy's name"),
    options.policy_dir_option(),
    options.format_option(),
)
def check(**given: Any) -> None:
    """Run the generic checks on a policy file: it loads, decides validly, repeats itself and leaves requests alone."""
    shown = options.chosen_format(given["format"])
    from mooncake_bench.checks import check_file
    from mooncake_bench.plugins import parse

    _refuse_idle_folders(given["file"], parse(given["file"]).parts[0].is_file, given["policy_dir"])
    with policies_print_to_stderr():
        results = check_file(given["file"], given["policy_dir"] or ())
    items = [{"policy": r.policy, "result": r.status, "check": r.name, "detail": r.detail} for r in results]
    answer(render_list("Checks", items, shown))
    failed = [result for result in results if result.status == "failed"]
    if failed:
        first = f"{failed[0].name}: {failed[0].detail}"
        raise PolicyError(f"policy {failed[0].policy!r} fails {len(failed)} of {len(results)} checks: {first}")


@options.takes(
    argument("kind", str, "What it decides: router, admission or eviction"),
    argument("name", str, "Its name, such as my-router"),
    option("directory", Path, ("--dir",), "Folder to write into [default: the current one]", Path(), metavar="DIR"),
)
def new(**given: Any) -> None:
    """Write a policy file that works, and its test, to start from. Existing files are never overwritten."""
    from mooncake_bench.checks.template import file_name, template

    _refuse_taken(given["name"])
    sources = template(given["kind"], given["name"])
    file = file_name(given["name"])
    for path, text in zip((given["directory"] / file, given["directory"] / f"test_{file}"), sources, strict=True):
        _write_new(path, text)
        answer(str(path))
    note(f"check it with: mooncake-bench policies check {given['directory'] / file}")


def _refuse_taken(name: str) -> None:
    from mooncake_bench.plugins import discover

    with policies_print_to_stderr():
        taken = discover().get(name)
    if taken is not None and taken.error is None:
        raise PolicyError(f"policy name {name!r} is taken by {taken.file.name} ({taken.kinds[0]}); choose another")


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise PolicyError(f"{path} exists and is never overwritten; choose another name or --dir") from None
    except OSError as error:
        raise PolicyError(f"{path} cannot be written: {error.strerror}") from None


COMMANDS: Commands = (
    (
        "list",
        list_policies,
        (
            EXAMPLES[0],
            Example("policies list --policy-dir .", "with the policy files of this folder"),
            Example("policies list --format json", "for a program"),
        ),
    ),
    (
        "show",
        show,
        (
            EXAMPLES[1],
            Example("policies show kvcache-centric", "the paper's Algorithm 1"),
            Example("policies show lru", "an eviction"),
        ),
    ),
    (
        "check",
        check,
        (
            Example("policies check mine.py", "a file of your own, here what `policies new router mine` wrote"),
            Example("policies check mine.py:Mine", "one of its classes"),
            Example("policies check kvcache-centric", "a policy that ships with the package"),
        ),
    ),
    (
        "new",
        new,
        (
            EXAMPLES[2],
            Example("policies new admission gate", "an admission instead"),
            Example("policies new eviction keep --dir .", "an eviction, in a folder of your choice"),
        ),
    ),
)
