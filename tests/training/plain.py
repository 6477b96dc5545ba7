"""Every objective written out from the papers' formulas: loops over rows, fragments and positions, in float64.

What `training.objectives` is held to. Nothing is batched, padded, packed, gathered or masked here, no special id is
looked for but in the stored row, and no module of ours computes anything: only parameters are taken, by the canonical
names of `training.network`. What is drawn for a batch (which positions are masked, what stands there, uniforms, pairs)
is taken from it; samples are drawn here, from the uniforms and this file's own distribution.

Sources: Clark et al. 2020 (sections 2, 3.3, 3.4 and appendix F), Devlin et al. 2019, google-research/electra.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from data_prep.rows import SpecialIds
from tests.training.plain_network import PlainNetwork, sigmoid, softmax
from training.arms import (
    AllTokensMlmArm,
    ArmConfig,
    BertArm,
    DetectionArm,
    Electra15Arm,
    ElectraAdversarialArm,
    ElectraTwoStageArm,
    ReplaceMlmArm,
    UniformGenerator,
)
from training.objectives import HostBatch, Objective


@dataclass(slots=True)
class Losses:
    """What a batch adds up to, fragment by fragment: loss sums, to be differentiated, and what is measured."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    measured: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, loss: Tensor) -> None:
        """Add one position's loss."""
        self.sums[name] = self.sums[name] + loss if name in self.sums else loss


@dataclass(frozen=True, slots=True)
class Slot:
    """A masked position of a fragment: the token that is stored there, and the number it is sampled by."""

    place: int
    label: int
    uniform: float


@dataclass(frozen=True, slots=True)
class Fragment:
    """One fragment of one row, as if nothing else existed."""

    row: int
    stored: list[int]
    shown: list[int]  # with masks
    types: list[int]
    slots: list[Slot]


def fragments(host: HostBatch, special: SpecialIds) -> Iterator[Fragment]:
    """The fragments of a batch, found by reading each stored row from left to right."""
    for b, row in enumerate(host["ids"].tolist()):
        starts = [column for column, token in enumerate(row) if token == special.cls]
        end = row.index(special.pad) if special.pad in row else len(row)
        slots = {}
        for k, column in enumerate(host["mask_positions"][b].tolist()):
            if host["mask_weights"][b, k]:
                uniform = float(host["uniforms"][b, k]) if "uniforms" in host else 0.0
                slots[column] = (row[column], uniform)
        for start, stop in zip(starts, [*starts[1:], end], strict=False):
            stored = row[start:stop]
            yield Fragment(
                row=b,
                stored=stored,
                shown=host["inputs"][b, start:stop].tolist(),
                types=_types(stored, special),
                slots=[Slot(column - start, *slots[column]) for column in range(start, stop) if column in slots],
            )


def _types(stored: list[int], special: SpecialIds) -> list[int]:
    """0 up to and including the first segment's separators, then 1."""
    types, ended, second = [], False, 0
    for token in stored:
        if ended and token != special.sep:
            second = 1
        types.append(second)
        ended = ended or token == special.sep
    return types


def plain_losses(
    arm: ArmConfig, objective: Objective, host: HostBatch, special: SpecialIds, forced: int | None = None
) -> Losses:
    """Loss sums and statistics of a prepared batch. With `forced`, that is what is sampled everywhere."""
    networks = {name: PlainNetwork(network) for name, network in objective.networks().items()}
    found = Losses()
    for fragment in fragments(host, special):
        found.measured["real"] += len(fragment.stored)
        found.measured["masked"] += len(fragment.slots)
        if isinstance(arm, DetectionArm | ReplaceMlmArm | AllTokensMlmArm):
            _corrupted(arm, objective, networks, fragment, forced, found)
        else:
            _masked(arm, networks["encoder"], fragment, host, found)
    return found


def plain_total(arm: ArmConfig, found: Losses) -> Tensor:
    """What is minimised: each loss a mean, weighted."""
    weights = {
        "mlm": getattr(arm, "generator_weight", 1.0),
        "policy": getattr(arm, "generator_weight", 1.0),
        "baseline": getattr(arm, "baseline_weight", 1.0),
        "rtd": getattr(arm, "discriminator_weight", 1.0),
    }
    kinds = {"rtd": "masked" if isinstance(arm, Electra15Arm) else "real", "all_tokens": "real", "nsp": "pairs"}
    return sum(
        weights.get(name, 1.0) * loss / found.measured[kinds.get(name, "masked")] for name, loss in found.sums.items()
    )  # type: ignore[return-value]


def _masked(arm: ArmConfig, network: PlainNetwork, fragment: Fragment, host: HostBatch, found: Losses) -> None:
    """mlm, roberta, bert: −log p of every masked token, and of whether the second segment follows."""
    h = network.hidden(fragment.shown, fragment.types)
    for slot in fragment.slots:
        probabilities = softmax(network.words(h[slot.place]))
        found.add("mlm", -probabilities[slot.label].log())
        found.measured["mlm_hits"] += probabilities.argmax() == slot.label
    if isinstance(arm, BertArm) and host["pair_weights"][fragment.row]:
        found.measured["pairs"] += 1
        pooled = torch.tanh(network.linear("heads.nsp.pooler", h[0]))
        label = int(host["pair_labels"][fragment.row])
        probabilities = softmax(network.linear("heads.nsp.out", pooled))
        found.add("nsp", -probabilities[label].log())
        found.measured["nsp_hits"] += probabilities.argmax() == label


def _corrupted(
    arm: ArmConfig,
    objective: Objective,
    networks: dict[str, PlainNetwork],
    fragment: Fragment,
    forced: int | None,
    found: Losses,
) -> None:
    """The arms with a generator: what it samples stands where [MASK] would."""
    guesses = _generated(arm, objective.config.vocab_size, networks.get("generator"), fragment, forced, found)
    corrupted = list(fragment.stored)
    for slot, guess in zip(fragment.slots, guesses, strict=True):
        corrupted[slot.place] = guess.token
        found.measured["sampled_hits"] += guess.token == slot.label
    main = networks[objective.main]
    h = main.hidden(corrupted, fragment.types)
    if isinstance(arm, ReplaceMlmArm):
        _restored(main, h, fragment, corrupted, found)
    elif isinstance(arm, AllTokensMlmArm):
        _copied(main, h, fragment.stored, corrupted, found)
    else:
        losses = _detected(arm, main, h, fragment, corrupted, found)
        if isinstance(arm, ElectraAdversarialArm):
            for slot, guess in zip(fragment.slots, guesses, strict=True):
                _reinforced(objective, guess, losses[slot.place].detach(), found)


def _restored(main: PlainNetwork, h: Tensor, fragment: Fragment, corrupted: list[int], found: Losses) -> None:
    """replace_mlm: −log p of the stored token of every masked position."""
    for slot in fragment.slots:
        found.measured["replaced"] += corrupted[slot.place] != slot.label
        probabilities = softmax(main.words(h[slot.place]))
        found.add("replaced", -probabilities[slot.label].log())
        found.measured["replaced_hits"] += probabilities.argmax() == slot.label


def _copied(main: PlainNetwork, h: Tensor, stored: list[int], corrupted: list[int], found: Losses) -> None:
    """all_tokens_mlm: −log p of every stored token, p = D·1[input] + (1 − D)·softmax."""
    for i, (truth, token) in enumerate(zip(stored, corrupted, strict=True)):
        copying = sigmoid(main.linear("heads.copy.out", h[i])[0])
        probabilities = (1 - copying) * softmax(main.words(h[i]))
        copy = torch.zeros_like(probabilities)
        copy[token] = 1
        probabilities = probabilities + copying * copy
        found.add("all_tokens", -probabilities[truth].log())
        found.measured["replaced"] += token != truth
        found.measured["corrected" if token != truth else "kept"] += probabilities.argmax() == truth


def _detected(
    arm: ArmConfig, main: PlainNetwork, h: Tensor, fragment: Fragment, corrupted: list[int], found: Losses
) -> list[Tensor]:
    """Detection: −log D of every original token, −log(1 − D) of every replacement, D the probability "original"; the
    losses of all positions, of which electra_15 is trained on the masked ones."""
    places = {slot.place for slot in fragment.slots} if isinstance(arm, Electra15Arm) else range(len(corrupted))
    losses = []
    for i, (truth, token) in enumerate(zip(fragment.stored, corrupted, strict=True)):
        fake, replaced = token != truth, main.replaced(h[i])
        losses.append(-replaced.log() if fake else -(1 - replaced).log())
        if i in places:
            found.add("rtd", losses[i])
            flagged = replaced > 0.5
            found.measured.update(judged=1, replaced=fake, flagged=flagged, caught=flagged and fake)
            found.measured["rtd_loss_replaced"] += losses[i].item() * fake
    return losses


@dataclass(frozen=True, slots=True)
class Guess:
    """A sampled token, its probability, and the hidden state it came from (neither for chance)."""

    token: int
    probability: Tensor | None = None
    h: Tensor | None = None


def _generated(
    arm: ArmConfig,
    vocab_size: int,
    generator: PlainNetwork | None,
    fragment: Fragment,
    forced: int | None,
    found: Losses,
) -> list[Guess]:
    """A token for each masked position, and the generator's own loss where it is trained by likelihood."""
    settings = arm if isinstance(arm, ElectraTwoStageArm) else arm.generator  # type: ignore[union-attr]
    if isinstance(settings, UniformGenerator):
        return [Guess(int(slot.uniform * vocab_size)) for slot in fragment.slots]
    assert generator is not None
    h = generator.hidden(fragment.shown, fragment.types)
    trained = getattr(settings, "kind", "frozen") == "network" and not isinstance(arm, ElectraAdversarialArm)
    guesses = []
    for slot in fragment.slots:
        logits = generator.words(h[slot.place])
        likelihood = softmax(logits)
        found.measured["mlm_loss"] -= likelihood[slot.label].log().item()
        found.measured["mlm_hits"] += likelihood.argmax() == slot.label
        if trained:
            found.add("mlm", -likelihood[slot.label].log())
        probabilities = softmax(logits / settings.temperature)
        if settings.disallow_correct:
            allowed = torch.ones_like(probabilities)
            allowed[slot.label] = 0
            probabilities = probabilities * allowed / (probabilities * allowed).sum()
        token = _drawn(probabilities.tolist(), slot.uniform) if forced is None else forced
        guesses.append(Guess(token, probabilities[token], h[slot.place]))
    return guesses


def _drawn(probabilities: list[float], uniform: float) -> int:
    """The first token at which the cumulative probability exceeds the uniform number."""
    cumulative = 0.0
    for token, probability in enumerate(probabilities):
        cumulative += probability
        if cumulative > uniform:
            return token
    raise AssertionError("probabilities add up to less than the uniform number")


def _reinforced(objective: Objective, guess: Guess, reward: Tensor, found: Losses) -> None:
    """−(r − b)·log p, and the cross-entropy of the baseline b = −log σ(w·h) towards r: its σ should be e⁻ʳ."""
    assert guess.probability is not None and guess.h is not None
    weight = objective.generator.baseline.weight  # type: ignore[union-attr]
    assert isinstance(weight, nn.Parameter)
    right = sigmoid(weight[0] @ guess.h.detach())
    baseline = -right.detach().log()
    found.measured["reward"] += reward.item()
    found.add("policy", -(reward - baseline) * guess.probability.log())
    truth = (-reward).exp()
    found.add("baseline", -truth * right.log() - (1 - truth) * (1 - right).log())
