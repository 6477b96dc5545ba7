"""`electra demo`: the right numbers for every token, in a terminal, in a pipe and on a page."""

import json
import re
import shutil
from io import StringIO
from pathlib import Path

import pytest
import torch
import transformers
from typer.testing import CliRunner, Result

from pipeline import cli, proof
from pipeline.console import Console
from pipeline.demo import Demo, Guess, Judged, demo, judge
from pipeline.demo_page import page
from pipeline.export import export
from pipeline.export_sources import at
from tests.pipeline import exported
from tests.pipeline.test_proof import ELECTRA, examined_here

TEXT = "The captain didn’t sail: CAFÉ [MASK]"


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def folder(request: pytest.FixtureRequest, process_group: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported discriminator and its generator."""
    out = exported.experiment(tmp_path_factory.mktemp("demo") / "out", request.param)
    run = exported.begun_run(out, ELECTRA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "_examined", examined_here)
        export(at(run), out / "export")
    return out / "export"


def electra(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, ["demo", *map(str, arguments)])


def refused(code: int, *arguments: str | Path) -> str:
    found = electra(*arguments)
    assert found.exit_code == code, found.output
    return found.stderr.removeprefix("electra: ").rstrip("\n")


def test_every_token_has_the_probabilities_of_the_models(folder: Path) -> None:
    found = electra(folder, TEXT, "--json")
    assert found.exit_code == 0, found.output
    tokens = json.loads(found.stdout)["tokens"]

    words = transformers.AutoTokenizer.from_pretrained(folder / "discriminator")
    ids = words(TEXT, split_special_tokens=True, return_tensors="pt")["input_ids"]
    assert [one["token"] for one in tokens] == words.convert_ids_to_tokens(ids[0, 1:-1])
    assert words.mask_token_id not in ids  # the text spells it, and is text
    with torch.no_grad():
        detector = transformers.AutoModelForPreTraining.from_pretrained(folder / "discriminator")
        replaced = torch.sigmoid(detector(ids).logits[0, 1:-1])
        masked, where = ids.clone(), 2
        masked[0, where] = words.mask_token_id
        logits = transformers.AutoModelForMaskedLM.from_pretrained(folder / "generator")(masked).logits[0, where]
    assert [one["replaced"] for one in tokens] == pytest.approx(replaced.tolist(), abs=1e-6)
    third = tokens[where - 1]
    chances = logits.softmax(-1)
    best = words.convert_ids_to_tokens(chances.argsort(descending=True)[:3].tolist())
    assert [guess["token"] for guess in third["guesses"]] == best
    assert [guess["probability"] for guess in third["guesses"]] == pytest.approx(
        chances.sort(descending=True).values[:3].tolist(), rel=1e-4
    )
    assert third["own"] == pytest.approx(float(chances[ids[0, where]]), rel=1e-4)


def test_pieces_make_up_the_text(folder: Path) -> None:
    for text in (TEXT, "  blanks \t around  ", "🙂🙂 日本"):
        assert "".join(piece for piece, _ in judge(text, folder / "discriminator").pieces()) == text


def test_tokens_that_share_a_character_are_one_piece_of_the_largest_probability() -> None:
    tokens = (
        Judged(token="a", start=1, end=2, replaced=0.1),
        Judged(token="ð", start=3, end=4, replaced=0.2),
        Judged(token="Ł", start=3, end=4, replaced=0.9),
        Judged(token="b", start=4, end=5, replaced=0.3),
    )
    found = Demo(text=" a 🙂b.", tokens=tokens, discriminator="d", generator=None)
    assert list(found.pieces()) == [(" ", None), ("a", 0.1), (" ", None), ("🙂", 0.9), ("b", 0.3), (".", None)]


def test_numbers_alone_in_a_pipe(folder: Path) -> None:
    text = electra(folder, TEXT).stdout
    assert "\x1b" not in text
    assert re.search(r"^  token +replaced  generator gives it  generator's guesses$", text, re.MULTILINE)
    found = judge(TEXT, folder / "discriminator")
    rows = [line.split() for line in text.splitlines()[3:]]
    assert [float(row[1]) for row in rows] == pytest.approx([one.replaced for one in found.tokens], abs=6e-4)


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_has_colours_unless_it_is_to_have_none(
    folder: Path, no_color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    stream = StringIO()
    demo(folder, TEXT, Console(stream, interactive=True))
    text = stream.getvalue()
    first = judge(TEXT, folder / "discriminator").tokens[0].replaced
    colour = f"48;2;255;{round(235 - 160 * first)};{round(200 - 140 * first)}m"
    assert (colour in text) == (not no_color)
    assert f"{first:.3f}" in text


def test_without_a_generator_there_are_no_guesses(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "discriminator", tmp_path / "alone")
    found = json.loads(electra(tmp_path / "alone", TEXT, "--json").stdout)
    assert found["generator"] is None and all(one["own"] is None for one in found["tokens"])
    assert "guesses" not in electra(tmp_path / "alone", TEXT).stdout
    given = json.loads(electra(tmp_path / "alone", TEXT, "--generator", folder / "generator", "--json").stdout)
    assert len(given["tokens"][0]["guesses"]) == 3


def test_a_page_of_its_own(folder: Path, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script> & 'the'"
    assert electra(folder, hostile, "--html", tmp_path / "page.html").exit_code == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" not in text and "http" not in text  # self-contained, and text is text
    found = judge(hostile, folder / "discriminator")
    spans = re.findall(r'<span style="--p:([\d.]+)">', text)
    assert [float(p) for p in spans] == pytest.approx([p for _, p in found.pieces() if p is not None], abs=6e-4)
    assert text.count('<th scope="row"') == len(found.tokens)


def test_a_page_shows_guesses() -> None:
    guessed = Judged(token="a", start=0, end=1, replaced=0.25, guesses=(Guess("<b>", 0.5),), own=0.125)
    text = page(Demo(text="a", tokens=(guessed,), discriminator="d", generator="g"))
    assert "&lt;b&gt; 0.50" in text and "0.125" in text and '<span style="--p:0.250">a<small>25</small></span>' in text


def test_what_cannot_be_shown_is_said(folder: Path, tmp_path: Path) -> None:
    assert refused(4, tmp_path, "x").startswith(f"{tmp_path} holds no discriminator; give a folder that")
    assert "does not detect replaced tokens" in refused(2, folder / "generator", "x")
    assert "--generator" in refused(2, folder, "x", "--generator", folder / "discriminator")
    assert refused(2, folder, "") == "the text holds nothing that is a token; give a sentence"
    sentence = refused(2, folder, "ship " * 60)
    assert re.fullmatch(r"the text is \d+ tokens long, and the model knows 40; give a shorter one", sentence)


def test_a_generator_of_another_vocabulary_is_refused(folder: Path, process_group: None, tmp_path: Path) -> None:
    changed = tmp_path / "generator"
    shutil.copytree(folder / "generator", changed)
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + 1}))
    assert "has another vocabulary than" in refused(2, folder, "x", "--generator", changed)
