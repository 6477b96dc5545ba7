"""Which sentence of a minimal pair a network finds more likely, as it was pre-trained: nothing is fine-tuned.

Two scorers of a sentence, `cls words sep`:

- `pll`, for heads that fill masks: the pseudo-log-likelihood Σ log P(word | all others), each word masked in its turn
  (Salazar et al. 2020). A sentence of n words costs n rows.
- `rtd`, for heads that detect replaced tokens: Σ log P(word is original), one row a sentence.

Both sum over words, not cls and sep, and do not divide by length. What differs by no more than rounding is a tie, and a
tie is no hit. Guarantees: memory does not grow with the number of sentences but for their ids and scores, nor
with the vocabulary; text that spells a special token stays text; no generator state is used. Networks that have only
seen samples where tokens were masked (`replace_mlm`, `all_tokens_mlm`) have an `mlm` head that knows no [MASK]:
`training.judges` leaves them out.

Shape suffixes: n sentences, R masked rows of all, B rows of a batch, L tokens, D hidden size, V vocabulary.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from data_prep.errors import ConfigError, DataError
from data_prep.tokenizer import Tokenizer
from training.blimp import Paradigm
from training.encoder import at_least_float32
from training.network import Network
from training.tasks import Example
from training.text_batches import Encoded, ascending, encode

Scorer = Literal["pll", "rtd"]
Scores = NDArray[np.float64]

HEADS: dict[Scorer, str] = {"pll": "mlm", "rtd": "rtd"}  # what each scorer asks
BATCH_TOKENS = 4_096  # of one forward pass
BATCH_LOGITS = 1 << 25  # of one pass through an output layer over the vocabulary
TIE = 1e-6  # of a score: what rounding in fp32 may make of two sums that are equal


@dataclass(frozen=True, slots=True)
class ParadigmScore:
    """`margins` of each pair in order `[n]`: the good sentence's score less the bad one's, in nats; 0 is a tie."""

    margins: Scores

    @property
    def n(self) -> int:
        return len(self.margins)

    @property
    def hits(self) -> int:
        """Pairs whose good sentence scores higher; a tie is none, nor is what is no number."""
        return int((self.margins > 0).sum())

    @property
    def accuracy(self) -> float:
        return self.hits / self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class PairScores:
    """What a network made of all paradigms, by name, and what it took."""

    scorer: Scorer
    paradigms: dict[str, ParadigmScore]
    seconds: float
    cpu_seconds: float

    @property
    def mean(self) -> float:
        """The mean accuracy of paradigms, each counting alike."""
        return float(np.mean([score.accuracy for score in self.paradigms.values()]))

    @property
    def standard_error(self) -> float | None:
        """Of the mean, from the spread of paradigms; None of one alone. A network's preferences run through a whole
        paradigm (for shorter sentences, say), so its pairs are no independent draws."""
        if len(self.paradigms) < 2:
            return None
        accuracies = [score.accuracy for score in self.paradigms.values()]
        return float(np.std(accuracies, ddof=1) / np.sqrt(len(accuracies)))

    @property
    def finite(self) -> bool:
        """Whether every margin is a number; otherwise the network is broken, and its hits mean nothing."""
        return all(np.isfinite(score.margins).all() for score in self.paradigms.values())


def scorers(network: Network) -> tuple[Scorer, ...]:
    """The scorers that a network has the head for."""
    return tuple(scorer for scorer, head in HEADS.items() if head in network.heads)


def score_paradigms(
    network: Network, scorer: Scorer, *, tokenizer: Tokenizer, paradigms: Sequence[Paradigm], device: torch.device
) -> PairScores:
    """Hits and margins of every paradigm. The network is moved to `device` and put in evaluation mode.

    ConfigError where it lacks the scorer's head, or its positions or vocabulary do not take the sentences; DataError
    where the tokenizer makes nothing of one.
    """
    start, cpu_start = time.monotonic(), time.process_time()
    if scorer not in scorers(network):
        raise ConfigError(
            f"the network has no {HEADS[scorer]} head, which the scorer {scorer} asks; choose a checkpoint that has it"
        )
    for module in (network.embeddings, network.encoder, *network.heads.values()):
        module.to(device).eval()
    pairs = [pair for paradigm in paradigms for pair in paradigm.pairs]
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    data = encode([Example(sentence, None, 0) for sentence in sentences], tokenizer, max_length=sys.maxsize)
    _refuse_misfits(data, sentences, network)
    with torch.inference_mode():
        if scorer == "pll":
            scores_n = _pseudo_log_likelihoods(network, data, tokenizer.special.mask, device)
        else:
            scores_n = _originality(network, data, device)
    margins = _margins(scores_n[0::2], scores_n[1::2])
    ends = np.cumsum([len(paradigm.pairs) for paradigm in paradigms])
    return PairScores(
        scorer=scorer,
        paradigms={
            paradigm.name: ParadigmScore(part)
            for paradigm, part in zip(paradigms, np.split(margins, ends[:-1]), strict=True)
        },
        seconds=time.monotonic() - start,
        cpu_seconds=time.process_time() - cpu_start,
    )


def _margins(good: Scores, bad: Scores) -> Scores:
    margins = good - bad
    return np.where(np.abs(margins) <= TIE * np.maximum(np.abs(good), np.abs(bad)), 0.0, margins)


def _refuse_misfits(data: Encoded, sentences: Sequence[str], network: Network) -> None:
    longest, shortest = int(data.lengths.argmax()), int(data.lengths.argmin())
    if data.lengths[shortest] <= 2:
        raise DataError(f"the tokenizer makes no token of the sentence {sentences[shortest]!r}: take the pair out.")
    if data.lengths[longest] > network.config.max_positions:
        raise ConfigError(
            f"the sentence {sentences[longest]!r} is {data.lengths[longest]} tokens and the network has "
            f"{network.config.max_positions} positions; choose a checkpoint with more"
        )
    if data.ids.max() >= network.config.vocab_size:
        raise ConfigError(
            f"the tokenizer knows the id {data.ids.max()} and the network's vocabulary ends at "
            f"{network.config.vocab_size}; name the tokenizer that the network was trained with"
        )


def _originality(network: Network, data: Encoded, device: torch.device) -> Scores:
    """Σ log P(original) over the words of each sentence `[n]`."""
    scores_n = np.zeros(len(data.lengths))
    for which_B in ascending(data.lengths, BATCH_TOKENS):
        batch = data.batch(which_B, device)
        x_BLE = network.embeddings(batch["ids"], batch["positions"], batch["types"])
        logits_BL = network.heads["rtd"](network.encoder(x_BLE, batch["fragment"]))  # positive: looks replaced
        length_B1 = batch["fragment"].sum(dim=1, keepdim=True)
        word_BL = (batch["positions"] > 0) & (batch["positions"] < length_B1 - 1)
        log_p_BL = F.logsigmoid(-at_least_float32(logits_BL)).double()
        scores_n[which_B] = log_p_BL.where(word_BL, 0.0).sum(dim=1).cpu().numpy()
    return scores_n


def _pseudo_log_likelihoods(network: Network, data: Encoded, mask: int, device: torch.device) -> Scores:
    """Σ log P(word | the others) of each sentence `[n]`: a row for every word, and rows of one length together,
    whichever sentences they are of."""
    words_n = data.lengths - 2
    owner_R = np.repeat(np.arange(len(words_n)), words_n)
    place_R = np.arange(len(owner_R)) - np.repeat(np.cumsum(words_n) - words_n, words_n) + 1
    scores_n = np.zeros(len(words_n))
    for which_B in ascending(data.lengths[owner_R], BATCH_TOKENS):
        batch = data.batch(owner_R[which_B], device)
        place_B = torch.from_numpy(place_R[which_B]).to(device)
        log_p_B = _masked_log_p(network, batch, place_B, mask)
        np.add.at(scores_n, owner_R[which_B], log_p_B.double().cpu().numpy())
    return scores_n


def _masked_log_p(network: Network, batch: dict[str, Tensor], place_B: Tensor, mask: int) -> Tensor:
    """log P(token at `place` | the others) `[B]`.

    The masked token changes columns with cls, each keeping its position: attention knows no order but the positions',
    and of a first column alone the last layer needs no other query.
    """
    place_B1, ids_BL, positions_BL = place_B[:, None], batch["ids"], batch["positions"]
    target_B = ids_BL.gather(1, place_B1)[:, 0]
    ids_BL = ids_BL.scatter(1, place_B1, ids_BL[:, :1])
    positions_BL = positions_BL.scatter(1, place_B1, positions_BL[:, :1])
    ids_BL[:, 0], positions_BL[:, 0] = mask, place_B
    x_BLE = network.embeddings(ids_BL, positions_BL, batch["types"])
    h_BD = network.encoder(x_BLE, batch["fragment"], first=True)[:, 0]
    rows = max(1, BATCH_LOGITS // network.config.vocab_size)
    head: Callable[[Tensor, Tensor], Tensor] = network.heads["mlm"]
    parts = [
        -F.cross_entropy(at_least_float32(head(h, network.embeddings.word.weight)), target, reduction="none")
        for h, target in zip(h_BD.split(rows), target_B.split(rows), strict=True)
    ]
    return torch.cat(parts)
