"""Training programs of PyTorch's trainers for recorded_programs.py: transformers, accelerate, TRL, Lightning and torchtitan, on Gloo ranks.

They need the packages of recorded_programs.txt. A trainer runs its own loop, so these record with run.recording(model, optimizer), whose step() its callback calls.
"""
import tempfile

import torchtitan_program
from training_programs import SIZE, adamw, blocks_and_model, fsdp2, loss_of, program, tokens_of, train


def llama():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=SIZE.width, intermediate_size=3 * SIZE.width, num_hidden_layers=SIZE.layers, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=SIZE.vocabulary, max_position_embeddings=SIZE.seq, use_cache=False))


def loss_of_llama(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def samples(run, batch=SIZE.batch):
    """As many samples as all steps of all ranks take."""
    import torch

    generator = torch.Generator().manual_seed(7)
    return [{"input_ids": row, "labels": row} for row in torch.randint(0, SIZE.vocabulary, (run.steps * batch * run.world, SIZE.seq), generator=generator)]


def arguments(kind, run, folder, **more):
    return kind(output_dir=folder, per_device_train_batch_size=SIZE.batch, max_steps=run.steps, use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
                disable_tqdm=True, dataloader_pin_memory=False, seed=0, ddp_backend="gloo", **more)


def with_recording(run, trainer):
    """Trains with a callback that records. The loss of a step is that of its last microbatch."""
    from transformers import TrainerCallback

    compute, last = trainer.compute_loss, []

    def compute_loss(*args, **kwargs):
        loss = compute(*args, **kwargs)
        last[:] = [(loss[0] if isinstance(loss, tuple) else loss).detach()]
        return loss

    trainer.compute_loss = compute_loss

    class Recording(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            # The callback's model is the one inside of the wrapper.
            self.context = run.recording(trainer.model_wrapped, kwargs["optimizer"])
            self.recording = self.context.__enter__()

        def on_step_end(self, args, state, control, **kwargs):
            self.recording.step(last[0])

        def on_train_end(self, args, state, control, **kwargs):
            self.context.__exit__(None, None, None)

    trainer.add_callback(Recording())
    trainer.train()


@program("checkpoint-layers", packages=("transformers",))
def checkpoint_layers(run):
    """transformers' GradientCheckpointingLayer."""
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    train(run, fsdp2(model, model.model.layers), loss=loss_of_llama)


@program("trainer", packages=("transformers", "accelerate"))
def trainer(run):
    """transformers' Trainer, which wraps the model with DDP; two microbatches."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        settings = arguments(TrainingArguments, run, folder, gradient_accumulation_steps=2)
        with_recording(run, Trainer(model=llama(), args=settings, train_dataset=samples(run, 2 * SIZE.batch)))


@program("trl", packages=("transformers", "accelerate", "trl", "datasets"))
def trl(run):
    """TRL's SFTTrainer on tokens."""
    import pyarrow
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer
    from transformers import PreTrainedTokenizerFast
    from tokenizers import Tokenizer, models

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, "<unk>")), pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    # With a fingerprint, so that datasets does not pickle the rows for one.
    rows = Dataset(pyarrow.table({"input_ids": [row["input_ids"].tolist() for row in samples(run)]}), fingerprint="tokens")
    with tempfile.TemporaryDirectory() as folder:
        settings = arguments(SFTConfig, run, folder, max_length=SIZE.seq, gradient_checkpointing=False, bf16=False)
        with_recording(run, SFTTrainer(model=llama(), args=settings, train_dataset=rows, processing_class=tokenizer))


@program("accelerate", packages=("accelerate",))
def accelerate(run):
    """accelerate's loop with accumulate(), whose prepare() wraps the model with DDP."""
    from accelerate import Accelerator
    from training_programs import blocks_and_model

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    _, model = blocks_and_model()
    model, optimizer = accelerator.prepare(model, adamw(model))

    def step():
        for _ in range(2):
            with accelerator.accumulate(model):
                loss = loss_of(model, tokens_of(run, SIZE.batch // 2))
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        return loss

    run.train(model, optimizer, step)


@program("accelerate-fsdp2", packages=("accelerate", "transformers"))
def accelerate_fsdp2(run):
    """Makes what accelerate's FSDP2 plugin makes of a model of transformers."""
    from types import SimpleNamespace

    import torch
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
                                            cpu_ram_efficient_loading=False)
    state = SimpleNamespace(fsdp_plugin=plugin)
    accelerator = SimpleNamespace(state=state, mixed_precision="no", is_main_process=run.rank == 0, device=torch.device("cpu"))
    train(run, fsdp2_prepare_model(accelerator, llama()), loss=loss_of_llama)


@program("lightning", packages=("lightning",))
def lightning(run):
    """Lightning's Trainer: the optimizer gets forward and backward as a closure."""
    import torch
    from lightning.pytorch import LightningModule, Trainer, callbacks
    from lightning.pytorch.strategies import DDPStrategy
    from training_programs import blocks_and_model

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = blocks_and_model()[1]

        def training_step(self, batch, index):
            return loss_of(self.model, batch["input_ids"])

        def configure_optimizers(self):
            return adamw(self)

    class Recording(callbacks.Callback):
        def on_train_start(self, trainer, module):
            self.context = run.recording(trainer.strategy.model, trainer.optimizers[0])
            self.recording = self.context.__enter__()

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            self.recording.step(outputs["loss"])

        def on_train_end(self, trainer, module):
            self.context.__exit__(None, None, None)

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(accelerator="cpu", devices=run.world, strategy=DDPStrategy(process_group_backend="gloo", cluster_environment=run.cluster()), max_steps=run.steps,
                          logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[Recording()], default_root_dir=folder)
        trainer.fit(Module(), torch.utils.data.DataLoader(samples(run), batch_size=SIZE.batch))


def titan(run, **row):
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    torchtitan_program.importable()
    torch.manual_seed(0)
    row = {**torchtitan_program.DEFAULT, "layers": SIZE.layers, "world": run.world, "batch": SIZE.batch, "seq": SIZE.seq, **row}
    model, step_of = torchtitan_program.make(row)
    torchtitan_program.shard(model, row, init_device_mesh("cpu", (run.world,), mesh_dim_names=("dp",)), row["dtypes"])
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device("cpu"))
    optimizer = adamw(model, foreach=False)

    def step():
        tokens = tokens_of(run)
        loss = step_of(tokens, tokens)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run.train(model, optimizer, step)


@program("torchtitan", packages=("torchtitan",))
def torchtitan(run):
    """torchtitan's Llama with its units, sharded and checkpointed by its own functions."""
    titan(run, model="llama-small", checkpoint="all", dtypes=None)


@program("torchtitan-selective", packages=("torchtitan",))
def torchtitan_selective(run):
    """torchtitan's Qwen3 in bf16 under its selective checkpoints."""
    titan(run, model="qwen3-small", checkpoint="selective", dtypes=("bfloat16", "float32"))


@program("adamw-8bit", packages=("torchao",))
def adamw_8bit(run):
    """torchao's AdamW under FSDP2, which keeps its values in 8 bits with a scale for every 256."""
    from torchao.optim import AdamW8bit

    blocks, model = blocks_and_model()
    fsdp2(model, blocks)
    train(run, model, AdamW8bit(model.parameters(), lr=1e-3))
