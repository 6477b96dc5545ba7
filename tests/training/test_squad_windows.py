"""Windows over long texts: where they begin, which has the maximum context, and answers by character in odd texts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from data_prep import tokenizer as tokenizers
from data_prep.tokenizer import Tokenizer, TokenizerConfig
from tests.training.squad_cases import REAL, VOCABULARY, needs_real, paragraph, squad_folder, toy
from training.squad import Gold, Question, Version, read_squad
from training.squad_metrics import normalized
from training.squad_protocol import SpanProtocol
from training.squad_windows import answer_tokens, cut, locate, max_context, parts

SMALL = SpanProtocol(max_length=24, max_query=4, doc_stride=5)
ODD = "Ōre é1e\u0301f\r\n gold[MASK]<mask>  İron\u200b金x 😀silvers"


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    extra = ["ore", "e", "f", "1", "##1", "##e", "##f", "iron", "金", "x"]
    path.write_text("\n".join([*VOCABULARY, *extra]) + "\n", encoding="utf-8")
    return tokenizers.load(path)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    config = TokenizerConfig(kind="bpe", vocab_size=300, lowercase=False)
    return tokenizers.train(["gold silver gold silver metal"] * 3, config)


def test_parts_by_hand() -> None:
    assert parts(10, 4, 2) == [(0, 4), (2, 4), (4, 4), (6, 4)]
    assert parts(9, 4, 2) == [(0, 4), (2, 4), (4, 4), (6, 3)]
    assert parts(9, 4, 99) == [(0, 4), (4, 4), (8, 1)]  # a stride that would leave tokens out does not
    assert parts(4, 4, 2) == [(0, 4)]
    assert parts(0, 4, 2) == [(0, 0)]


def test_maximum_context_by_hand() -> None:
    """Three parts of five tokens at 0, 3, 6 of eleven. Token 7 has 4 left and 0 right in the second, 1 and 3 in the
    third; token 5 (2 and 2) is the second's middle; 4 has 0 on its poorer side in the first and 1 in the second."""
    found = max_context(np.array([0, 3, 6]), np.array([5, 5, 5]), 11)
    assert found.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]


def test_between_equals_the_longer_window_and_then_the_earlier_has_it() -> None:
    # token 4: nothing on its poorer side in either; 5 tokens against 6
    assert max_context(np.array([0, 4]), np.array([5, 6]), 10)[4] == 1
    assert max_context(np.array([0, 4]), np.array([5, 5]), 9)[4] == 0


def test_windows_by_hand(wordpiece: Tokenizer) -> None:
    """cls, a question of 3 tokens ('?' is unknown), sep and the closing one leave 18 tokens of 24."""
    words = ["gold" if i == 20 else f"word{chr(97 + i // 6 % 6)}{chr(97 + i % 6)}" for i in range(24)]
    windows = cut([paragraph(" ".join(words), "gold", None)], wordpiece, SMALL)
    assert windows.first_W.tolist() == [0, 5, 10, 0, 5, 10]
    assert windows.count_W.tolist() == [18, 18, 14, 18, 18, 14]
    assert windows.offset_W.tolist() == [5] * 6
    assert windows.rows.lengths.tolist() == [24, 24, 20] * 2
    assert windows.rows.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [w.tolist() for w in windows.of_question()] == [[0, 1, 2], [3, 4, 5]]
    # token 20 is not in the first, at 5 + 20 - 5 in the second, at 5 + 20 - 10 in the third
    assert windows.start_W.tolist() == windows.end_W.tolist() == [0, 20, 15, 0, 0, 0]
    # a window without the answer of an answerable question is not impossible
    assert windows.impossible_W.tolist() == [0, 0, 0, 1, 1, 1]
    ids = wordpiece.encode(["what metal?", " ".join(words)])
    special = wordpiece.special
    row = windows.rows.ids[24:48].tolist()
    assert row == [special.cls, *ids[0], special.sep, *ids[1][5:23], special.sep]


def test_a_batch_points_only_at_the_text_its_separator_and_position_0(wordpiece: Tokenizer) -> None:
    windows = cut([paragraph("worda gold", "gold"), paragraph("gold", "gold", key="r")], wordpiece, SMALL)
    batch = windows.batch(np.array([1, 0]), torch.device("cpu"))
    # 'worda' is unknown, one token: cls what metal ? sep [text] sep
    assert batch["allowed"].int().tolist() == [[1, 0, 0, 0, 0, 1, 1, 0], [1, 0, 0, 0, 0, 1, 1, 1]]
    assert batch["start"].tolist() == batch["end"].tolist() == [5, 6]
    assert batch["impossible"].tolist() == [0.0, 0.0]
    assert batch["impossible"].dtype == torch.float32


def test_a_long_question_is_cut_and_two_separators_follow_it_where_the_tokenizer_has_two(bpe: Tokenizer) -> None:
    windows = cut([paragraph("gold", "gold")], bpe, SMALL)
    special = bpe.special
    query = bpe.encode(["What metal?"])[0]
    assert len(query) > 4
    text = bpe.encode(["gold"])[0]
    expected = [special.cls, *query[:4], special.sep, special.sep, *text, special.sep]
    assert windows.rows.ids.tolist() == expected
    assert (windows.start_W.item(), windows.end_W.item()) == (7, 6 + len(text))


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
@pytest.mark.parametrize(
    "answer",
    # at the text's beginning, decomposed accent, next to CRLF, a special token's spelling, behind a blank, unknown
    # character alone, at the text's end
    ["Ōre", "é1e\u0301f", "e\u0301f", "gold", "[MASK]", "金", "😀silvers", "gold[MASK]<mask>  İron"],
)
def test_answers_in_odd_texts_come_back_as_they_are(kind: str, answer: str, request: pytest.FixtureRequest) -> None:
    text = locate(ODD, request.getfixturevalue(kind))
    tokens = answer_tokens(Question("q", "?", (Gold(answer, ODD.index(answer)),)), text)
    assert tokens is not None
    assert ODD[text.first_N[tokens[0]] : text.end_N[tokens[1]]] == answer


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_tokens_are_those_of_encode_in_order_and_without_blanks(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    text = locate(ODD, tokenizer)
    assert text.ids == tokenizer.encode([ODD])[0]
    pieces = [ODD[a:b] for a, b in zip(text.first_N, text.end_N, strict=True)]
    assert all(piece == piece.strip() for piece in pieces)
    assert np.all(np.diff(text.first_N[text.first_N < text.end_N]) >= 0)
    assert tokenizer.special.mask not in text.ids


def test_an_answer_inside_a_word_is_that_word_and_one_in_no_token_is_none(wordpiece: Tokenizer) -> None:
    text = locate("worda silver\u200b", wordpiece)
    assert answer_tokens(Question("q", "?", (Gold("ilv", 7),)), text) == (1, 1)
    assert answer_tokens(Question("q", "?", (Gold("\u200b", 12),)), text) is None
    assert answer_tokens(Question("q", "?", ()), text) is None


def test_a_text_without_tokens_is_one_window_that_points_at_nothing(wordpiece: Tokenizer) -> None:
    windows = cut([paragraph("\u200b", "\u200b")], wordpiece, SMALL)
    assert windows.count_W.tolist() == windows.start_W.tolist() == [0]
    assert windows.impossible_W.tolist() == [0.0]


def test_every_answer_is_whole_in_some_window_when_windows_overlap_enough(wordpiece: Tokenizer) -> None:
    windows = cut(toy(50, 3, unanswerable=False, longest=60), wordpiece, SMALL)
    assert len(windows.rows.labels) > 150
    assert {int(q) for q in windows.rows.labels[windows.start_W > 0]} == set(range(50))
    for w in np.flatnonzero(windows.start_W).tolist():
        question = windows.questions[int(windows.rows.labels[w])]
        row = windows.rows.ids[windows.rows.starts[w] : windows.rows.starts[w + 1]]
        span = row[windows.start_W[w] : windows.end_W[w] + 1].tolist()
        assert span == wordpiece.encode([question.answers[0].text])[0]


def test_a_protocol_without_room_for_text_is_refused() -> None:
    with pytest.raises(
        ValidationError, match="max_length 80 leaves no room for the text beside a question of 64 tokens"
    ):
        SpanProtocol(max_length=80)


@needs_real
@pytest.mark.parametrize(
    ("version", "answerable", "differing"),
    [
        ("1.1", 838, [("7,000,000 square kilometres (2,700", "7,000,000 square kilometres (2,70")]),
        ("2.0", 859, [("Japanese", "Japan")]),
    ],
)
def test_the_annotated_answers_of_real_texts_come_back_but_for_those_that_end_within_a_token(
    version: Version, answerable: int, differing: list[tuple[str, str]]
) -> None:
    tokenizer = tokenizers.load(Path(str(REAL)) / "vocab" / "bert-base-uncased" / "vocab.txt")
    seen, other = 0, []
    for p in read_squad(squad_folder() / f"dev-v{version}.subset.json", version):
        text = locate(p.context, tokenizer)
        for q in p.questions:
            if (tokens := answer_tokens(q, text)) is None:
                continue
            seen += 1
            found = p.context[text.first_N[tokens[0]] : text.end_N[tokens[1]]]
            if normalized(found) != normalized(q.answers[0].text):
                other.append((found, q.answers[0].text))
    assert seen == answerable
    assert other == differing
