"""`electra report --check`: a report that its records do not give is found, and what differs is named."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from data_prep.errors import CheckError, DataError
from pipeline import recheck, report
from pipeline.cli import app
from tests.pipeline import fake_experiment

FILES = {"report.json", "report.html", "scores.csv", "runs.csv", "curves.csv", "curve.svg"}


@pytest.fixture
def reported(out: Path, undrawn: None) -> Path:
    report.write(out)
    return out


def test_a_report_is_what_its_records_come_to(reported: Path) -> None:
    assert set(recheck.check(reported)) == FILES
    assert {path.name for path in (reported / "report").iterdir()} == FILES


def edited(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text(encoding="utf-8")
    after = change(before)
    assert after != before
    path.write_text(after, encoding="utf-8")


def test_another_number_in_the_json_is_named(reported: Path) -> None:
    path = reported / "report" / "report.json"
    found = json.loads(path.read_text())
    value = found["suites"][0]["cells"][2]["mean"]["value"]
    found["suites"][0]["cells"][2]["mean"]["value"] = value + 1e-6
    path.write_text(json.dumps(found))
    with pytest.raises(CheckError, match=r"report\.json: suites\[0\]\.cells\[2\]\.mean\.value is 0\.\d+, recomputed"):
        recheck.check(reported)


def test_the_last_digits_are_those_of_a_processor(reported: Path) -> None:
    path = reported / "report" / "report.json"
    found = json.loads(path.read_text())
    found["suites"][0]["cells"][2]["mean"]["value"] *= 1 + 1e-12
    path.write_text(json.dumps(found))
    assert set(recheck.check(reported)) == FILES


def test_another_field_of_a_csv_is_named(reported: Path) -> None:
    edited(reported / "report" / "runs.csv", lambda text: text.replace(",electra,electra,", ",electra,bert,", 1))
    with pytest.raises(CheckError, match=r"runs\.csv: line 2, objective is bert, recomputed electra"):
        recheck.check(reported)


def test_another_line_of_the_page_is_named(reported: Path) -> None:
    edited(reported / "report" / "report.html", lambda text: text.replace("no arm is declared", "electra is declared"))
    with pytest.raises(CheckError, match=r"report\.html: line \d+ has .*electra is declared"):
        recheck.check(reported)


def test_a_file_that_is_gone_is_named(reported: Path) -> None:
    (reported / "report" / "scores.csv").unlink()
    with pytest.raises(CheckError, match=r"scores\.csv: is missing"):
        recheck.check(reported)


def test_a_result_that_changed_since_is_found(reported: Path) -> None:
    """The numbers of a page are not those of results that were written later."""
    rows = fake_experiment.read_results_file(reported)
    fake_experiment.write_results_file(reported, [row for row in rows if row["task"] != "bigram_shift"])
    with pytest.raises(CheckError, match=r"\(and [\d,]+ more\); `electra report .*` writes it anew"):
        recheck.check(reported)


def test_a_score_that_its_answers_do_not_give_is_a_failed_check(reported: Path) -> None:
    rows = fake_experiment.read_results_file(reported)
    rows[0]["score"] += 0.01
    fake_experiment.write_results_file(reported, rows)
    with pytest.raises(CheckError, match=r"where results\.jsonl says"):
        recheck.check(reported)


def test_another_machine_may_check_it(reported: Path) -> None:
    """Its description is no result."""
    path = reported / "report" / "report.json"
    found = json.loads(path.read_text())
    edited(reported / "report" / "report.html", lambda text: text.replace(found["environment"]["processor"], "Abacus"))
    found["environment"]["processor"] = "Abacus"
    path.write_text(json.dumps(found))
    assert set(recheck.check(reported)) == FILES


def test_drawings_of_another_matplotlib_are_left_out(reported: Path) -> None:
    path = reported / "report" / "report.json"
    found = json.loads(path.read_text())
    own = found["environment"]["matplotlib"]
    (reported / "report" / "curve.svg").write_text("<svg>drawn otherwise</svg>")
    with pytest.raises(CheckError, match=r"curve\.svg: line 1"):
        recheck.check(reported)

    def older(text: str) -> str:
        return text.replace(f"<dd>{own}</dd>", "<dd>3.0</dd>").replace("></svg>", ' width="9pt">\nother paths</svg>', 1)

    edited(reported / "report" / "report.html", older)
    found["environment"]["matplotlib"] = "3.0"
    path.write_text(json.dumps(found))
    assert set(recheck.check(reported)) == FILES
    edited(reported / "report" / "report.html", lambda text: text.replace('aria-label="Line', 'aria-label="Bar', 1))
    with pytest.raises(CheckError, match=r"report\.html: line \d+ has .*Bar"):  # descriptions are compared all the same
        recheck.check(reported)


def test_without_a_report_there_is_nothing_to_check(out: Path) -> None:
    with pytest.raises(DataError, match="has no report to check; run `electra report"):
        recheck.check(out)


def test_the_command_ends_with_9_and_writes_nothing(reported: Path) -> None:
    (reported / "config.yaml").write_text((Path(__file__).parents[2] / "configs" / "quickstart.yaml").read_text())
    report.write(reported)
    before = {path: path.read_bytes() for path in reported.rglob("*") if path.is_file()}
    fine = CliRunner().invoke(app, ["report", str(reported), "--check"])
    assert fine.exit_code == 0, fine.output
    assert {path: path.read_bytes() for path in reported.rglob("*") if path.is_file()} == before
    edited(reported / "report" / "scores.csv", lambda text: re.sub(r"electra,4000", "electra,5000", text, count=1))
    wrong = CliRunner().invoke(app, ["report", str(reported), "--check"])
    assert wrong.exit_code == 9
    assert "budget is 500000000000.0, recomputed 400000000000.0" in wrong.output
