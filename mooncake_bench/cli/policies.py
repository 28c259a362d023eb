"""``policies list``, ``show``, ``check`` and ``new``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.options import Example, argument, option

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands

HELP = "Policies: what there is, what each does, and writing one."
EXAMPLES = (
    Example("policies list", "every policy that can be given as -p"),
    Example("policies show predictive", "what one does and which parameters it has"),
    Example("policies new router mine", "a policy file of your own, and its test"),
)


@options.takes(options.policy_dir_option(), options.format_option())
def list_policies(**given: Any) -> None:
    """List the policies that can be given as -p, by kind."""


@options.takes(argument("name", str, "Policy name, or FILE.py[:Class]"), options.policy_dir_option())
def show(**given: Any) -> None:
    """Show what a policy does, where it comes from and which parameters it has."""


@options.takes(argument("file", str, "Policy file, or FILE.py:Class for one of its classes"))
def check(**given: Any) -> None:
    """Run the generic checks on a policy file: it loads, decides validly, repeats itself and leaves requests alone."""


@options.takes(
    argument("kind", str, "What it decides: router, admission or eviction"),
    argument("name", str, "Its name, such as my-router"),
    option("directory", Path, ("--dir",), "Folder to write into [default: the current one]", Path(), metavar="DIR"),
)
def new(**given: Any) -> None:
    """Write a policy file that works, and its test, to start from. Existing files are never overwritten."""


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
            Example("policies check mine.py", "a file of your own, as `policies new router mine` writes it"),
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
