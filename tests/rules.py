"""The rules of the contract, and which tests show each: ``python -m tests.rules`` writes tests/RULES.md.

A test cites a rule by its number in its comments or docstring (``# R3``, ``Rule B1: ...``);
a class or a module cites for what is in it. Numbers such as ``F10``, ``W33`` and ``B46`` are cases of the two model
systems and of public reports, not rules; they are left out here.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
TABLE: Final = HERE / "RULES.md"

RULES: Final = {
    "T1": "instants and durations are integer microseconds",
    "T2": "the store's clock, read after the last lock, is the only one",
    "T3": "a state never sees time run backwards",
    "T4": "due, over and lapsed include the instant itself",
    "T5": "durations: what is read and what is refused",
    "T6": "rates: what is read and what is refused, at declaration",
    "T7": "aware datetimes; keys of 1 to 512 bytes, hashed for storage",
    "T8": "the namespace is part of every identity",
    "R1": "one bucket per task and per queue, stored, full at first",
    "R2": "the law: at most burst + rate x T starts in any T, exactly",
    "R3": "gates are part of selection; a closed lane delays nobody",
    "R4": "all gates are judged together; a refusal changes nothing",
    "R5": "a retry takes a token; a changed limit keeps its level; the newest declaration wins once",
    "R6": "burst=1 at 10/s starts at exactly 0.0, 0.1, 0.2 s",
    "R7": "a cost above the burst, zero or negative is refused",
    "R8": "partitioned limits: a bucket per rendered key",
    "D1": "drop: a due first attempt over a rate limit is shed while a slot is free",
    "D1a": "what waits for a slot only is no excess",
    "D2": "its dead letter: the error's text, the marker, no start",
    "D3": "no events for a shed job; a waiter gets JobShed",
    "D4": "only a rate limit is excess; breaker, cap and retry wait",
    "D5": "no automatic retry of what was shed; a manual one is not shed again",
    "C1": "a call with the key of a live job returns that job",
    "C2": "any final state frees the key in the same statement",
    "C3": "a key is of one namespace, task and scope",
    "C4": "a derived key: equal calls have equal keys",
    "C5": "an explicit key wins; idempotent=False turns derivation off",
    "C6": "a batch decides each item in order, inside the batch too",
    "C7": "of two racing transactions one inserts, the other waits",
    "B1": "deadline = min(now + window, first_seen + max_wait)",
    "B2": "only a job that has never started is merged into",
    "B3": "it can be merged into however late it is",
    "B4": "window, key and max wait come together, checked at declaration",
    "B5": "which payload runs; all else belongs to the opening call",
    "B6": "a call's debounce options define the whole set",
    "B7": "what is refused together with debounce, and why",
    "B8": "the admission cap counts only an insert",
    "K1": "key templates: names, positions, one step; nothing that can call code",
    "K2": "parsed at declaration; an empty placeholder is refused at the call",
    "K3": "a template without placeholders is one window for the task",
    "E1": "keyed debounce: reset and its ceiling, preserve",
    "E2": "the latest accepted payload and options run",
    "E3": "accepted, replaced, or non_replaceable with a reason",
    "E4": "final and over: a new job; an early end releases the key",
    "E5": "when_closed='reopen' opens a window behind",
    "E6": "the result tells job, outcome, reason, run time, deadline, hits",
    "I1": "idempotent replay, and the conflict that names what differs",
    "I2": "Throttle: accepted once a window; keep, error or trailing",
    "I3": "one keyed mode a request; a key of another mode is told",
    "I4": "a batch locks its keys in one sorted order",
    "A1": "concurrency caps are exact, derived from live leases",
    "A2": "a task's share of one worker's slots",
    "A3": "the pending cap is exact at the insert",
    "A4": "a worker claims no more than its free slots",
    "A5": "priority, then eligibility, then insertion; queues by weighted round robin",
    "A5a": "claim(n) equals n claims of one at the same instant",
    "A6": "pause and resume: sojourn stands still and restarts",
    "O1": "CoDel's state is one row a queue, in the dispatch transaction",
    "O2": "both laws, as RFC 8289 and folly have them",
    "O3": "one judgement a start or shed; fed the oldest waiting job",
    "O4": "sojourn counts from eligibility",
    "O5": "the order of judgement of a due job",
    "O6": "the dead letter of what CoDel shed",
    "O7": "catch-up is bounded by max_shed",
    "O8": "max_age sheds and expires ends at their own instants",
    "X1": "retries: full jitter or exact delays; which errors",
    "X2": "a budget of retries per task",
    "X3": "the circuit breaker",
    "X4": "the timeout of an attempt",
    "X5": "lease, heartbeat, fencing; crashes are counted apart",
    "X6": "at least once; completion in the handler's transaction",
    "X7": "dependencies and their cascade",
    "X8": "dead letters: list, filter, retry, purge, sweep",
    "X9": "cancel; payload and result limits; one bad item fails alone",
    "S1": "every enqueue says what happened",
    "S2": "the surface: delay, apply_async, enqueue, by name, in batches",
    "S3": "enqueue in the caller's transaction",
    "S4": "middleware and events",
    "S5": "memory:// with a clock that the test moves",
}
"""Rule -> what it says, in a few words."""

_FIRST_CASE: Final = 9
"""B1 to B8 are rules; from B9 on they are cases of reports."""
_CITED: Final = re.compile(r"\b([A-Z])(\d{1,2}a?)(?:\s*(?:-|to)\s*\1?(\d{1,2}))?\b")


def cited(text: str) -> set[str]:
    """Return the rules that a text cites; ``C1-C7`` and ``B1 to B4`` are ranges."""
    found = set()
    for letter, first, last in _CITED.findall(text):
        names = [first]
        if last and first.isdigit():
            names = [str(number) for number in range(int(first), int(last) + 1)]
        for name in names:
            if letter == "B" and int(name.rstrip("a")) >= _FIRST_CASE:
                continue
            found.add(f"{letter}{name}")
    return found & RULES.keys()


def _prose(source: str) -> str:
    """The comments and strings of a piece of Python."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    try:
        return "\n".join(
            token.string for token in tokens if token.type in (tokenize.COMMENT, tokenize.STRING)
        )
    except (tokenize.TokenError, IndentationError):
        return source


def _tests(
    body: list[ast.stmt], lines: list[str], prefix: str, over: set[str]
) -> Iterator[tuple[str, set[str]]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            text = (ast.get_docstring(node) or "") + _prose(lines[node.lineno - 1])
            yield from _tests(node.body, lines, f"{prefix}{node.name}.", over | cited(text))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            source = "\n".join(line.strip() for line in lines[first - 1 : node.end_lineno])
            yield prefix + node.name, over | cited(_prose(source))


def citations() -> dict[str, dict[str, list[str]]]:
    """Return rule -> file -> names of the tests that cite it; an empty list where the module as a whole does."""
    found: dict[str, dict[str, list[str]]] = {rule: {} for rule in RULES}
    for path in sorted(HERE.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        name = path.relative_to(HERE).as_posix()
        for rule in cited(ast.get_docstring(tree) or ""):
            found[rule].setdefault(name, [])
        for test, rules in _tests(tree.body, source.splitlines(), "", set()):
            for rule in rules:
                found[rule].setdefault(name, []).append(test)
    return found


def table() -> str:
    """Return the table as Markdown."""
    rows = [
        "# Which test shows which rule",
        "",
        "Written by `python -m tests.rules`; a test holds it to the truth. A file without names cites the rule as a whole.",
        "",
        "| rule | what it says | tests |",
        "|---|---|---|",
    ]
    for rule, files in citations().items():
        cells = [
            f"`{name}`" + (f": {', '.join(t.removeprefix('test_') for t in tests)}" if tests else "")
            for name, tests in sorted(files.items())
        ]
        rows.append(f"| {rule} | {RULES[rule]} | {'; '.join(cells) or 'none yet'} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
