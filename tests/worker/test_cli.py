"""The command line, in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flowq import ConfigurationError, Queue, SchemaMismatch
from flowq.cli.commands import app, load
from worker.working import HERE, drain

runner = CliRunner()


def test_migrate_makes_the_schema_once(empty_database_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="run 'flowq migrate'"):
        Queue(empty_database_url).open()
    first = runner.invoke(app, ["migrate", "--database-url", empty_database_url])
    assert first.exit_code == 0, first.output
    assert "applied 1" in first.output
    again = runner.invoke(app, ["migrate", "--database-url", empty_database_url])
    assert "up to date" in again.output
    with Queue(empty_database_url):
        pass


class TestDead:
    @pytest.fixture
    def letters(self, queue: Queue) -> list[int]:
        @queue.task(max_retries=0)
        def fails(n: int) -> None:
            raise ValueError(f"no {n}")

        @queue.task(rate_limit="1/h", on_excess="drop")
        def sample(n: int) -> None: ...

        failed = fails.delay(1)
        sample.delay(1)
        shed = sample.delay(2)
        drain(queue)
        return [failed.id, shed.id]

    def call(self, queue: Queue, *arguments: str, columns: str = "120") -> str:
        assert queue.dsn is not None
        where = ["--database-url", queue.dsn, "--namespace", queue.namespace]
        result = runner.invoke(app, ["dead", *arguments, *where], env={"COLUMNS": columns})
        assert result.exit_code == 0, result.output
        return result.output

    def test_what_comes_from_data_is_literal(self, queue: Queue) -> None:
        """Neither markup, nor emoji, nor an escape sequence of an error or a name does anything."""
        texts = [
            "cannot read [/var/data]",
            "expected list[int]",
            ":bomb: :smile:",
            "\x1b[31mred\x07 \u202eback",
        ]

        @queue.task(name="[bold]x[/]\x1b]0;t\x07", max_retries=0)
        def fails(n: int) -> None:
            raise ValueError(texts[n])

        for n in range(len(texts)):
            fails.delay(n)
        drain(queue)
        shown = self.call(queue, "list", columns="200")
        for text in (*texts[:3], r"\x1b[31mred\x07 \u202eback", r"[bold]x[/]\x1b]0;t\x07"):
            assert text in shown
        assert "\x1b" not in shown

    def test_a_letter_takes_a_line(self, queue: Queue, letters: list[int]) -> None:
        lines = [line for line in self.call(queue, "list", columns="80").splitlines() if line.strip()]
        assert len(lines) == 2 + len(letters)
        assert all(len(line) <= 80 for line in lines)

    def test_a_reason_that_is_none_is_refused(self, queue: Queue) -> None:
        result = runner.invoke(app, ["dead", "list", "--reason", "ratelimit"])
        assert result.exit_code == 2
        assert "rate_limit" in result.output

    def test_list_shows_them_newest_first(self, queue: Queue, letters: list[int]) -> None:
        shown = [json.loads(line) for line in self.call(queue, "list", "--json").splitlines()]
        assert [letter["id"] for letter in shown] == sorted(letters, reverse=True)
        assert [letter["reason"] for letter in shown] == ["rate_limit", None]
        assert shown[0]["metadata"] == {"shed": "rate_limit"}
        [only] = self.call(queue, "list", "--json", "--task", "fails").splitlines()
        assert json.loads(only)["id"] == letters[0]
        table = self.call(queue, "list")
        assert "ValueError" in table

    def test_retry_enqueues_them_again(self, queue: Queue, letters: list[int]) -> None:
        failed, shed = letters
        output = self.call(queue, "retry", str(failed))
        assert output.startswith(f"{failed} -> ")
        assert [letter.id for letter in queue.dead_letters()] == [shed]
        assert "1 enqueued again" in self.call(queue, "retry", "--all", "--reason", "rate_limit")
        assert queue.dead_letters() == []
        assert self.call(queue, "list").strip() == "no dead letters"

    def test_purge_removes_them_and_the_jobs_stay(self, queue: Queue, letters: list[int]) -> None:
        """Rule X8."""
        failed, shed = letters
        assert "1 removed" in self.call(queue, "purge", "--all", "--task", "sample")
        assert [letter.id for letter in queue.dead_letters()] == [failed]
        assert "1 removed" in self.call(queue, "purge", str(failed))
        assert queue.dead_letters() == []
        assert queue.job(shed).state == "shed"
        assert runner.invoke(app, ["dead", "purge"]).exit_code == 2

    def test_retry_wants_ids_or_all(self) -> None:
        assert runner.invoke(app, ["dead", "retry"]).exit_code == 2
        assert runner.invoke(app, ["dead", "retry", "1", "--all"]).exit_code == 2


class TestLoad:
    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("app", "must be module:attribute"),
            (":queue", "must be module:attribute"),
            ("no_such_module:queue", "is not found"),
            ("app:nothing", "has no 'nothing'"),
            ("app:add", "must be a Queue or an AsyncQueue"),
        ],
    )
    def test_a_wrong_target_says_what_is_wrong(
        self, target: str, message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(HERE)
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(ConfigurationError, match=message):
            load(target)

    def test_an_error_inside_the_module_is_not_hidden(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "broken_service.py").write_text("import a_module_that_is_missing\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
            load("broken_service:queue")


def test_without_the_extra_it_names_the_remedy() -> None:
    code = "import sys; sys.modules['typer'] = None; from flowq.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "flowq: the command line needs typer and rich: pip install 'flowq-kit[cli]'"
    )


def test_an_error_is_one_line() -> None:
    command = [sys.executable, "-m", "flowq.cli", "worker", "no_such_module:queue"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("flowq: module 'no_such_module' is not found")
    assert done.stderr.count("\n") == 1
