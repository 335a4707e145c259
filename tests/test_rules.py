"""Every rule of the contract has a test that cites it, and the table of them is as the tests are."""

from __future__ import annotations

from rules import TABLE, citations, cited, table

UNBUILT = {
    *("R8", "A2", "A3", "A6"),
    *("E1", "E2", "E3", "E4", "E5", "E6", "I1", "I2", "I3", "O8"),
    *("X2", "X3", "X4", "X7", "S1", "S2", "S4"),
}
"""Rules without a test. The test below keeps this honest in both directions: it can only shrink."""


def test_each_rule_has_a_test_that_cites_it() -> None:
    assert {rule for rule, files in citations().items() if not files} == UNBUILT


def test_the_table_is_written_anew() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(), "python -m tests.rules writes it"


def test_what_counts_as_a_citation() -> None:
    assert cited("rule R3 (see C5 to C7, A5a) and case F10, B46, T1-T3") == {
        *("R3", "C5", "C6", "C7", "A5a", "T1", "T2", "T3")
    }
