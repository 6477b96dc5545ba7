"""`electra demo DIR TEXT`: what an exported discriminator makes of a text, token by token.

For every token the probability that it was replaced; with a generator, what that would have put there had the token
alone been masked. Text that spells a special token stays text. Weights are read from safetensors only, and code that
lies in a folder is never run. On a terminal the text is coloured, elsewhere the numbers stand alone; the page is
`pipeline.demo_page`'s.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_prep import storage
from data_prep.errors import ConfigError, DataError
from pipeline import demo_page
from pipeline.console import Console, quiet_libraries
from pipeline.place import shown
from training.hf_config import describe, is_hugging_face

GUESSES = 3  # of the generator, a token
_BATCH = 16  # masked copies of the text at once


@dataclass(frozen=True, slots=True)
class Guess:
    """A token that the generator proposes, and its probability."""

    token: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A token of the text: as the vocabulary spells it, and the characters it stands for. `replaced`: the probability
    that it was. Of a generator that sees all but this token: its best `guesses`, and what it gives the token itself."""

    token: str
    start: int
    end: int
    replaced: float
    guesses: tuple[Guess, ...] = ()
    own: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A text and what was made of it."""

    text: str
    tokens: tuple[Judged, ...]
    discriminator: str
    generator: str | None

    def pieces(self) -> Iterator[tuple[str, float | None]]:
        """The text in pieces, each with its probability; None of what is in no token. Tokens that share a character
        (of byte-level vocabularies) are one piece, of the largest of theirs."""
        at, index = 0, 0
        while index < len(self.tokens):
            first = self.tokens[index]
            if first.start > at:
                yield self.text[at : first.start], None
            start, at, probability = max(at, first.start), max(at, first.end), first.replaced
            index += 1
            while index < len(self.tokens) and self.tokens[index].start < at:
                at, probability = max(at, self.tokens[index].end), max(probability, self.tokens[index].replaced)
                index += 1
            yield self.text[start:at], probability
        if at < len(self.text):
            yield self.text[at:], None


def demo(
    folder: Path, text: str, console: Console, *, generator: Path | None = None, html: Path | None = None
) -> dict[str, Any]:
    """Judge a text and show it. ConfigError for a folder without a discriminator, a generator of another vocabulary, or
    a text that is empty or too long."""
    quiet_libraries(offline=True)
    place = _discriminator(folder)
    found = judge(text, place, _generator(place, generator))
    _show(found, console)
    if html is not None:
        storage.write_bytes(html, demo_page.page(found).encode("utf-8", "replace"))
        console.say(f"demo: {shown(html)}")
    return asdict(found) | {"html": None if html is None else str(html)}


# --- which folders ----------------------------------------------------------------------------------------------------


def _discriminator(folder: Path) -> Path:
    place = folder if is_hugging_face(folder) else folder / "discriminator"
    if not is_hugging_face(place):
        raise DataError(f"{folder} holds no discriminator; give a folder that `electra export` has written")
    if describe(place).architecture.role != "discriminator":
        raise ConfigError(f"{place} does not detect replaced tokens; give the folder of an ElectraForPreTraining")
    return place


def _generator(discriminator: Path, given: Path | None) -> Path | None:
    """The one given, or that which was exported with the discriminator."""
    place = given or discriminator.parent / "generator"
    if given is None and not is_hugging_face(place):
        return None
    found = describe(place)
    if "mlm" not in found.architecture.heads:
        raise ConfigError(f"--generator: {place} does not predict masked tokens; give a generator's folder")
    if found.config.vocab_size != describe(discriminator).config.vocab_size:
        raise ConfigError(f"--generator: {place} has another vocabulary than {discriminator}; give the one beside it")
    return place


_Guessed = tuple[tuple[Guess, ...], float | None]


# --- judging ----------------------------------------------------------------------------------------------------------


def judge(text: str, discriminator: Path, generator: Path | None = None) -> Demo:
    """The probabilities of a text's tokens."""
    import torch
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(discriminator)
    encoded = words(text, split_special_tokens=True, return_offsets_mapping=True, return_tensors="pt")
    ids_L, offsets = encoded["input_ids"][0], encoded["offset_mapping"][0].tolist()
    longest = describe(discriminator).config.max_positions
    if len(ids_L) < 3:
        raise ConfigError("the text holds nothing that is a token; give a sentence")
    if len(ids_L) > longest:
        raise ConfigError(f"the text is {len(ids_L)} tokens long, and the model knows {longest}; give a shorter one")
    with torch.no_grad():
        replaced_L = _load("AutoModelForPreTraining", discriminator)(input_ids=ids_L[None]).logits[0].sigmoid()
        unseen: list[_Guessed] = [((), None)] * (len(ids_L) - 2)
        guessed = unseen if generator is None else _guessed(ids_L, generator, words)
    inner = range(1, len(ids_L) - 1)
    spelled = words.convert_ids_to_tokens(ids_L.tolist())
    tokens = [
        Judged(
            token=spelled[i],
            start=offsets[i][0],
            end=offsets[i][1],
            replaced=float(replaced_L[i]),
            guesses=guessed[i - 1][0],
            own=guessed[i - 1][1],
        )
        for i in inner
    ]
    return Demo(
        text=text,
        tokens=tuple(tokens),
        discriminator=str(discriminator),
        generator=None if generator is None else str(generator),
    )


def _load(auto: str, folder: Path) -> Any:
    import transformers

    return getattr(transformers, auto).from_pretrained(folder, use_safetensors=True).eval()


def _guessed(ids_L: Any, generator: Path, words: Any) -> list[_Guessed]:
    """For each inner token, with it alone masked: the best guesses, and the probability of the token itself."""
    import torch

    model = _load("AutoModelForMaskedLM", generator)
    found: list[_Guessed] = []
    for where in torch.arange(1, len(ids_L) - 1).split(_BATCH):
        masked_BL = ids_L.repeat(len(where), 1)
        masked_BL[torch.arange(len(where)), where] = words.mask_token_id
        chances_BV = model(input_ids=masked_BL).logits[torch.arange(len(where)), where].softmax(-1)
        best = chances_BV.topk(min(GUESSES, chances_BV.shape[-1]))
        for row, position in enumerate(where.tolist()):
            names = words.convert_ids_to_tokens(best.indices[row].tolist())
            guesses = tuple(map(Guess, names, best.values[row].tolist()))
            found.append((guesses, float(chances_BV[row, ids_L[position]])))
    return found


# --- showing ----------------------------------------------------------------------------------------------------------


def _show(found: Demo, console: Console) -> None:
    if console.interactive and not os.environ.get("NO_COLOR"):
        console.paint([(printable(text), _style(probability)) for text, probability in found.pieces()])
    console.table("Was it replaced?", *_rows(found))


def _style(probability: float | None) -> str:
    """From the terminal's own colours over yellow to red."""
    if probability is None:
        return ""
    return f"black on rgb(255,{round(235 - 160 * probability)},{round(200 - 140 * probability)})"


def _rows(found: Demo) -> tuple[list[str], list[Sequence[object]]]:
    columns = ["token", "replaced"]
    rows: list[Sequence[object]] = [[printable(one.token), f"{one.replaced:.3f}"] for one in found.tokens]
    if found.generator is not None:
        columns += ["generator gives it", "generator's guesses"]
        rows = [[*row, f"{one.own:.3f}", guesses_text(one)] for row, one in zip(rows, found.tokens, strict=True)]
    return columns, rows


def guesses_text(one: Judged) -> str:
    """`meal 0.31, food 0.12`."""
    return ", ".join(f"{printable(guess.token)} {guess.probability:.2f}" for guess in one.guesses)


def printable(text: str) -> str:
    """Without what a terminal might obey."""
    return "".join(character if character.isprintable() else "·" for character in text)
