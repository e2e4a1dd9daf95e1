"""Pipelines of components that need no image; KFP reads annotations, so that they are none of texts."""

from google_cloud_pipeline_components.types.artifact_types import VertexModel
from google_cloud_pipeline_components.v1.batch_predict_job import ModelBatchPredictOp
from google_cloud_pipeline_components.v1.dataset import ImageDatasetCreateOp
from kfp import dsl

from gpu_pipelines.components import prepare_data


@dsl.container_component
def shell(text: str, made: dsl.OutputPath(str)):
    return dsl.ContainerSpec("any", ["sh", "-c"], ['echo "$0"; printf %s "$0" > "$1"; [ "$0" != bad ]', text, made])


@dsl.container_component
def words(first: str, second: str = "none"):
    return dsl.ContainerSpec(
        "any", ["echo"], [dsl.ConcatPlaceholder(["<", first, ">"]), dsl.IfPresentPlaceholder("second", [second])]
    )


@dsl.container_component
def status(told: dsl.PipelineTaskFinalStatus):
    return dsl.ContainerSpec("any", ["echo", "status"], [told])


@dsl.pipeline(name="everything")
def everything(text: str = "a", items: list = ["x", "y"], number: int = 3):  # noqa: B006
    last = status()
    with dsl.ExitHandler(last, name="guarded"):
        one = shell(text=text)
        with dsl.If(one.outputs["made"] == "a"):
            taken = shell(text="taken")
        with dsl.Elif(number > 2):
            shell(text="elif")
        with dsl.Else():
            shell(text="else")
        with dsl.ParallelFor(items) as item:
            shell(text=item)
        with dsl.ParallelFor([{"a": "in-a"}, {"a": "in-b"}]) as item:
            shell(text=item.a)
        words(first="w", second="s")
        words(first="after").after(taken)


@dsl.pipeline(name="one")
def one(text: str = "a"):
    shell(text=text)


@dsl.container_component
def strange():
    return dsl.ContainerSpec("gcr.io/some/image", ["a-program-of-the-image"])


@dsl.container_component
def entry():
    return dsl.ContainerSpec("gcr.io/some/image")


@dsl.pipeline(name="no")
def no():
    strange()
    entry()
    ImageDatasetCreateOp(display_name="photos", project="example-project")


@dsl.container_component
def both(first: str, second: str, third: str = "c"):
    return dsl.ContainerSpec("any", ["sh", "-c"], ['echo "$0 and $1"; echo "$2"; echo none', first, second, third])


@dsl.pipeline(name="inner")
def inner(text: str) -> str:
    return shell(text=text).outputs["made"]


@dsl.pipeline(name="twice")
def twice():
    both(first=inner(text="a").output, second=inner(text="b").output)


@dsl.pipeline(name="scores")
def scores(resource_name: str) -> dsl.Artifact:
    held = dsl.importer(artifact_uri="", artifact_class=VertexModel, metadata={"resourceName": resource_name})
    done = ModelBatchPredictOp(
        job_display_name="scores",
        model=held.output,
        gcs_source_uris=["gs://example-bucket/in/*.txt"],
        gcs_destination_output_uri_prefix="gs://example-bucket/out",
        machine_type="n1-standard-2",
    )
    return done.outputs["gcs_output_directory"]


@dsl.pipeline(name="prepared")
def prepared(source: str):
    prepare_data(source=source, task="text_classification", sequence_length=32, vocabulary_size=300)
