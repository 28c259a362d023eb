"""One policy file: run it under a name of its own, and check the classes it defines."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import traceback
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import lru_cache
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from mooncake_bench.api import Admission, Eviction, Policy, Router
from mooncake_bench.errors import PolicyError, faults, nearest
from mooncake_bench.plugins import values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

KINDS: dict[str, tuple[type[Policy], str]] = {  # kind: its base class, the method it must write
    "router": (Router, "route"),
    "admission": (Admission, "reject"),
    "eviction": (Eviction, "evict"),
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a policy: what it takes, and its default (``MISSING``: it must be given)."""

    name: str
    annotation: Any
    default: Any

    @property
    def takes(self) -> str:
        return values.expected(self.annotation, self.name)

    @property
    def required(self) -> bool:
        return self.default is MISSING


@dataclass(frozen=True)
class PolicyClass:
    """A policy that was found; ``cls`` is None and ``error`` says why when it cannot be used."""

    name: str
    file: Path
    sha256: str = ""
    cls: type[Policy] | None = None
    kinds: tuple[str, ...] = ()
    doc: str = ""  # of the class: what it does
    source: str = ""  # of the file: where it comes from
    parameters: dict[str, Parameter] = field(default_factory=dict)
    oracle: bool = False
    error: str | None = None

    def make(self, given: dict[str, str]) -> Policy:
        """A fresh policy object with parameters from the text of a SPEC. Raises PolicyError."""
        if self.cls is None:
            raise PolicyError(self.error or f"policy {self.name!r} cannot be used")
        arguments = {key: self._value(key, text) for key, text in given.items()}
        for key, parameter in self.parameters.items():
            if parameter.required and key not in given:
                raise PolicyError(f"policy {self.name!r}: parameter {key!r} must be given ({parameter.takes})")
        try:
            return self.cls(**arguments)
        except faults() as error:
            raise PolicyError(f"policy {self.name!r}: {error or type(error).__name__}") from error

    def _value(self, key: str, text: str) -> Any:
        if key not in self.parameters:
            known = ", ".join(self.parameters) or "none"
            hint = nearest(key, self.parameters)
            raise PolicyError(f"policy {self.name!r} has no parameter {key!r}{hint}; its parameters: {known}")
        try:
            return values.read(text, self.parameters[key].annotation, key)
        except ValueError as error:
            raise PolicyError(f"policy {self.name!r}: parameter {key!r}: {error}") from None


def load_file(path: Path) -> list[PolicyClass]:
    """The policies a file defines, in the order it defines them. Raises PolicyError naming the file and the reason."""
    module, sha256 = _run(path)
    found = [
        cls
        for cls in vars(module).values()
        if isinstance(cls, type)
        and issubclass(cls, Policy)
        and cls.__module__ == module.__name__
        and not cls.__name__.startswith("_")
    ]
    if not found:
        raise PolicyError(f"policy file {path} defines no policy: expected a class derived from {_bases()}")
    return [describe_class(cls, path, sha256, inspect.getdoc(module) or "") for cls in dict.fromkeys(found)]


def describe_class(cls: type[Policy], path: Path, sha256: str, source: str) -> PolicyClass:
    """Check one class and say what it is. Raises PolicyError naming the file, the class and the fault."""
    where = f"policy file {path}: class {cls.__name__}"
    kinds = tuple(kind for kind, (base, _) in KINDS.items() if issubclass(cls, base))
    if not kinds:
        raise PolicyError(f"{where} is of no kind: derive it from {_bases()}")
    name = getattr(cls, "name", None)
    if not isinstance(name, str):
        raise PolicyError(
            f'{where} has no name: add name = "{_suggest(cls.__name__)}" (a mere base class starts with _)'
        )
    if not _NAME.fullmatch(name) or name.endswith(".py"):
        raise PolicyError(f"{where}: name {name!r} cannot be written in a SPEC: use letters, digits, '-', '_' and '.'")
    for kind in kinds:
        base, method = KINDS[kind]
        if getattr(cls, method) is getattr(base, method):
            raise PolicyError(f"{where} is a {base.__name__} without its method {method}(); write it")
    return PolicyClass(
        name=name,
        file=path,
        sha256=sha256,
        cls=cls,
        kinds=kinds,
        doc=_doc(cls),
        source=source,
        parameters=dict(_parameters(cls, where)),
        oracle=bool(cls.oracle),
    )


def sha256_of(path: Path) -> str:
    """The digest of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(path: Path) -> tuple[ModuleType, str]:
    try:
        code = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"policy file {path} cannot be read: {error.strerror or error}") from None
    sha256 = hashlib.sha256(code).hexdigest()
    # A name of its own, so that two files called ours.py, or two versions of one, never meet.
    unique = hashlib.sha256(f"{path.resolve()}{sha256}".encode()).hexdigest()[:12]
    module = ModuleType(f"mooncake_bench_policy_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{unique}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    try:
        exec(_compiled(code, str(path)), vars(module))
    except faults() as error:
        del sys.modules[module.__name__]
        raise PolicyError(f"policy file {path}{_reason(error, path)}") from error
    return module, sha256


@lru_cache(maxsize=256)
def _compiled(code: bytes, path: str) -> CodeType:
    """Compiled once: a study or a check runs every file of a folder anew for each policy it builds."""
    return compile(code, path, "exec", dont_inherit=True)


def _reason(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    at = f", line {lines[-1]}" if lines else ""
    return f"{at}: {type(error).__name__}: {' '.join(str(error).split())}"


def _parameters(cls: type[Policy], where: str) -> Iterator[tuple[str, Parameter]]:
    forgotten = _undecorated(cls)
    if forgotten or (not is_dataclass(cls) and cls.__init__ is not object.__init__):
        what = f"{', '.join(forgotten)} would be no parameters" if forgotten else "its __init__ hides its parameters"
        raise PolicyError(f"{where}: {what}; parameters are dataclass fields: decorate the class with @dataclass")
    declared: tuple[Field[Any], ...] = fields(cls) if is_dataclass(cls) else ()
    for item in declared:
        if item.init and item.name not in ("name", "oracle"):
            default = item.default if item.default_factory is MISSING else item.default_factory()
            annotation = _annotation(item.type, cls, default)
            if not values.readable(annotation):
                raise PolicyError(
                    f"{where}: parameter {item.name!r} must be an int, float, bool, str, Literal or a union of these"
                )
            yield item.name, Parameter(item.name, annotation, default)


def _undecorated(cls: type[Policy]) -> list[str]:
    """Fields that the class annotates although it is no dataclass itself."""
    if "__dataclass_params__" in vars(cls):
        return []
    noted: dict[str, Any] = inspect.get_annotations(cls)
    return [
        key
        for key, kind in noted.items()
        if "ClassVar" not in str(kind) and key not in ("name", "oracle") and not key.startswith("_")
    ]


def _annotation(noted: Any, cls: type, default: Any) -> Any:
    if not isinstance(noted, str):
        return noted
    for owner in cls.__mro__:
        try:
            return eval(noted, vars(sys.modules[owner.__module__]))
        except Exception:  # the names of an annotation need not exist at run time
            continue
    return str if default is MISSING else type(default)


def _doc(cls: type[Policy]) -> str:
    doc = cls.__doc__ or ""  # not inherited; a dataclass without one is given its signature
    return "" if doc.startswith(f"{cls.__name__}(") else inspect.cleandoc(doc)


def _suggest(class_name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", class_name).lower()


def _bases() -> str:
    return "Router, Admission or Eviction of mooncake_bench.api"


def choose(found: Iterable[PolicyClass], class_name: str | None, path: Path) -> PolicyClass:
    """The class of a file that a SPEC means. Raises PolicyError when it is not there, or several could be meant."""
    by_class = {policy.cls.__name__: policy for policy in found if policy.cls}
    if class_name is None and len(by_class) == 1:
        return next(iter(by_class.values()))
    listed = ", ".join(by_class)
    if class_name is None:
        raise PolicyError(f"policy file {path} defines several policies: name one as {path.name}:Class ({listed})")
    if class_name not in by_class:
        raise PolicyError(
            f"policy file {path} has no policy class {class_name!r}{nearest(class_name, by_class)}; it has: {listed}"
        )
    return by_class[class_name]
