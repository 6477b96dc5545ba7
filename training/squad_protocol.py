"""How a body is fine-tuned on SQuAD, stored with every score; torch-free. What names mean: `training.fine_protocol`.

`plain` has BERT's head, one linear layer (Devlin et al. 2019), `electra_paper` the reference's joint one with its beam,
answerability and threshold (`configure_finetuning.py`, `finetune/qa`).
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from training.fine_protocol import FineProtocol

TEXT_ROOM = 16  # tokens of text that a window must hold, at least


class SpanProtocol(FineProtocol):
    """A batch is one of windows, an example a question. The defaults are `plain`'s and suit models of a few million
    parameters; a base-sized model wants a learning rate ten times lower."""

    PAPER: ClassVar[dict[str, Any]] = {
        **FineProtocol.PAPER,
        "epochs": 2,
        "head": "joint",
        "max_length": 512,
        "max_query": 64,
        "doc_stride": 128,
        "answerable_weight": 0.5,
        "beam": 20,
        "n_best": 20,
        "max_answer": 30,
        "null_threshold": -2.75,
    }

    learning_rate: Annotated[float, Field(gt=0.0)] = 5e-4
    head: Literal["plain", "joint"] = "plain"
    max_length: PositiveInt = 384  # tokens of a window, question and special ones included
    max_query: PositiveInt = 64  # tokens of a question; the rest is cut
    doc_stride: PositiveInt = 128  # tokens from the beginning of one window to that of the next
    answerable_weight: Annotated[float, Field(ge=0.0)] = 0.5  # joint: of the answerability loss
    beam: PositiveInt = 20  # starts of a window, and ends of each
    n_best: PositiveInt = 20  # answers kept of each question
    max_answer: PositiveInt = 30  # tokens
    null_threshold: float = 0.0  # 2.0: above it, no answer. Of a logit (joint), or of null minus best span (plain)

    @model_validator(mode="after")
    def _room_for_text(self) -> "SpanProtocol":
        # cls, two separators after the question (RoBERTa), one at the end
        if self.max_length < self.max_query + 4 + TEXT_ROOM:
            raise ValueError(
                f"max_length {self.max_length} leaves no room for the text beside a question of {self.max_query} "
                "tokens; raise it or lower max_query"
            )
        return self
