"""Image classification: folders of images by class, or tables that name or hold images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_pipelines.tasks.classification.task import Classification
from gpu_pipelines.tasks.formats import TABLES
from gpu_pipelines.tasks.hyperparameters import FINE_TUNED_IMAGES, IMAGES_WITH_ADAPTERS

if TYPE_CHECKING:
    from gpu_pipelines.data.settings import PrepareSettings


class ImageClassificationTask(Classification):
    """Images of one class each."""

    formats = (*TABLES, "tar", "images")
    column_parameters = ("image_column", "label_column")
    parameters = (
        *("image_column", "label_column", "image_size", "image_processor", "color_mode", "image_storage", "image_root"),
        *("missing_labels", "label_conflicts", "stratify", "slice_by", "group_by"),
        *("augmentation", "mixup_alpha", "cutmix_alpha", "label_smoothing"),
    )
    samples = {"digits": "gpu_pipelines.tasks.image_classification.sample:write_digits"}
    defaults = {"source": "sample:digits", "model": "convnext-micro"}
    preparation = "gpu_pipelines.data.images.prepare:ImagePreparation"
    recipe = "gpu_pipelines.tasks.image_classification.recipe:ImageClassification"
    models = (
        *("convnext-micro", "convnext-tiny", "resnet-micro", "swin-micro", "swin-tiny"),
        *("vit-micro", "vit-base"),
    )
    without_adapters = ("resnet-micro",)
    gates = ("accuracy>=0.9",)
    predictor = "gpu_pipelines.tasks.image_classification.predictor:ImageClassifier"
    architectures = ("ForImageClassification",)
    auto_class = "AutoModelForImageClassification"
    serves_others = False
    fine_tuned, with_adapters = FINE_TUNED_IMAGES, IMAGES_WITH_ADAPTERS
    pipeline_tag = "image-classification"
    published = True

    def problems(self, settings: PrepareSettings) -> list[str]:
        if settings.near_duplicates:
            return ["near_duplicates are found among texts only; leave it at 0 for images."]
        return []

    @property
    def remedy_for_columns(self) -> str:
        # It is the default task: who brings texts or numbers need not know yet that there are others.
        others = "Texts and numbers are for other tasks, such as -p task=text_classification."
        return f"{super().remedy_for_columns} {others}"

    def may_nest(self, settings: PrepareSettings, column: str, kind: str) -> bool:
        return column == settings.image_column
