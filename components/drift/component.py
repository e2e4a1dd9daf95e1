"""The KFP interface of `check_for_drift`."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Artifact, Dataset, Input, Metrics, Output

from gpu_pipelines.component_interface.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def check_for_drift(
    findings: Output[Artifact],
    report: Output[HTML],
    metrics: Output[Metrics],
    dataset: Input[Dataset] = None,
    source: str = "sample:digits",
    registry: str = "./registry",
    model_name: str = "",
    model_version: str = "champion",
    source_format: str = "auto",
    delimiter: str = "",
    encoding: str = "auto",
    row_filter: str = "",
    billing_project: str = "",
    image_column: str = "image",
    image_root: str = "",
    text_column: str = "text",
    text_pair_column: str = "",
    days: float = 0.0,
    max_rows: int = 5000,
    min_rows: int = 100,
    level: float = 0.01,
    least_effect: float = 0.1,
    advanced: dict = {},  # noqa: B006 (KFP takes the default from here)
) -> NamedTuple("Outputs", [("Output", bool), ("reason", str)]):  # type: ignore[valid-type]
    """Compares current rows with the data that a registered model was trained on, and says whether they have drifted.

    Args:
        dataset: What the model was trained on. Needed only for a version without a reference_profile.npz, which
            versions registered by older releases do not have.
        source: The current rows, without labels: everything that predict_batch reads. Or logged requests, which are
            recognised by the column request_payload: the table of a Vertex AI endpoint's request-response logging,
            bq://PROJECT.DATASET.TABLE, or the folder or gs://… that gpu-pipelines serve --log-requests writes to.
        registry: Directory of the model registry, vertex://PROJECT/REGION for Vertex AI Model Registry, vertex:// alone
            for the registry of the job's own project and region, or mlflow:https://HOST for that of an MLflow server.
        model_name: Name of the model in the registry; empty for the only one that is there.
        model_version: Alias or number of the version to compare with, by its training data.
        source_format: As for prepare_data.
        delimiter: As for prepare_data.
        encoding: As for prepare_data.
        row_filter: As for prepare_data.
        billing_project: As for prepare_data.
        image_column: As for predict_batch.
        image_root: As for prepare_data.
        text_column: As for predict_batch.
        text_pair_column: As for predict_batch.
        days: For logged requests, the number of last days to read; 0 for all.
        max_rows: Most rows to test; of more, those with the smallest hashes. The first 2,000 of them are predicted.
        min_rows: Fewest rows to judge by; with fewer, the check says nothing.
        level: Share of checks that may raise a false alarm, over all tests of a check together.
        least_effect: Smallest effect that counts as drift, however certain it is: as the shift of a normal
            distribution, in standard deviations.
        advanced: Parameters by name, from the pipeline; they win over those above.

    Returns:
        findings: drift.json, with the p-value and the effect of everything that was tested.
        report: The same as a page, with the distributions then and now.
        metrics: The figures of the check, and the effect of everything that was tested.
        Output: True if something has drifted: a test says so after the correction for the number of tests, and the
            effect is at least least_effect. (KFP's local runner finds the condition of a branch only by this name.)
        reason: Why, in one line.
    """
    from gpu_pipelines.drift.step import DriftSettings, run

    return run(
        DriftSettings(
            source=source,
            registry=registry,
            model_name=model_name,
            model_version=model_version,
            source_format=source_format,
            delimiter=delimiter,
            encoding=encoding,
            row_filter=row_filter,
            billing_project=billing_project,
            image_column=image_column,
            image_root=image_root,
            text_column=text_column,
            text_pair_column=text_pair_column,
            days=days,
            max_rows=max_rows,
            min_rows=min_rows,
            level=level,
            least_effect=least_effect,
        ),
        findings=findings,
        report=report,
        metrics=metrics,
        dataset=dataset,
        advanced=advanced,
    )
