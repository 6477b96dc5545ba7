"""Wikipedia dumps: articles as prose, everything else counted by its reason."""

import bz2
import io
import json
import os
from collections import Counter
from pathlib import Path

import pytest
import zstandard

from data_prep.sources import Document, Rejected, Wikipedia, input_files, read
from data_prep.wikipedia import to_prose

BODY = "A plain sentence stands here for length. " * 8


def page(number: int, text: str, *, namespace: int = 0, extra: str = "") -> str:
    return (
        f"  <page>\n    <title>Title {number}</title>\n    <ns>{namespace}</ns>\n    <id>{number}</id>{extra}\n"
        f"    <revision>\n      <id>1</id>\n      <text>{text}</text>\n    </revision>\n  </page>\n"
    )


def dump(*pages: str, end: str = "</mediawiki>\n") -> bytes:
    return f'<mediawiki xml:lang="en">\n  <siteinfo></siteinfo>\n{"".join(pages)}{end}'.encode()


def read_all(path: Path) -> list[Document | Rejected]:
    source = Wikipedia(kind="wikipedia", path=str(path))
    return list(read(source, input_files(source)))


def test_pages_are_articles_or_counted_by_reason(tmp_path: Path) -> None:
    pages = [
        page(1, BODY),
        page(2, "#REDIRECT [[Other]]"),
        page(3, BODY, extra='<redirect title="Other" />'),
        page(4, BODY, namespace=14),
        page(5, "Short."),
        page(6, "broken &amp markup"),
        page(7, BODY + "\u2028é"),
    ]
    path = tmp_path / "wiki-1.xml.bz2"
    path.write_bytes(bz2.compress(dump(*pages[:3], end="")) + bz2.compress(dump(*pages[3:])[48:]))
    found = read_all(path)
    assert [record.reason if isinstance(record, Rejected) else record.id for record in found] == [
        "wiki-1.xml.bz2:1", "redirect", "redirect", "not_article", "stub", "bad_page", "wiki-1.xml.bz2:7",
    ]  # fmt: skip
    assert found[0] == Document("wiki-1.xml.bz2:1", "wiki-1", BODY.strip())
    assert isinstance(found[1], Rejected)
    assert found[1].where == f"wiki-1.xml.bz2:{dump(*pages[:3]).index(b'<page>', 100)}"


@pytest.mark.parametrize("end", ["", "  <page>\n    <title>Cut", "</mediawik"])
def test_a_dump_that_was_cut_says_so(tmp_path: Path, end: str) -> None:
    path = tmp_path / "wiki.xml"
    path.write_bytes(dump(page(1, BODY), page(2, BODY), end=end))
    found = read_all(path)
    assert [type(record) for record in found[:-1]] == [Document, Document]
    assert isinstance(found[-1], Rejected) and found[-1].reason == "damaged_archive"


def test_the_newest_revision_counts(tmp_path: Path) -> None:
    second = f"</text>\n</revision><revision><id>2</id><text>{BODY}Second."
    (tmp_path / "wiki.xml").write_bytes(dump(page(1, BODY + "First." + second)))
    (found,) = read_all(tmp_path / "wiki.xml")
    assert isinstance(found, Document) and found.text == f"{BODY}Second."


@pytest.mark.parametrize(
    ("markup", "prose"),
    [
        ("'''Bold''' and ''italic'' [[link|words]] and [[Plain]].", "Bold and italic words and Plain."),
        ("Before {{template|a={{inner}}}} after.", "Before after."),
        ("A fact.<ref>{{cite|a}}</ref> Another.<ref name=x /> Third.", "A fact. Another. Third."),
        ("One.\n{| class=wikitable\n|-\n| cell\n|}\nTwo.", "One.\n\nTwo."),
        ("[[File:a.jpg|thumb|A [[caption]].]]Text.[[Category:Things]]", "Text."),
        ("Energy <math>E = mc^2</math> here &ndash; and&nbsp;there.", "Energy here – and there."),
        ("* one\n* two\n", "one\ntwo"),
        ("Name ({{lang|x}}) is.", "Name is."),
        ("See [http://example.org the page] or http://example.org.", "See the page or ."),
        ("Up<!-- hidden -->down.", "Updown."),
        ("A.\n\n\n\n== Head ==\nB.", "A.\n\nHead\n\nB."),
        ("A.\n== See also ==\n* x\n== References ==\n<references/>\n== External links ==\n* y", "A."),
        ("A.\n== References ==\nx\n== History ==\nB.\n==Notes==\ny", "A.\n\nReferences\n\nx\n\nHistory\n\nB."),
        (
            "A.\n== One ==\n{| never closed\n| cell\n== Two ==\nB.\n{|\n| cell\n|}\n",
            "A.\n\nOne\n\n{| never closed\n| cell\n\nTwo\n\nB.",
        ),
        ("Odd [[unclosed and {{broken", "Odd [[unclosed and {{broken"),
    ],
)
def test_markup_becomes_prose(markup: str, prose: str) -> None:
    assert to_prose(markup) == prose


def data_folder() -> Path:
    folder = os.environ.get("ELECTRA_TEST_DATA")
    if folder is None or not (Path(folder) / "corpus").is_dir():
        pytest.skip("ELECTRA_TEST_DATA names no folder with the corpora")
    return Path(folder) / "corpus"


def test_a_real_dump_gives_the_articles_that_others_found() -> None:
    """Against the same dump turned into prose independently, through `strip_code`."""
    corpus = data_folder()
    (path,) = (corpus / "raw").glob("enwiki*.bz2")
    found = read_all(path)
    assert Counter(record.reason for record in found if isinstance(record, Rejected)) == {"redirect": 100}
    articles = {record.id.split(":")[1]: record.text for record in found if isinstance(record, Document)}
    with open(corpus / "enwiki_sample.jsonl.zst", "rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        known = {line["id"].split("/")[1]: line["text"] for line in map(json.loads, io.TextIOWrapper(stream, "utf-8"))}
    assert articles.keys() == known.keys() and len(known) == 106
    shared = total = 0
    for number, text in articles.items():
        ours, theirs = Counter(text.split()), Counter(known[number].split())
        shared += 2 * (ours & theirs).total()
        total += ours.total() + theirs.total()
    assert shared / total > 0.99
    text = "\n".join(articles.values())
    assert not any(mark in text for mark in ("'''", "<ref", "</", "&nbsp;", "{{"))
