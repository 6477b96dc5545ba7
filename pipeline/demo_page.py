"""The page that `electra demo --html` writes: the text coloured by what was made of it, and the numbers in a table.

One file that needs nothing from outside itself; every text is escaped.
"""

from html import escape
from typing import TYPE_CHECKING

from pipeline.page_parts import Head, document, table

if TYPE_CHECKING:
    from pipeline.demo import Demo

_STYLE = """<style>
.judged { font-size: 1.35rem; line-height: 2.6; white-space: pre-wrap; max-width: none; }
.judged span { display: inline-block; min-width: 1.1em; line-height: 1.3; padding: .1rem;
  border-radius: .2rem; position: relative; background: color-mix(in srgb, #D55E00 calc(var(--p) * 85%), transparent); }
.judged span small { position: absolute; left: 0; top: 1.95rem; font-size: .62rem; line-height: 1; color: var(--soft); }
.scale { display: inline-block; width: 8rem; height: .8rem; vertical-align: middle; border: 1px solid var(--rule);
  background: linear-gradient(to right, transparent, color-mix(in srgb, #D55E00 85%, transparent)); }
</style>"""


def page(found: "Demo") -> str:
    """The whole document."""
    lead = (
        "The stronger the colour, the likelier the network finds it that the token was put there by another one; the "
        "small numbers are per cent."
    )
    parts = [
        _STYLE,
        "<h1>Was it replaced?</h1>",
        f'<p class="soft">{escape(lead)}</p>',
        f'<p class="judged">{"".join(_piece(text, probability) for text, probability in found.pieces())}</p>',
        '<p class="soft">0 <span class="scale" role="img" aria-label="from none to full colour"></span> 1</p>',
        _table(found),
    ]
    return document("Was it replaced?", parts)


def _piece(text: str, probability: float | None) -> str:
    if probability is None:
        return escape(text)
    return f'<span style="--p:{probability:.3f}">{escape(text)}<small>{100 * probability:.0f}</small></span>'


def _table(found: "Demo") -> str:
    head: list[Head] = [("token", ""), ("replaced", "probability")]
    rows = [[one.token, f"{one.replaced:.3f}"] for one in found.tokens]
    if found.generator is None:
        return table("Every token of the text.", head, rows)
    head += [("generator gives it", "probability"), ("generator's guesses", "with the token alone masked")]
    rows = [
        [*row, f"{one.own:.3f}", ", ".join(f"{guess.token} {guess.probability:.2f}" for guess in one.guesses)]
        for row, one in zip(rows, found.tokens, strict=True)
    ]
    return table("Every token of the text.", head, rows, words=(0, 3))
