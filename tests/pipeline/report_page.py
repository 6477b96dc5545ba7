"""A written report, as its tests read it: the page's text, tables and tags, and what is beside it as JSON."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class Page(HTMLParser):
    """Text, tables and tags of a page; fails on a tag that is closed in the wrong order."""

    void = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += f"{data} "


def page_of(out: Path) -> Page:
    page = Page((out / "report" / "report.html").read_text(encoding="utf-8"))
    assert page.open == []
    return page


def json_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "report" / "report.json").read_text(encoding="utf-8"))


def suite_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(suite for suite in found["suites"] if suite["name"] == name)
