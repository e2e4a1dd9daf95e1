"""The KFP interface of `begin_study`."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Input

from gpu_pipelines.component_interface.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def begin_study(
    dataset: Input[Dataset],
    model: str = "convnext-micro",
    recipe: str = "",
    epochs: float = 0.0,
    max_steps: int = 0,
    learning_rate: float = 0.0,
    learning_rate_schedule: str = "cosine",
    optimizer: str = "adamw",
    momentum: float = 0.9,
    weight_decay: float = -1.0,
    warmup_steps: int = 30,
    gradient_clip: float = 1.0,
    global_batch_size: int = 64,
    micro_batch_size: int = 0,
    precision: str = "auto",
    fp8: bool = False,
    parallelism: str = "auto",
    activation_checkpointing: bool = False,
    recompute: str = "layers",
    attention: str = "auto",
    compile_model: str = "auto",
    profile_steps: str = "",
    lora_rank: int = 0,
    lora_alpha: float = 16.0,
    lora_targets: str = "",
    quantize_base: str = "",
    augmentation: str = "",
    mixup_alpha: float = 0.0,
    cutmix_alpha: float = 0.0,
    label_smoothing: float = 0.0,
    preference_loss: str = "sigmoid",
    beta: float = 0.1,
    ema_decay: float = 0.0,
    freeze: str = "",
    layer_decay: float = 0.0,
    checkpoint_every_steps: int = 0,
    keep_last: int = 0,
    keep_every_steps: int = 0,
    early_stopping_patience: int = 0,
    idle_stop: float = 30.0,
    resume_from_step: int = 0,
    streaming: str = "auto",
    cache_gb: float = 0.0,
    shuffle_shards: int = 0,
    seed: int = 0,
    space: str = "",
    trials: int = 40,
    parallel_trials: int = 1,
    budget: float = 0.0,
    longer: float = 1.0,
    sampler: str = "tpe",
    reduction: int = 2,
    first_rung: float = 0.6,
    study_seed: int = 0,
    dollars_per_hour: float = 0.0,
    processes: int = 0,
    checkpoint_uri: str = "",
    advanced: dict = {},  # noqa: B006 (KFP takes the default from here)
) -> NamedTuple(  # type: ignore[valid-type]
    "Outputs",
    [
        ("study", str),
        ("parameters", list),
        ("algorithm", str),
        ("early_stopping", dict),
        ("trials", int),
        ("parallel_trials", int),
        ("trains_longer", bool),
    ],
):
    """Checks the request for a search whose trials a service starts, and writes it where all trials read it.

    Args:
        dataset: Made by prepare_data. Its test split is not used.
        model: Architecture to train from scratch (image_classification: convnext-micro, convnext-tiny, vit-micro,
            vit-base), a directory with a config.json alone to train that architecture from scratch, or pretrained
            weights to start from: a directory in Hugging Face layout, local or gs://, or a hub id such as
            organisation/name, with @REVISION for another than the newest.
        recipe: A recipe of your own as package.module:ClassName; empty for the recipe of the dataset's task.
        epochs: Passes over the training rows; not used if max_steps is given. 0 for the task's default: 15 from
            scratch, 1 to 10 for pretrained weights.
        max_steps: Optimizer steps; 0 to go by epochs.
        learning_rate: Peak learning rate, reached after the warm-up. 0 for the task's default: 0.004 from scratch,
            0.00002 or 0.00005 for pretrained weights (0.0000005 for preferences), more for adapters.
        learning_rate_schedule: cosine or linear: how the learning rate falls to 0; constant: it stays.
        optimizer: adamw, adamw_8bit (keeps its moments in eight bits), sgd (with momentum), adafactor (keeps a row and
            a column of each matrix), or muon (for the matrices of hidden layers, adamw for the rest).
        momentum: For sgd and muon: at least 0 and less than 1.
        weight_decay: Decoupled weight decay, on matrices only. -1 for the task's default: 0.05 from scratch, 0 or 0.01
            for pretrained weights.
        warmup_steps: Steps of linear warm-up, at most a tenth of all steps.
        gradient_clip: Largest norm of the gradient; 0 does not clip.
        global_batch_size: Rows per optimizer step, over all processes of all nodes; a multiple of the number of
            processes. It is halved while it is more than the training rows.
        micro_batch_size: Rows that one process takes through the model at once. It accumulates the gradients of its
            share of the global batch over such micro-batches. 0 takes the whole share at once.
        precision: bf16, fp16 (with loss scaling) or fp32; auto takes bf16 if the GPU has it, else fp16, and fp32 on
            CPUs.
        fp8: Multiply the matrices of the repeated layers in fp8 (torchao), on H100 and later GPUs; precision applies to
            everything else.
        parallelism: ddp (every process holds the model), fsdp (weights, gradients and optimizer are sharded over all
            processes), hsdp (sharded over the processes of each node); auto takes the first of ddp, hsdp and fsdp that
            fits.
        activation_checkpointing: Recompute the activations of each layer in the backward pass, to save memory.
        recompute: What activation_checkpointing recomputes: layers (all of each), or selective (all but attention and
            every second matrix multiplication, whose outputs are kept).
        attention: Attention of transformers models: flash_attention_2 (of the package flash-attn), sdpa, flex or eager;
            auto takes a kernel for packed documents if the GPU has one, else sdpa.
        compile_model: on or off: whether to compile the layers with torch.compile; auto does so on GPUs for images and
            causal_lm, if the training is long enough to be worth it.
        profile_steps: Steps that rank 0 profiles, such as 10-12, at most 100. It writes a Chrome trace, and on GPUs a
            memory snapshot, to profile/ beside the checkpoints. Empty for none.
        lora_rank: Rank of LoRA adapters; only the adapters are then trained. 0 trains all weights.
        lora_alpha: Scale of the adapters: their output is multiplied by lora_alpha / lora_rank.
        lora_targets: Layers that get adapters: all-linear for every linear layer but the head, or the ends of their
            names with commas between them, such as q_proj,v_proj. Empty for those that peft names for the architecture,
            mostly queries and values.
        quantize_base: nf4 holds the frozen linear layers in four bits (QLoRA); empty holds them in 16 bits if the
            training computes in 16 bits.
        augmentation: Random changes of each image in each epoch: flip (left and right), crop-flip (also takes a part of
            the image), randaugment (also two changes of colour or shape); empty for none.
        mixup_alpha: Mixes images in pairs, and their classes with them. The share is drawn from the beta distribution
            with this parameter, such as 0.2; 0 mixes none.
        cutmix_alpha: As mixup_alpha, but pastes a rectangle of the other image of the pair, such as 1. With both, each
            pair gets one of them.
        label_smoothing: Share of the target that is spread over all classes, tags or tokens, such as 0.1; less than 1.
            For preference, the share of pairs that may be the wrong way round, less than 0.5. Not used in the loss on
            val.
        preference_loss: Loss for preferences. Pairs: sigmoid (DPO), ipo (IPO) or orpo (ORPO, which needs no reference).
            Completions judged one by one: kto (KTO).
        beta: For preferences, the penalty for moving away from the model that the training began with; a larger value
            keeps closer to it. For orpo, the weight of the odds ratio beside the likelihood.
        ema_decay: Decay of an exponential moving average of the weights, such as 0.9999, and less in the first steps.
            The average is evaluated beside the weights. 0 keeps none.
        freeze: Weights that are not trained, as patterns of their names separated by commas, such as
            embeddings.*,encoder.layer.[0-5].*; empty for none.
        layer_decay: Learning rate of each layer as a share of that of the layer above it, such as 0.75. The head has
            learning_rate. 0 for the same rate everywhere.
        checkpoint_every_steps: Optimizer steps between two checkpoints; 0 for about eight in all.
        keep_last: Number of newest checkpoints to keep, besides the one with the lowest loss on val; 0 keeps all.
        keep_every_steps: Also keep the checkpoints at multiples of this step; 0 for none.
        early_stopping_patience: Stop the training after this many checkpoints in a row without a lower loss on val; 0
            never.
        idle_stop: Minutes after which a training is stopped, with a checkpoint, if its GPUs, or its processes on CPUs,
            do nothing; the step then fails. 0 never.
        resume_from_step: Step of an earlier checkpoint to continue from, with these parameters; later checkpoints are
            set aside. 0 continues from the newest.
        streaming: on: fetch each shard of a dataset in object storage into a cache when its rows are due; off: copy the
            whole dataset to each machine before the training. auto is on if the dataset is larger than half of the free
            disk. Streamed rows come in another order, the same wherever the dataset is.
        cache_gb: Most GB (10^9 bytes) that streamed shards may take on each machine's disk; 0 for half of the free
            space.
        shuffle_shards: Shards whose rows are shuffled together if rows are streamed; 0 for a 32nd of all, at most 64.
        seed: Seed of the initial weights, the order of the rows, dropout, and augmentation.
        space: The search space: YAML text, or the path of such a file, local or gs://. docs/tuning.md describes it.
        trials: Number of trials.
        parallel_trials: Number of trials at the same time. They share the GPUs, or the CPUs, of the machine.
        budget: Most that the search may cost, in US dollars, by the price of its machine; 0 for no limit.
        longer: Train once more with the best parameters, for this many times the steps; 1 keeps the trial itself.
        sampler: How values are chosen: tpe, by the losses so far, or random.
        reduction: One trial in this many continues past each rung; 1 trains all to the end.
        first_rung: Share of its steps before which no trial ends early. Less is cheaper, and misleads if the learning
            rate falls until the end.
        study_seed: Seed of the choice of values; the trainings use seed.
        dollars_per_hour: Price of the machine of the search, US dollars per hour, by which the budget is counted. A
            pipeline for an accelerator has its list price here.
        processes: Processes that train each trial, for what its global batch can be; 0 if that is not known.
        checkpoint_uri: Directory of the study, local or gs://, with nothing in it yet.
        advanced: Parameters by name, from check_request; they win over those above.

    Returns:
        study: Directory of the study.
        parameters: The search space as the parameters of a StudySpec of Vertex AI.
        algorithm: Algorithm of a StudySpec, which chooses the values.
        early_stopping: Rule by which trials end early, a MedianAutomatedStoppingSpec; empty for none.
        trials: Number of trials.
        parallel_trials: Trials at the same time.
        trains_longer: Whether to train once more with the best parameters.
    """
    from gpu_pipelines.tuning.service.step import TuningSettings, run_begin

    return run_begin(
        TuningSettings(
            model=model,
            recipe=recipe,
            epochs=epochs,
            max_steps=max_steps,
            learning_rate=learning_rate,
            learning_rate_schedule=learning_rate_schedule,
            optimizer=optimizer,
            momentum=momentum,
            weight_decay=weight_decay,
            warmup_steps=warmup_steps,
            gradient_clip=gradient_clip,
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            precision=precision,
            fp8=fp8,
            parallelism=parallelism,
            activation_checkpointing=activation_checkpointing,
            recompute=recompute,
            attention=attention,
            compile_model=compile_model,
            profile_steps=profile_steps,
            lora_rank=lora_rank,
            lora_alpha=lora_alpha,
            lora_targets=lora_targets,
            quantize_base=quantize_base,
            augmentation=augmentation,
            mixup_alpha=mixup_alpha,
            cutmix_alpha=cutmix_alpha,
            label_smoothing=label_smoothing,
            preference_loss=preference_loss,
            beta=beta,
            ema_decay=ema_decay,
            freeze=freeze,
            layer_decay=layer_decay,
            checkpoint_every_steps=checkpoint_every_steps,
            keep_last=keep_last,
            keep_every_steps=keep_every_steps,
            early_stopping_patience=early_stopping_patience,
            idle_stop=idle_stop,
            resume_from_step=resume_from_step,
            streaming=streaming,
            cache_gb=cache_gb,
            shuffle_shards=shuffle_shards,
            seed=seed,
            space=space,
            trials=trials,
            parallel_trials=parallel_trials,
            budget=budget,
            longer=longer,
            sampler=sampler,
            reduction=reduction,
            first_rung=first_rung,
            study_seed=study_seed,
            dollars_per_hour=dollars_per_hour,
        ),
        dataset=dataset,
        processes=processes,
        checkpoint_uri=checkpoint_uri,
        advanced=advanced,
    )
