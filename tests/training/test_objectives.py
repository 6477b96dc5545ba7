"""Objectives against plain loops in float64, gradient isolation, sampling, detection figures."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chisquare
from sklearn.metrics import precision_score, recall_score, roc_auc_score

from data_prep.rows import structure
from tests.training.synthetic import MODEL, SEQ_LEN, SPECIAL, VOCAB, make_rows, partners_within
from training.detection import detection_metrics, detection_statistics, sample_tokens
from training.masking import RowKeys
from training.objectives import Electra, Objective, RowBatch, build, to_device
from training.settings import ArmConfig, BertArm, ElectraArm, RobertaArm

CPU = torch.device("cpu")
ARMS = [ElectraArm(learning_rate=1e-3), BertArm(learning_rate=1e-3), RobertaArm(learning_rate=1e-3)]


def prepared(arm: ArmConfig, packed: bool = False, count: int = 6) -> tuple[Objective, dict[str, np.ndarray]]:
    torch.manual_seed(0)
    rows = make_rows(count, seed=11, packed=packed)
    objective = build(arm, MODEL.encoder(VOCAB), SPECIAL, seq_len=SEQ_LEN, packed=packed)
    index = np.arange(count)

    host = objective.prepare(
        RowBatch(rows, structure(rows, SPECIAL), RowKeys(1, index * 0, index), partners_within(rows))
    )
    return objective, host


def plain_encoder(embeddings, encoder, ids, types):  # type: ignore[no-untyped-def]
    """One fragment, no batch, no mask: the transformer written out."""
    x = embeddings.word.weight[ids] + embeddings.position.weight[: len(ids)] + embeddings.token_type.weight[types]
    x = F.layer_norm(x, x.shape[-1:], embeddings.norm.weight, embeddings.norm.bias, 1e-12)
    if encoder.project is not None:
        x = encoder.project(x)
    for layer in encoder.layers:
        q, k, v = layer.qkv(x).chunk(3, dim=-1)
        heads = []
        width = q.shape[-1] // layer.heads
        for head in range(layer.heads):
            columns = slice(head * width, (head + 1) * width)
            scores = q[:, columns] @ k[:, columns].T / width**0.5
            heads.append(scores.softmax(-1) @ v[:, columns])
        x = layer.attention_norm(x + layer.attention_out(torch.cat(heads, dim=-1)))
        x = layer.ffn_norm(x + layer.ffn_out(F.gelu(layer.ffn_in(x))))
    return x


def plain_masked_loss(embeddings, encoder, head, host, row, columns):  # type: ignore[no-untyped-def]
    hidden = plain_encoder(
        embeddings, encoder, torch.tensor(host["inputs"][row, columns]), torch.tensor(host["types"][row, columns])
    )
    total = hidden.new_zeros(())
    for position, label, weight in zip(
        host["mask_positions"][row], host["mask_labels"][row], host["mask_weights"][row], strict=True
    ):
        if weight and position in columns:
            h = hidden[position - columns[0]]
            logits = head.norm(F.gelu(head.dense(h))) @ embeddings.word.weight.T + head.bias
            total = total - logits.log_softmax(-1)[label]
    return total, hidden


def plain_sums(objective, host, corrupted):  # type: ignore[no-untyped-def]
    """Every loss sum by loops over rows and fragments."""
    sums = {term.name: torch.zeros((), dtype=torch.float64) for term in objective.loss_terms()}
    for row in range(len(host["ids"])):
        for fragment in range(1, host["fragment"][row].max() + 1):
            columns = np.flatnonzero(host["fragment"][row] == fragment)
            if isinstance(objective, Electra):
                mlm, _ = plain_masked_loss(
                    objective.embeddings, objective.generator, objective.generator_head, host, row, columns
                )
                ids, types = corrupted[row, columns], torch.tensor(host["types"][row, columns])
                hidden = plain_encoder(objective.embeddings, objective.discriminator, ids, types)
                for place, column in enumerate(columns):
                    score = objective.discriminator_head(hidden[place])
                    is_fake = int(ids[place]) != host["ids"][row, column]
                    sums["rtd"] = sums["rtd"] - (F.logsigmoid(score) if is_fake else F.logsigmoid(-score))
            else:
                mlm, hidden = plain_masked_loss(
                    objective.embeddings, objective.encoder, objective.mlm_head, host, row, columns
                )
                if "nsp" in sums and host["pair_weights"][row]:
                    head = objective.pair_head
                    logits = head.out(torch.tanh(head.pooler(hidden[0])))
                    sums["nsp"] = sums["nsp"] - logits.log_softmax(-1)[host["pair_labels"][row]]
            sums["mlm"] = sums["mlm"] + mlm
    return sums


@pytest.mark.parametrize("packed", [False, True], ids=["segments", "packed"])
@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_losses_and_gradients_equal_plain_loops_in_float64(arm: ArmConfig, packed: bool) -> None:
    if packed and isinstance(arm, BertArm):
        pytest.skip("BERT's pairs exist in layout 'segments' only")
    objective, host = prepared(arm, packed)
    objective.double()
    batch = to_device(host, CPU)
    corrupted = {}
    if isinstance(objective, Electra):
        inner = objective._corrupt

        def remember(logits, batch):  # type: ignore[no-untyped-def]
            found = inner(logits, batch)
            corrupted["ids"] = found[1]
            return found

        objective._corrupt = remember  # type: ignore[method-assign]
    outputs = objective(batch)
    expected = plain_sums(objective, host, corrupted.get("ids"))
    for name, value in expected.items():
        # the losses themselves are taken in float32, as in training
        assert outputs.sums[name].item() == pytest.approx(value.item(), rel=1e-6), name
    ours = torch.autograd.grad(sum(outputs.sums.values()), list(objective.parameters()), allow_unused=True)
    theirs = torch.autograd.grad(sum(expected.values()), list(objective.parameters()), allow_unused=True)
    for (name, _), left, right in zip(objective.named_parameters(), ours, theirs, strict=True):
        assert left is not None and right is not None, name
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6, msg=name)


def test_packed_rows_equal_their_fragments_alone() -> None:
    objective, host = prepared(RobertaArm(learning_rate=1e-3), packed=True)
    embeddings, encoder = objective.backbone()
    batch = to_device(host, CPU)
    hidden = encoder(embeddings(batch["ids"], batch["positions"], batch["types"]), batch["fragment"], True)
    for row in range(len(host["ids"])):
        for fragment in range(1, host["fragment"][row].max() + 1):
            columns = np.flatnonzero(host["fragment"][row] == fragment)
            alone = plain_encoder(embeddings, encoder, batch["ids"][row, columns], batch["types"][row, columns])
            torch.testing.assert_close(hidden[row, columns], alone, rtol=1e-4, atol=1e-5)


def test_the_discriminator_moves_the_generator_only_through_shared_embeddings() -> None:
    objective, host = prepared(ARMS[0])
    sums = objective(to_device(host, CPU)).sums
    gradients = torch.autograd.grad(sums["rtd"], list(objective.parameters()), allow_unused=True, retain_graph=True)
    for (name, _), gradient in zip(objective.named_parameters(), gradients, strict=True):
        assert (gradient is None) == name.startswith("generator"), name
    gradients = torch.autograd.grad(sums["mlm"], list(objective.parameters()), allow_unused=True)
    for (name, _), gradient in zip(objective.named_parameters(), gradients, strict=True):
        assert (gradient is None) == name.startswith("discriminator"), name


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_filler_rows_weigh_nothing(arm: ArmConfig) -> None:
    objective, host = prepared(arm)
    pad = {name: np.concatenate([a, np.zeros_like(a[:2])]) for name, a in host.items()}
    plain, padded = objective(to_device(host, CPU)), objective(to_device(pad, CPU))
    for name in plain.sums:
        torch.testing.assert_close(padded.sums[name], plain.sums[name], rtol=1e-5, atol=1e-5)


def test_a_sampled_special_token_changes_nothing_but_its_embedding() -> None:
    """A generator that samples [SEP] or [PAD] moves neither fragments nor positions nor counts: the discriminator's
    output equals that of the corrupted ids run with the stored row's structure."""
    objective, host = prepared(ARMS[0])
    batch = to_device(host, CPU)
    special = torch.full_like(batch["mask_labels"], SPECIAL.pad)
    filled = torch.where(batch["mask_weights"] > 0, special, batch["ids"].gather(1, batch["mask_positions"]))
    corrupted = batch["ids"].scatter(1, batch["mask_positions"], filled)
    fake = (corrupted != batch["ids"]).float()
    objective._corrupt = lambda logits, batch: (special, corrupted, fake)  # type: ignore[method-assign,assignment]
    outputs = objective(batch)
    assert outputs.statistics["real"].item() == (host["fragment"] > 0).sum()
    assert outputs.statistics["replaced"].item() == host["mask_weights"].sum()


def test_sampling_follows_the_distribution() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 1, 12)
    draws = 40_000
    u = torch.rand(1, draws, generator=torch.Generator().manual_seed(1))
    sampled = sample_tokens(logits.expand(1, draws, 12), u, temperature=0.7)
    wanted = (logits[0, 0] / 0.7).softmax(-1) * draws
    assert (
        chisquare(np.bincount(sampled[0], minlength=12), wanted.double() / wanted.double().sum() * draws).pvalue > 1e-3
    )


def test_sampling_at_the_ends_never_picks_an_impossible_token() -> None:
    logits = torch.tensor([[[-1e9, 0.0, -1e9, 0.0, -1e9]]])
    for u, expected in ((0.0, 1), (0.4999, 1), (0.5001, 3), (1 - 2**-24, 3)):
        assert sample_tokens(logits, torch.tensor([[u]]), 1.0).item() == expected


def test_detection_figures_equal_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(2)
    fake = (torch.rand(4, 300, generator=generator) < 0.2).float()
    scores = torch.randn(4, 300, generator=generator) + fake
    real = (torch.rand(4, 300, generator=generator) < 0.9).float()
    sums = {k: v.double().numpy() for k, v in detection_statistics(scores, fake, real).items()}
    found = detection_metrics({**sums, "real": real.sum().item()})
    keep = real.bool()
    labels, flags = fake[keep].numpy(), (scores[keep] > 0).numpy()
    assert found["rtd_auc"] == pytest.approx(roc_auc_score(labels, scores[keep].numpy()), abs=1e-3)
    assert found["rtd_precision"] == pytest.approx(precision_score(labels, flags))
    assert found["rtd_recall"] == pytest.approx(recall_score(labels, flags))
    assert found["rtd_accuracy"] == pytest.approx((labels == flags).mean())
    assert found["replaced_rate"] == pytest.approx(labels.mean())
