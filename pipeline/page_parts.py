"""The pieces the report's page is made of: the document with its style, tables, figures, details and lists of facts.

Plain HTML strings; every text is escaped here. Knows nothing of experiments.
"""

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #5a5a5a; --paper: #fff; --rule: #d5d5d5; --tint: #f5f5f3; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e6; --soft: #a8a8a4; --paper: #161616; --rule: #3a3a3a; --tint: #202020; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 2rem 1.25rem 4rem; color: var(--ink); background: var(--paper);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1.02rem; margin: 1.75rem 0 .4rem; }
p, ul { max-width: 46rem; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
.summary { background: var(--tint); padding: .1rem 1.1rem; border-left: 4px solid #0072B2; }
.summary p { max-width: none; margin: .8rem 0; }
.missing { margin-bottom: 1rem; background: var(--tint); padding: .9rem 1.1rem; border-left: 4px solid #D55E00; }
.missing ul { margin: .3rem 0 0; max-width: none; }
figure { margin: 1rem 0; }
figure .card { background: #fff; padding: .75rem; border: 1px solid var(--rule); }
figure svg { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figure.curve svg { width: 100%; max-width: 44rem; }
figure.panels .card { overflow-x: auto; } figure.panels svg { min-width: 38rem; }
figure.table figcaption { margin: 0 0 .4rem; }
figcaption { margin-top: .5rem; max-width: 46rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--rule); }
td, th { white-space: nowrap; }
th { font-weight: 600; }
th small, td small { display: block; font-weight: 400; color: var(--soft); font-size: .78rem; }
thead th { vertical-align: bottom; border-bottom: 2px solid var(--ink); }
th.text, td.text { text-align: left; } td.text { white-space: normal; min-width: 11rem; }
tr.group td, tr.group th { border-top: 2px solid var(--rule); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.25rem; font-size: .92rem; max-width: none; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
code { font-size: .92em; }
@media (max-width: 40rem) { body { padding: 1.25rem .9rem 3rem; } dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .5rem; } th, td { padding: .3rem .45rem; }
  th[scope="row"] { position: sticky; left: 0; background: var(--paper); } }
@media print { figure svg { min-width: 0 !important; } h2, h3, figure.table figcaption { break-after: avoid; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  figure:not(.table), tr { break-inside: avoid; } .wide { overflow: visible; } table { font-size: 8pt; }
  th, td { padding: .2rem .3rem; } td, th { white-space: normal; } }
"""

Head = tuple[str, str]  # a column's name and the small print under it


def document(title: str, parts: Sequence[str]) -> str:
    """A whole HTML page that needs nothing from outside itself."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def table(
    caption: str,
    head: Sequence[Head],
    rows: Iterable[Sequence[str]],
    *,
    words: Sequence[int] = (0,),
    group_by: int | None = None,
) -> str:
    """A table whose columns `words` are set flush left, the first column being the row's heading; a rule where the
    column `group_by` changes. A cell's small print, if any, follows a line feed."""
    lines, previous = [], None
    for row in rows:
        group = None if group_by is None else row[group_by]
        mark = ' class="group"' if previous is not None and group != previous else ""
        previous = group
        cells = [f'<th scope="row" class="text">{_cell(row[0])}</th>']
        cells += [f"<td{_text(i, words)}>{_cell(value)}</td>" for i, value in enumerate(row[1:], start=1)]
        lines.append(f"<tr{mark}>{''.join(cells)}</tr>")
    header = "".join(
        f'<th scope="col"{_text(i, words)}>{_cell(name)}{f"<small>{_cell(note)}</small>" if note else ""}</th>'
        for i, (name, note) in enumerate(head)
    )
    return (
        f'<figure class="table"><figcaption>{escape(caption)}</figcaption>\n<div class="wide"><table>\n'
        f"<thead><tr>{header}</tr></thead>\n<tbody>\n{chr(10).join(lines)}\n</tbody></table></div></figure>"
    )


def _text(column: int, words: Sequence[int]) -> str:
    return ' class="text"' if column in words else ""


def _cell(value: str) -> str:
    first, _, second = value.partition("\n")
    return f"{escape(first)}<small>{escape(second)}</small>" if second else escape(first)


def drawing(svg: str, description: str, caption: str, kind: str, data: str) -> str:
    """A figure with its description for those who do not see it, a caption for all, and its data to be opened."""
    labelled = svg.replace("<svg", f'<svg role="img" aria-label="{escape(description, quote=True)}"', 1)
    below = f"<figcaption>{escape(caption)}</figcaption>"
    figure = f'<figure class="{kind}"><div class="card">{labelled}</div>\n{below}</figure>'
    return figure + details("Data of this figure", data)


def details(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>"


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs if value) + "</dl>"
    )
