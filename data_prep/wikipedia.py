"""Reader of Wikipedia XML dumps: one article a record, as prose without markup.

The dump is cut at the ends of its pages, so a page that is malformed costs itself alone and memory holds one page. What
is not an article (a redirect, another namespace, a stub) is a rejection of that name, for documents in = out +
rejected to hold. Templates, tables, references, formulas, files and the tail sections are left out; the newest
revision counts where a page has several.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from data_prep.records import Document, InputFile, Records, Rejected, blocks, open_file, split

STUB_CHARS = 200
TAIL_SECTIONS = frozenset(
    {
        "bibliography", "citations", "external links", "footnotes", "further reading", "notes", "notes and references",
        "references", "see also", "sources",
    }
)  # fmt: skip
_END = b"</page>"
_HEADING = re.compile(r"^==([^=].*?)==[ \t]*$", re.MULTILINE)
_LEFT_OUT_TAGS = frozenset(
    {"ref", "table", "gallery", "math", "chem", "timeline", "score", "imagemap", "syntaxhighlight", "source", "pre"}
)
_LEFT_OUT_LINKS = ("file:", "image:", "category:", "media:")
_SECTION_START = re.compile(r"^(?===)", re.MULTILINE)
_REDIRECT = re.compile(r"\s*#redirect\b", re.IGNORECASE)
_REFERENCE = re.compile(r"<ref\b[^<>]*/>|<ref\b[^<>]*>.*?</ref\s*>|<!--.*?-->", re.IGNORECASE | re.DOTALL)
_QUOTES = re.compile(r"'{2,}")  # of italics and bold that the parser could not pair
_EMPTY_BRACKETS = re.compile(r" ?\([\s,;:]*\)")  # what a template that is left out leaves behind
_SPACES = re.compile(r"[ \t\xa0]+")
_BLANK_LINES = re.compile(r"\n{3,}")


def read_wikipedia(file: InputFile) -> Records:
    """The pages of a dump. A page's place is its offset in the content of the file."""
    with open_file(file) as stream:
        last: tuple[int, bytes | None] | None = None
        for page in _pages(blocks(stream, file)):
            if last is not None:
                yield _record(file, *last)
            last = page
        if last is None or last[1] is None or b"</mediawiki>" not in last[1]:
            yield Rejected("damaged_archive", f"{file.name}:{0 if last is None else last[0]}")


def _pages(content: Iterator[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """(offset, XML) of what ends in `</page>`, then of what follows the last; None for a page that is too large."""
    for at, pieces in split(content, _END):
        offset = at
        if pieces is None:
            yield offset, None
        for piece in pieces or ():
            begin = max(0, piece.find(b"<page>"))
            yield offset + begin, piece[begin:]
            offset += len(piece) + len(_END)


def _record(file: InputFile, offset: int, piece: bytes | None) -> Document | Rejected:
    where = f"{file.name}:{offset}"
    if piece is None:
        return Rejected("record_too_large", where)
    try:
        page = _parse_page(piece.decode("utf-8") + "</page>")
    except UnicodeDecodeError:
        return Rejected("not_utf8", where)
    except Exception:  # malformed XML, or not the elements of a page; the libraries have many errors for it
        return Rejected("bad_page", where)
    if page.redirect or _REDIRECT.match(page.text):
        return Rejected("redirect", where)
    if page.namespace:
        return Rejected("not_article", where)
    try:
        text = to_prose(page.text)
    except (ValueError, RecursionError):
        return Rejected("bad_page", where)
    if len(text) < STUB_CHARS:
        return Rejected("stub", where)
    return Document(f"{file.name}:{page.id}", file.topic, text)


class _Page(NamedTuple):
    id: int
    namespace: int
    redirect: bool
    text: str


def _parse_page(xml: str) -> _Page:
    import io

    import mwxml

    page = next(mwxml.Dump.from_page_xml(io.StringIO(xml)).pages)
    text = ""
    for revision in page:
        text = revision.text or ""
    return _Page(int(page.id), int(page.namespace), page.redirect is not None, text)


def to_prose(markup: str) -> str:
    """The sentences, headings and list items of an article, paragraphs with a blank line between."""
    import mwparserfromhell

    markup = _without_tail(_REFERENCE.sub("", markup))  # references first: unclosed ones mislead the parser
    # By sections, so that a table nobody closed takes its own section with it and not the rest of the article.
    text = "".join(_render(mwparserfromhell.parse(section).nodes) for section in _SECTION_START.split(markup))
    text = _EMPTY_BRACKETS.sub("", _QUOTES.sub("", text))
    lines = [_SPACES.sub(" ", line).strip() for line in text.split("\n")]
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def _without_tail(markup: str) -> str:
    """The article up to the sections at its end that hold references and lists of links."""
    headings = list(_HEADING.finditer(markup))
    while headings and headings[-1][1].strip().lower() in TAIL_SECTIONS:
        markup = markup[: headings.pop().start()]
    return markup


def _render(nodes: Iterable[Any]) -> str:
    from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Tag, Text, Wikilink

    parts: list[str] = []
    for node in nodes:
        if isinstance(node, Text):
            parts.append(node.value)
        elif isinstance(node, Wikilink):
            target = str(node.title).strip().lower()
            if not target.startswith(_LEFT_OUT_LINKS):
                parts.append(_render((node.title if node.text is None else node.text).nodes))
        elif isinstance(node, Tag):
            name = str(node.tag).strip().lower()
            if name == "br":
                parts.append("\n")
            elif name not in _LEFT_OUT_TAGS and node.contents is not None:
                parts.append(_render(node.contents.nodes))
        elif isinstance(node, Heading):
            parts.append(f"\n\n{_render(node.title.nodes).strip()}\n\n")
        elif isinstance(node, HTMLEntity):
            parts.append(node.normalize())
        elif isinstance(node, ExternalLink) and node.title is not None:
            parts.append(_render(node.title.nodes))
    return "".join(parts)
