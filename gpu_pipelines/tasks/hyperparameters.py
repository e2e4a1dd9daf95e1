"""The hyperparameters that the user leaves to the task, each number with its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that depend on the task and the model.

    Attributes:
        learning_rate: at its peak.
        epochs: passes over the training rows.
        weight_decay: AdamW's, decoupled.
    """

    learning_rate: float
    epochs: float
    weight_decay: float


#: Of the small models that are built from their name, as the examples and benchmarks of this project measure them.
FROM_SCRATCH = Hyperparameters(learning_rate=4e-3, epochs=15.0, weight_decay=0.05)
#: The defaults of transformers' TrainingArguments.
FINE_TUNED = Hyperparameters(learning_rate=5e-5, epochs=3.0, weight_decay=0.0)
#: QLoRA (Dettmers et al. 2023, arXiv:2305.14314, table 9): 2e-4 for 7 and 13 billion parameters; epochs as above.
WITH_ADAPTERS = Hyperparameters(learning_rate=2e-4, epochs=3.0, weight_decay=0.0)
#: Of encoders of texts. Hugging Face's course, chapter 7, token classification; the BERT paper (arXiv:1810.04805, A.3)
#: tried 2e-5 to 5e-5 and 2 to 4 epochs.
FINE_TUNED_ENCODER = Hyperparameters(learning_rate=2e-5, epochs=3.0, weight_decay=0.01)
#: PEFT's guide "LoRA for token classification", roberta-large.
ENCODER_WITH_ADAPTERS = Hyperparameters(learning_rate=1e-3, epochs=10.0, weight_decay=0.01)
#: Stanford Alpaca, README, LLaMA-7B.
FINE_TUNED_DECODER = Hyperparameters(learning_rate=2e-5, epochs=3.0, weight_decay=0.0)
#: transformers' guide "Image classification", ViT-B/16.
FINE_TUNED_IMAGES = Hyperparameters(learning_rate=5e-5, epochs=3.0, weight_decay=0.0)
#: PEFT's guide "Image classification using LoRA", ViT-B/16.
IMAGES_WITH_ADAPTERS = Hyperparameters(learning_rate=5e-3, epochs=5.0, weight_decay=0.0)
#: TRL's script dpo.py, of full training and of LoRA.
PREFERENCE_TUNED = Hyperparameters(learning_rate=5e-7, epochs=1.0, weight_decay=0.0)
PREFERENCE_WITH_ADAPTERS = Hyperparameters(learning_rate=5e-6, epochs=1.0, weight_decay=0.0)
