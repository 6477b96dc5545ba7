"""Documentation markup → English prose: what a reader of the rendered page would read as sentences.

Understands the markup found in docstrings and package descriptions: reStructuredText, NumPy and Google field sections,
Sphinx field lists, doctest, Markdown. Kept: paragraphs, list items, the descriptions of parameters. Dropped: code,
doctests, tables, mathematics, directives, headings, reference lists, parameter names and types. It is a line-wise
heuristic, not a parser: what still does not look like a sentence afterwards is dropped, paragraph by paragraph.
"""

import inspect
import re
from collections.abc import Iterator

FIELD_SECTIONS = frozenset({
    "parameters", "other parameters", "arguments", "args", "keyword arguments", "keyword args", "kwargs", "returns",
    "return", "yields", "yield", "receives", "raises", "attributes", "warns", "inputs", "outputs", "properties",
})  # fmt: skip
SKIPPED_SECTIONS = frozenset({
    "see also", "references", "methods", "shape", "reference", "signature", "citation", "license", "authors", "links",
    "contents",
})  # fmt: skip
PLAIN_SECTIONS = frozenset({"example", "examples", "note", "notes", "usage"})
PROSE_DIRECTIVES = frozenset({
    "note", "warning", "tip", "important", "hint", "caution", "attention", "admonition", "topic"
})  # fmt: skip

_UNDERLINE = re.compile(r"([=\-~^\"'#*+`_.:])\1{2,}")
_TABLE_BORDER = re.compile(r"[=\-]{2,}(?: +[=\-]{2,})+|\+[-=+]{3,}")
_DIRECTIVE = re.compile(r"\.\. *([\w:+-]+?)\s*::")
_BULLET = re.compile(r"(?:[-*+•‣]|\(?(?:\d{1,2}|[a-z]|#)[.)])\s+(?=\S)")
_FIELD_LIST = re.compile(r":(\w[\w ]*?)(?: [^:]*)?:(?=\s|$)")
_GOOGLE_HEAD = re.compile(r"([A-Z][A-Za-z]*(?: [a-zA-Z]+)?)\s?:")
_GOOGLE_FIELD = re.compile(
    r"`*\*{0,2}[\w.\[\], ]{1,40}`*\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*(?:`[^`]*`)?\s*(?::|--)\s+(?=\S)"
)
_MARKDOWN_HEAD = re.compile(r"#{1,6}\s")
# (a character the pattern needs, so that it is tried on few texts; pattern; replacement), in this order
_INLINE = [
    ("<", re.compile(r"<!--.*?-->|</?[a-zA-Z][^<>]*>(?!`)"), " "),
    ("![", re.compile(r"!\[[^\]]*\]\([^)]*\)|!\[[^\]]*\]\[[^\]]*\]"), " "),
    ("[", re.compile(r"\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])"), r"\1"),
    ("`", re.compile(r":[\w:+-]+:`~(?:[^`]*\.)?([^`]*)`"), r"\1"),
    ("`", re.compile(r":[\w:+-]+:`!?([^`<]*?)(?:\s*<[^`>]*>)?`"), r"\1"),
    ("`", re.compile(r"`([^`<>]+?)\s*<[^`<>]*>`_{0,2}"), r"\1"),
    ("]_", re.compile(r"\[(?:\d+|#\w*|[A-Z][\w+]*\d+\w?)\]_+"), ""),
    ("`", re.compile(r"`{1,2}~?([^`]*)`{1,2}_{0,2}"), r"\1"),
    ("*", re.compile(r"\*\*([^*\n]+)\*\*|(?<![\w*])\*([^*\s](?:[^*\n]*[^*\s])?)\*(?![\w*])"), r"\1\2"),
    ("|", re.compile(r"\|(\w+)\|_?"), r"\1"),
    ("://", re.compile(r"<?(?:https?|ftp)://[^\s<>]+[^\s<>.,;:)\]]>?"), "the web page"),
    ("\\", re.compile(r"\\([*_`| ])"), r"\1"),
    ("", re.compile(r"[\s\u00a0]+"), " "),
    (" ", re.compile(r" ([,.;:!?])(?=\s|$)"), r"\1"),
    ("(", re.compile(r" ?\(\s*\)"), ""),
]
_WORD = re.compile(r"[A-Za-z][a-z'’-]*")
_CODE_CHARACTER = re.compile(r"[=_{}\[\]<>\\|@#$%^~/*+`]|\w\(|\)\.|::|\w\.\w")
_REFERENCE = re.compile(r"\[\w{1,6}\] ")  # an entry of a list of references
_LATEX = re.compile(r"\\[a-zA-Z]{2,}")

MIN_WORDS = 4


def to_prose(markup: str) -> str:
    """The prose in a docstring or description: paragraphs separated by blank lines; "" when there is none."""
    paragraphs = []
    for block in _blocks(inspect.cleandoc(markup.expandtabs(8)).splitlines()):
        sentences = [text for item in block if (text := _sentence(item))]
        if sentences:
            paragraphs.append(" ".join(sentences))
    return "\n\n".join(dict.fromkeys(paragraphs))


def _sentence(raw: str) -> str:
    """One paragraph or description, markup removed; "" when it does not read as prose."""
    text = raw
    for needed, pattern, replacement in _INLINE:
        if needed in text:
            text = pattern.sub(replacement, text)
    text = text.strip(" -–—,;|")
    if _REFERENCE.match(text):
        return ""
    words = _WORD.findall(text)
    if len(words) < MIN_WORDS or sum(map(len, words)) < 0.68 * len(text):
        return ""
    if len(_CODE_CHARACTER.findall(text)) > 0.25 * len(words) or _LATEX.search(text):
        return ""
    if not any(word.islower() and len(word) > 2 for word in words):
        return ""
    if text.endswith(":"):
        text = text[:-1]
    if not text.endswith((".", "!", "?", ".)", "!)", "?)", '."', '?"', '!"')):
        text += "."
    return text[0].upper() + text[1:]


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Paragraphs as lists of items; the descriptions of one field section make one paragraph."""
    block: list[str] = []
    for kind, text in _events(lines):
        if kind == "text" and block:
            block[-1] = f"{block[-1]} {text}".strip()
        elif kind in ("text", "item"):
            block.append(text)
        elif block:  # "end"
            yield block
            block = []
    if block:
        yield block


def _events(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Walk the lines: ("text", …) continues an item, ("item", …) begins one, ("end", "") ends a paragraph."""
    skip_deeper: int | None = None  # drop lines indented deeper than this: a directive's or literal block's body
    skip_to_blank = skip_section = in_fence = in_fields = False
    base = 0  # indentation of a field section's own lines
    for i, line in enumerate(lines):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith(("```", "~~~~")):
            in_fence = not in_fence and text.count("```") < 2
            continue
        if in_fence:
            continue
        if not text:
            skip_to_blank = False
            yield ("item" if in_fields else "end"), ""
            continue
        if skip_deeper is not None:
            if indent > skip_deeper:
                continue
            skip_deeper = None
        if text.startswith((">>>", "In [")) or (text.startswith("... ") and skip_to_blank):
            skip_to_blank = True
        if skip_to_blank or text.startswith(("|", "+-", "+=")):
            continue
        heading = _heading(lines, i)
        if heading is not None:
            name, style = heading
            yield "end", ""
            skip_section = name in SKIPPED_SECTIONS
            in_fields, base = name in FIELD_SECTIONS, indent if style == "underlined" else indent + 1
            continue
        if _UNDERLINE.fullmatch(text) or (skip_section and (indent > 0 or base == 0)):
            continue
        if _TABLE_BORDER.fullmatch(text):
            skip_to_blank = True
            continue
        if text.startswith(".. ") or text == "..":
            directive = _DIRECTIVE.match(text)
            if directive is None or directive.group(1) not in PROSE_DIRECTIVES:
                skip_deeper = indent
            yield "end", ""
            continue
        if in_fields and base > 0 and indent < base:  # a Google section ends where the indentation does
            in_fields = False
            yield "end", ""
        if text.endswith("::"):
            text, skip_deeper = text[:-1], indent
        yield from _content(text, indent, base, in_fields)


def _content(text: str, indent: int, base: int, in_fields: bool) -> Iterator[tuple[str, str]]:
    """The events of one line of content."""
    field = _FIELD_LIST.match(text)
    if field is not None:  # `:param x: text` is an item; `:type x: text` names a type
        yield "item", "" if field.group(1).split(" ")[0] in ("type", "rtype") else text[field.end() :]
        return
    if in_fields and base == 0 and indent == 0:
        # NumPy style: the section's own lines are names and types; long ones are prose all the same
        yield "item", text if " : " not in text and len(text.split()) > 6 else ""
        return
    if in_fields and base > 0:
        google = _GOOGLE_FIELD.match(text)
        if google is not None:
            yield "item", text[google.end() :]
            return
    bullet = _BULLET.match(text)
    if bullet is not None:
        text = text[bullet.end() :]
        google = _GOOGLE_FIELD.match(text)
        yield "item", text[google.end() :] if google is not None and in_fields else text
        return
    yield "text", text


def _heading(lines: list[str], i: int) -> tuple[str, str] | None:
    """(lower-case name, style) when line `i` is a section heading."""
    text = lines[i].strip()
    following = lines[i + 1].strip() if i + 1 < len(lines) else ""
    if len(following) >= 3 and _UNDERLINE.fullmatch(following) and not _UNDERLINE.fullmatch(text):
        return text.rstrip(":").lower(), "underlined"
    if _MARKDOWN_HEAD.match(text):
        return text.strip("# :").lower(), "underlined"
    google = _GOOGLE_HEAD.fullmatch(text)
    if google is not None:
        name = google.group(1).lower()
        if name in FIELD_SECTIONS | SKIPPED_SECTIONS | PLAIN_SECTIONS:
            return name, "google"
    return None
