"""The KFP interface of `prepare_data`."""

from kfp import dsl
from kfp.dsl import HTML, Artifact, Dataset, Input, Metrics, Output

from gpu_pipelines.component_interface.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def prepare_data(
    dataset: Output[Dataset],
    report: Output[HTML],
    statistics: Output[Metrics],
    data: Input[Artifact] = None,
    source: str = "sample:digits",
    test_source: str = "",
    source_format: str = "auto",
    delimiter: str = "",
    encoding: str = "auto",
    row_filter: str = "",
    billing_project: str = "",
    task: str = "image_classification",
    image_column: str = "image",
    image_root: str = "",
    label_column: str = "label",
    missing_labels: str = "auto",
    label_conflicts: str = "keep",
    text_column: str = "text",
    text_pair_column: str = "",
    feature_columns: str = "",
    image_size: int = 0,
    image_processor: str = "",
    color_mode: str = "auto",
    image_storage: str = "auto",
    tokenizer: str = "train",
    vocabulary_size: int = 0,
    sequence_length: int = 0,
    packing: bool = True,
    val_fraction: float = 0.1,
    test_fraction: float = 0.1,
    split_seed: int = 0,
    stratify: bool = False,
    remove_duplicates: bool = True,
    near_duplicates: float = 0.0,
    max_rejected: str = "10%",
    shard_megabytes: int = 0,
    ray_address: str = "",
    slice_by: str = "",
    group_by: str = "",
    source_fingerprint: str = "",
    test_source_fingerprint: str = "",
    advanced: dict = {},  # noqa: B006 (KFP takes the default from here)
) -> None:
    """Reads a data set, checks every row, and writes train, val and test splits that can be mapped into memory.

    Args:
        data: Data to read instead of source, written by an earlier step or named by an importer: a file or folder of
            any kind that source may name, or a BigQuery table as Google's components output it. Give no source then.
            The model is named after the file, the folder or the table.
        source: A file, a folder or a pattern such as data/*.jsonl.gz, on this machine or in Cloud Storage (gs://…).
            Images: a folder with one sub-folder per class, tables with a column of image paths or bytes and a column of
            labels, or tar shards in WebDataset's layout. Texts: tables, for causal_lm also text with blank lines
            between the documents. A table in BigQuery, bq://PROJECT.DATASET.TABLE, or a file with a query for it,
            NAME.sql. A data set of the Hugging Face hub, hf://OWNER/NAME, where datasets is installed. Or a sample:
            sample:digits, the UCI handwritten digits; sample:several_digits for multi_label_classification;
            sample:diabetes for regression; sample:docstrings for text_classification, sample:manual for
            token_classification, sample:documentation for causal_lm and sample:explanations for preference, from Python
            itself.
        test_source: Another source of the same kind, whose rows alone are the test split, the same for every version
            of a model; test_fraction is then not used. Rows of source that are in it too are left out and counted.
            Empty to take the test split from source.
        source_format: csv, jsonl, parquet, arrow, text, tar, images, or auto to recognise it by the suffix, and by the
            content if there is none. gzip, Zstandard, bzip2, xz and zip archives of one file are recognised by the
            content.
        delimiter: For CSV, the character between two fields, such as ; or tab. Empty for tabs in .tsv and .tab, else
            for whichever of comma, semicolon, tab and bar splits the header into the columns.
        encoding: For CSV, JSON lines and text, the encoding, such as latin-1 or cp1252. auto is UTF-8, or what a byte
            order mark says (UTF-16, UTF-32).
        row_filter: For a table in BigQuery, the rows to read: the WHERE clause of a query, without aggregates and
            sub-queries, such as lang = 'en'; empty for all.
        billing_project: Project that pays for reading from BigQuery; empty for the project of the environment
            (GOOGLE_CLOUD_PROJECT) or of the credentials.
        task: What the rows are for: image_classification, text_classification, multi_label_classification, regression,
            token_classification, causal_lm, preference, or a class of your own, package.module:Class.
        image_column: For a table, the column with the image: a path relative to the table, gs://…, or its bytes.
        image_root: For a table, the folder or gs://… that paths of images are relative to; all images must be in it.
            Empty for the folder of the table; images on this machine must then be in the folder of the source.
        label_column: For a table, the column with the class name. For multi_label_classification, the column with all
            classes of a row, or one column of 0 and 1 for each class, separated by commas; for regression, the column
            with the number, or several; for token_classification, the column with the tags.
        missing_labels: Labels of a table that stand for a missing label, separated by commas; such rows are rejected.
            auto for those that pandas treats as missing (NaN, NULL, N/A, None and the like); empty if these are all
            names of classes.
        label_conflicts: What happens to records with the same content in several classes: keep leaves them in, all in
            one split, and counts them in the report; reject rejects all of them, because no class is certain.
        text_column: For a table, the column with the text, or with a list of chat messages. If causal_lm finds no such
            column, it reads prompt and completion, messages, conversations, or instruction and output.
        text_pair_column: For text_classification, and regression from texts, the column of a table with the second text
            of each pair, such as the hypothesis for the premise in text_column. Empty for single texts.
        feature_columns: For regression from numbers, the columns of a table to learn from, separated by commas. Empty
            for the image or the text of a table that has one, else for all columns but label_column, slice_by and
            group_by.
        image_size: Pixels per side that every image is resized to, 8 to 1024. 0 takes the size of image_processor, else
            chooses by the images, at most 224.
        image_processor: A pretrained model whose preprocessor_config.json says how images are resized and cut if
            image_size is 0: a directory in Hugging Face layout, local or gs://, or a hub id. The pipelines give model
            if it is pretrained. Empty to choose by the images.
        color_mode: L for grey, RGB for colour, auto for grey if the images are.
        image_storage: pixels keeps images as they are trained on; compressed keeps their files, which are decoded while
            they are read, with the same results; auto takes compressed if pixels would need more than 50 GB.
        tokenizer: For texts, a local directory in Hugging Face layout, a hub id, or train for a byte-level BPE made
            from the training split. In place of train, the pipelines give the tokenizer of model if that is pretrained,
            else the champion's.
        vocabulary_size: Tokens of the tokenizer to train, 259 to 1,000,000; 0 chooses by the size of the data, 512 to
            8,000.
        sequence_length: Tokens of a row, 8 to 131,072; 0 is 128 for text_classification and 512 for causal_lm and
            preference.
        packing: For causal_lm, whether a row may hold several documents; attention never goes from one to another.
        val_fraction: Share of the rows that rank the checkpoints, between 0 and 1.
        test_fraction: Share of the rows that only the best checkpoint is scored on, between 0 and 1; not used if there
            is a test_source.
        split_seed: Seed of the splits. Do not change it for retraining, or the new model is tested on rows that the
            champion was trained on.
        stratify: Whether each class has its shares of val and test exactly, not only on average. Rows may then change
            splits when the data grows.
        remove_duplicates: Whether to leave out a record with the same content and label as an earlier one.
        near_duplicates: For texts, the Jaccard similarity of words to an earlier text from which a text is left out,
            0.3 to less than 1, such as 0.8; 0 looks for none. near_duplicates.jsonl of the dataset lists those left
            out.
        max_rejected: Rejected rows above which the step fails: a share such as 5%, a number, or unlimited.
        shard_megabytes: Size of the files of the dataset in MiB, 1 to 1,024; 0 for 64, and at most 8,192 rows.
        ray_address: A Ray cluster that prepares the data if one machine is not enough: HOST:PORT of its head if the
            step runs on a machine of the cluster, else ray://HOST:10001. All machines need the same gpu-pipelines, and
            the step needs the cluster's token in RAY_AUTH_TOKEN. Empty for this machine, or for the machines of
            --data-nodes.
        slice_by: For a table, a column whose values are kept with the rows, so that the evaluation can score each value
            separately; it is not trained on. Not for causal_lm, whose rows hold several records. Empty for none.
        group_by: For a table, a column whose equal values stay in one split, such as the patient, the user or the
            prompt of several rows. Otherwise test rows of a patient in the training are easier than those of a new one.
            Empty to split by the content of the rows alone. A row without a value is split by its content.
        source_fingerprint: Fingerprint of the source from check_request, so that a cache gives no result of other
            data: the name of a source stays when its files change. Empty if nothing is cached.
        test_source_fingerprint: The same for the test source.
        advanced: Parameters by name, from check_request; they win over those above.

    Returns:
        dataset: The splits as Arrow files, dataset.json, the tokenizer of texts, and rejected.jsonl with each
            rejected row and the reason.
        report: Rows, duplicates, rejected rows by reason, class balance or lengths, and examples.
        statistics: Numbers of rows read, kept, left out as duplicates and rejected, of classes, and of rows in each
            split.
    """
    from gpu_pipelines.data.step import PrepareSettings, run

    run(
        PrepareSettings(
            source=source,
            test_source=test_source,
            source_format=source_format,
            delimiter=delimiter,
            encoding=encoding,
            row_filter=row_filter,
            billing_project=billing_project,
            task=task,
            image_column=image_column,
            image_root=image_root,
            label_column=label_column,
            missing_labels=missing_labels,
            label_conflicts=label_conflicts,
            text_column=text_column,
            text_pair_column=text_pair_column,
            feature_columns=feature_columns,
            image_size=image_size,
            image_processor=image_processor,
            color_mode=color_mode,
            image_storage=image_storage,
            tokenizer=tokenizer,
            vocabulary_size=vocabulary_size,
            sequence_length=sequence_length,
            packing=packing,
            val_fraction=val_fraction,
            test_fraction=test_fraction,
            split_seed=split_seed,
            stratify=stratify,
            remove_duplicates=remove_duplicates,
            near_duplicates=near_duplicates,
            max_rejected=max_rejected,
            shard_megabytes=shard_megabytes,
            ray_address=ray_address,
            slice_by=slice_by,
            group_by=group_by,
        ),
        dataset=dataset,
        report=report,
        statistics=statistics,
        data=data,
        source_fingerprint=source_fingerprint,
        test_source_fingerprint=test_source_fingerprint,
        advanced=advanced,
    )
