"""Measure all subjects in one run and print the tables: ``python -m benchmarks [SUBJECT ...]``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.drain import drain
from benchmarks.enqueue import bulk, single
from benchmarks.pickup import pickup
from benchmarks.simulate import simulate
from benchmarks.yardstick import Sizes, measure, place, table

_SUBJECTS: Final = {"single": single, "bulk": bulk, "drain": drain, "pickup": pickup, "simulate": simulate}
_QUICK: Final = Sizes(single=500, bulk=5_000, drain=5_000, pickups=20, simulated=20_000)


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(_SUBJECTS)}; default: all"
    )
    parser.add_argument(
        "--database-url", help="a role that may create databases; default: an embedded server"
    )
    parser.add_argument("--rounds", type=int, help="measured rounds of each subject; default: 5")
    parser.add_argument("--quick", action="store_true", help="2 rounds of small runs: a look, no result")
    parser.add_argument("--json", type=Path, help="write every run's figures to this file, too")
    options = parser.parse_args()
    names = options.subjects or list(_SUBJECTS)
    if unknown := set(names) - set(_SUBJECTS):
        parser.error(f"no such subject: {', '.join(sorted(unknown))}")
    rounds = options.rounds or (2 if options.quick else 5)
    sizes = _QUICK if options.quick else Sizes()

    begun = time.monotonic()
    report: dict[str, Any] = {}
    with place(options.database_url) as where:
        lines = where.describe()
        print(
            "\n".join(lines), f"\nmedian (min-max) of {rounds} rounds; ratio to the first row\n", flush=True
        )
        for name in names:
            with _SUBJECTS[name](where, sizes) as subject:
                figures = measure(subject, rounds)
            report[name] = {"title": subject.title, "runs": figures}
            print(table(subject, figures), end="\n\n", flush=True)
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    if options.json is not None:
        document = {"where": lines, "rounds": rounds, "sizes": sizes._asdict(), "subjects": report}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
