"""The KFP interface of `predict_batch`."""

from kfp import dsl
from kfp.dsl import HTML, Dataset, Input, Metrics, Model, Output

from gpu_pipelines.component_interface.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def predict_batch(
    predictions: Output[Dataset],
    report: Output[HTML],
    statistics: Output[Metrics],
    model: Input[Model] = None,
    source: str = "sample:digits",
    output: str = "",
    output_format: str = "jsonl",
    key_column: str = "",
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
    top_k: int = 0,
    max_new_tokens: int = 0,
    rows_at_once: int = 0,
    rows_per_file: int = 1000000,
    max_rejected: str = "10%",
    ray_address: str = "",
    device: str = "auto",
    advanced: dict = {},  # noqa: B006 (KFP takes the default from here)
) -> None:
    """Predicts the rows of a source with a registered model, on one machine or with Ray on many.

    Args:
        model: A model to use instead of a registered version: best_checkpoint of evaluate_checkpoints, model of
            upload_model, or any model in Hugging Face layout that the prediction server serves.
        source: Rows to predict: everything that prepare_data reads, without labels. A file, a folder or a pattern, on
            this machine or in Cloud Storage (gs://…): images, at any depth of a folder; tables with a column of image
            paths or bytes, of texts, or the columns of numbers that the model was trained with; tar shards; for
            causal_lm also text. A table in BigQuery, bq://PROJECT.DATASET.TABLE, a file with a query for it, NAME.sql,
            a data set of the Hugging Face hub, hf://OWNER/NAME, or a sample.
        output: Where the predictions go: a folder, gs://…, or a table in BigQuery, bq://PROJECT.DATASET.TABLE, whose
            rows are replaced. {date} and {time} in it become the time at which the step begins, UTC, as in 20261122 and
            174205. Empty for the place of the output predictions.
        output_format: jsonl, a JSON object in each line with key, instance and prediction, as Vertex AI's batch
            prediction writes it, or parquet. A table in BigQuery has the columns of parquet.
        key_column: For a table, the column whose values are the keys of the predictions, in place of the instances.
            Empty for the place of each row in the source, such as rows.csv:17.
        registry: Directory of the model registry, vertex://PROJECT/REGION for Vertex AI Model Registry, vertex:// alone
            for the registry of the job's own project and region, or mlflow:https://HOST for that of an MLflow server.
        model_name: Name of the model in the registry; empty for the only one that is there. Not used with an input
            model.
        model_version: Alias or number of the version.
        source_format: As for prepare_data.
        delimiter: As for prepare_data.
        encoding: As for prepare_data.
        row_filter: As for prepare_data.
        billing_project: Project that pays for reading from and writing to BigQuery; as for prepare_data.
        image_column: As for prepare_data. Without such a column, b64 is read, as base64.
        image_root: As for prepare_data.
        text_column: For a table, the column with the text. If causal_lm finds no such column, it reads the column
            prompt.
        text_pair_column: For a table, and a model for pairs of texts, the column with the second text. Empty for
            text_pair.
        top_k: For classifiers, number of scores to write for each row, the greatest first; 0 for all.
        max_new_tokens: For causal_lm, most tokens to write for each prompt.
        rows_at_once: Rows that the model gets at once; 0 for 32 on a CPU and 128 on a GPU. Fewer if memory runs out.
        rows_per_file: Fewest rows of an output file, in steps of a few thousand.
        max_rejected: Rejected rows above which the step fails: a share such as 5%, a number, or unlimited.
        ray_address: A Ray cluster that predicts if one machine is not enough: HOST:PORT of its head if the step runs on
            a machine of the cluster, else ray://HOST:10001. All machines need the same gpu-pipelines, and a model in a
            place that all of them can read. Empty for this machine, one process for each GPU.
        device: gpu, cpu, or auto for GPUs if there are any. Give gpu for a Ray cluster that adds its GPUs later.
        advanced: Parameters by name, from the pipeline; they win over those above.

    Returns:
        predictions: Files of predictions in the order of the source, rejected.jsonl with the rows without a prediction
            and the reasons, and predictions.json, which is written last and names the model. If output is a table, only
            the latter two.
        report: How many rows were predicted and rejected, by reason and, for classifiers, by class.
        statistics: The same as figures.
    """
    from gpu_pipelines.prediction.step import PredictSettings, run

    run(
        PredictSettings(
            source=source,
            output=output,
            output_format=output_format,
            key_column=key_column,
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
            top_k=top_k,
            max_new_tokens=max_new_tokens,
            rows_at_once=rows_at_once,
            rows_per_file=rows_per_file,
            max_rejected=max_rejected,
            ray_address=ray_address,
            device=device,
        ),
        predictions=predictions,
        report=report,
        statistics=statistics,
        model=model,
        advanced=advanced,
    )
