"""RoBERTa (Liu et al. 2019): 80/10/10 masks, fresh every epoch, and nothing but masked tokens.

How many positions are masked, and which can be, follows ELECTRA's rule for every arm; fairseq rounds the count at
random, has no cap, and masks separators too.
"""

from dataclasses import replace

import numpy as np

from training.arms import RobertaArm
from training.objectives.base import Setup
from training.objectives.batch import BERT_MASK_RATE, BERT_RANDOM_RATE
from training.objectives.mlm import MaskedLanguageModel


class Roberta(MaskedLanguageModel):
    """A random token is a word, never a special one."""

    def __init__(self, arm: RobertaArm, setup: Setup) -> None:
        super().__init__(arm, setup)
        words = np.setdiff1d(np.arange(setup.model.vocab_size, dtype=np.int64), setup.special.all())
        self.masking = replace(self.masking, mask_rate=BERT_MASK_RATE, random_rate=BERT_RANDOM_RATE, random_ids=words)
