"""The SPEC grammar: ``[LABEL=]NAME | FILE.py[:Class]``, then ``[:k=v,k=v]``, joined by ``+`` across kinds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mooncake_bench.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Iterator

GRAMMAR = "[LABEL=]NAME or FILE.py[:Class], then [:k=v,k=v], joined by + across kinds"

_LABEL = re.compile(r"(?P<label>\w[\w.@ -]*)?=(?P<rest>.*)")
_FILE = re.compile(r"(?P<target>.*?\.py)(?::(?P<class_name>\w+)(?=:|$))?(?::(?P<parameters>.*))?")
_NAME = re.compile(r"(?P<target>[^:]+)(?P<class_name>)(?::(?P<parameters>.*))?")
_PLUS = re.compile(r"(?<!\de)(?<!\dE)\+|\+(?!\d)")  # not the sign of an exponent, as in 1e+3


@dataclass(frozen=True)
class Part:
    """One policy of a SPEC, its parameters still text."""

    text: str  # as written, without the label
    target: str  # a name, or the path of a file
    class_name: str | None = None  # of a file with several
    parameters: dict[str, str] = field(default_factory=dict)

    @property
    def is_file(self) -> bool:
        return self.target.endswith(".py")


@dataclass(frozen=True)
class Spec:
    """A whole SPEC; ``label`` is the text as written unless it starts with one."""

    text: str
    label: str
    parts: tuple[Part, ...]

    @property
    def labelled(self) -> bool:
        """Whether the text starts with a label of its own."""
        return self.label != self.text.strip()


def parse(text: str) -> Spec:
    """Read a SPEC. Raises PolicyError when it does not follow the grammar."""
    pieces = list(_pieces(text.strip()))
    label, pieces[0] = _split_label(pieces[0], text)
    return Spec(text, label or text.strip(), tuple(_part(piece, text) for piece in pieces))


def unlabelled(text: str) -> str:
    """A SPEC without the label it may start with. Raises PolicyError when it does not follow the grammar."""
    return "+".join(part.text for part in parse(text).parts)


def _bad(text: str, why: str) -> PolicyError:
    return PolicyError(f"policy SPEC {text!r}: {why}; expected {GRAMMAR}")


def _pieces(text: str) -> Iterator[str]:
    """The text cut at its joining pluses; a ``+`` inside the path of a file belongs to the path."""
    pending = ""
    for piece in _PLUS.split(text):
        pending += piece
        head = pending.split(":")[0]
        if ("/" in head or "\\" in head) and ".py" not in head:
            pending += "+"
            continue
        yield pending
        pending = ""
    if pending:
        yield pending.removesuffix("+")


def _split_label(piece: str, text: str) -> tuple[str | None, str]:
    head = piece.split(":")[0]
    match = _LABEL.match(piece) if "=" in head else None
    if match is None:
        if "=" in head and not _FILE.fullmatch(piece):  # the path of a file may hold one
            label = head.split("=")[0].strip()
            raise _bad(text, f"label {label!r}: use letters, digits, spaces and _ . @ - in a label, a letter first")
        return None, piece
    if not match["label"]:
        raise _bad(text, "the label before '=' is empty")
    return match["label"].strip(), match["rest"]


def _part(piece: str, text: str) -> Part:
    piece = piece.strip()
    if not piece:
        raise _bad(text, "a policy is missing")
    match = _FILE.fullmatch(piece) or _NAME.fullmatch(piece)
    if match is None:
        raise _bad(text, f"{piece!r} names no policy")
    target: str = match["target"]
    if "=" in target and not target.endswith(".py"):
        raise _bad(text, f"a label goes before the whole SPEC, not before {target.split('=')[1]!r}")
    return Part(piece, target, match["class_name"] or None, _parameters(match["parameters"], piece, text))


def _parameters(listed: str | None, piece: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in [] if listed is None else listed.split(","):
        key, equals, value = (word.strip() for word in item.partition("="))
        if not (key and equals and value):
            raise _bad(text, f"found {item!r} where {piece.split(':')[0]!r} takes k=v")
        if key in found:
            raise _bad(text, f"parameter {key!r} is given twice")
        found[key] = value
    return found
