"""A gate's outcome as JUnit XML: a test suite a policy, a test case a rule.

Broken rules are failures; what says nothing (inconclusive, without a baseline) is skipped, with its reason. The layout
is the one CI systems read (Ant's and Jenkins' schemas): no attribute of either is missing. The time that the gate took
is shared out evenly among its suites, for its policies are judged together; a rule takes none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

from mooncake_bench.report.gate_sheets import why
from mooncake_bench.results.gate.judge import PASS
from mooncake_bench.results.words import clean

if TYPE_CHECKING:
    from mooncake_bench.results.gate.judge import Check
    from mooncake_bench.results.gate.outcome import Outcome

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(outcome: Outcome) -> str:
    """The document, with its XML declaration."""
    root = Xml.Element("testsuites")
    labels = dict.fromkeys(check.policy for check in outcome.checks)
    for place, label in enumerate(labels):
        root.append(_suite(outcome, label, place, len(labels)))
    Xml.indent(root)
    text = Xml.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(outcome: Outcome, label: str, place: int, suites: int) -> Xml.Element:
    checks = [check for check in outcome.checks if check.policy == label]
    cases = [_case(outcome, check) for check in checks]
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": 0,
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    suite = Xml.Element("testsuite", {"name": _text(label), **{key: str(value) for key, value in counts.items()}})
    where = {"hostname": "localhost", "package": "mooncake-bench.gate", "id": str(place)}
    suite.attrib |= {"time": f"{outcome.took_s / suites:.3f}", "timestamp": _time(outcome.when), **where}
    properties = Xml.SubElement(suite, "properties")
    for name, value in (("base", outcome.base), ("new", outcome.new)):
        Xml.SubElement(properties, "property", name=name, value=_text(value) or "-")
    suite.extend(cases)
    for name in ("system-out", "system-err"):
        Xml.SubElement(suite, name).text = ""
    return suite


def _case(outcome: Outcome, check: Check) -> Xml.Element:
    case = Xml.Element("testcase", name=_text(check.rule.text), classname=f"gate.{_text(check.policy)}", time="0")
    reason = _text(why(check))
    if outcome.fails(check):
        Xml.SubElement(case, "failure", message=reason, type=check.verdict).text = reason
    elif check.verdict != PASS:
        Xml.SubElement(case, "skipped", message=reason)
    return case


def _time(when: str) -> str:
    """A time as the schema writes it, without a zone; the epoch where it is not known."""
    match = re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", when)
    return match[0] if match else "1970-01-01T00:00:00"


def _text(text: str) -> str:
    """Text that XML may hold, on one line."""
    return _NOT_XML.sub("?", clean(text))
