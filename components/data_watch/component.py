"""The KFP interface of `check_for_new_data`."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Metrics, Output

from gpu_pipelines.component_interface.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def check_for_new_data(
    drift_report: Output[HTML],
    drift: Output[Metrics],
    source: str = "sample:digits",
    billing_project: str = "",
    task: str = "image_classification",
    tokenizer: str = "train",
    model: str = "convnext-micro",
    registry: str = "./registry",
    model_name: str = "",
    min_champion_age_days: float = 0.0,
    start_from_champion: bool = False,
    retrain_on: str = "new_data",
    drift_source: str = "",
    drift_days: float = 0.0,
    source_fingerprint: str = "",
    outcome_uri: str = "",
    advanced: dict = {},  # noqa: B006 (KFP takes the default from here)
) -> NamedTuple(  # type: ignore[valid-type]
    "Outputs", [("Output", bool), ("reason", str), ("model", str), ("tokenizer", str), ("image_processor", str)]
):
    """Looks at a source, without reading its rows, and at the registry, and says whether to train again.

    Args:
        source: What prepare_data would read.
        billing_project: As for prepare_data.
        task: What the rows are for.
        tokenizer: As for prepare_data. In place of train, the tokenizer of model is taken if that is pretrained, else
            the champion's: two text models can only be compared on the same tokens.
        model: As for train_model.
        registry: Directory of the model registry, vertex://PROJECT/REGION for Vertex AI Model Registry, vertex:// alone
            for the registry of the job's own project and region, or mlflow:https://HOST for that of an MLflow server.
        model_name: Name of the model in the registry; empty to name it after the source.
        min_champion_age_days: Days for which a champion gets no challenger, however much the data has grown; 0 for
            none.
        start_from_champion: Whether to start from the champion's weights instead of model, if there is a champion.
        retrain_on: When to train, once the source has changed: new_data, always; drift, only if the rows of
            drift_source have drifted from the champion's training data; either, always, and after drift even if the
            champion is younger than min_champion_age_days.
        drift_source: The current rows, without labels, to check for drift: as source of check_for_drift. Needed unless
            retrain_on is new_data.
        drift_days: For logged requests as drift_source, the last days to read; 0 for all.
        source_fingerprint: Fingerprint of the source that check_request found; empty to look at the source here.
        outcome_uri: Directory, local or gs://, in which the step leaves its outcome for the message at the end of the
            run; empty for a run without a message.
        advanced: Parameters by name, from check_request; they win over those above.

    Returns:
        drift_report: The comparison with the champion's training data, with the distributions then and now; if
            retrain_on is new_data, a note that drift was not checked.
        drift: The figures of this comparison.
        Output: True if no version of the model was trained on the source as it is now, and the champion is old enough.
            (KFP's local runner finds the condition of a branch only by this name.)
        reason: Why, in one line.
        model: What to train: model, or the place of the champion.
        tokenizer: What to prepare texts with: tokenizer, or the place of the champion.
        image_processor: The model whose settings prepare the images: model if it is pretrained, else empty.
    """
    from gpu_pipelines.drift.retraining_step import WatchSettings, run

    return run(
        WatchSettings(
            source=source,
            billing_project=billing_project,
            task=task,
            tokenizer=tokenizer,
            model=model,
            registry=registry,
            model_name=model_name,
            min_champion_age_days=min_champion_age_days,
            start_from_champion=start_from_champion,
            retrain_on=retrain_on,
            drift_source=drift_source,
            drift_days=drift_days,
            source_fingerprint=source_fingerprint,
        ),
        drift_report=drift_report,
        drift=drift,
        outcome_uri=outcome_uri,
        advanced=advanced,
    )
