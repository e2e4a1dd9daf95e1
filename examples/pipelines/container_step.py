"""A container component between steps of this project: any program of any image.

gpu-pipelines run examples/pipelines/container_step.py                   # in a container, with docker or podman
gpu-pipelines run examples/pipelines/container_step.py --no-containers   # its command as a process of this machine
"""

from kfp import dsl
from kfp.dsl import Artifact, Output

from gpu_pipelines.components import accelerate, prepare_data, train_model

PROGRAM = r"""
awk -v n="$1" 'BEGIN {
  split("red green blue round square thin wide dark", w, " ")
  for (i = 0; i < n; i++) {
    label = i % 2 ? "even" : "odd"
    text = w[i % 8 + 1] " " w[int(i / 8) % 8 + 1] " " w[int(i / 64) % 8 + 1] " " label
    printf "{\"text\": \"%s\", \"label\": \"%s\"}\n", text, label
  }
}' > "$2"
echo "wrote $(wc -l < "$2") rows"
"""


@dsl.container_component
def make_rows(count: int, rows: Output[Artifact]):
    return dsl.ContainerSpec(image="busybox:1.36", command=["sh", "-c", PROGRAM, "make-rows"], args=[count, rows.path])


@dsl.pipeline(name="container-step")
def container_step(count: int = 300, steps: int = 6):
    made = make_rows(count=count)
    prepared = prepare_data(data=made.outputs["rows"], task="text_classification", sequence_length=16)
    accelerate(train_model(dataset=prepared.outputs["dataset"], model="bert-micro", max_steps=steps))
