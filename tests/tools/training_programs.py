"""Training programs of PyTorch on two or four Gloo ranks, for recorded_programs.py: what shards a model, what it runs under, and its optimizer.

Each is a function of a Run, which trains with run.train(model, optimizer, step). The model is that of recorded_memory.py: blocks of attention and
MLP between an embedding and a head. PROGRAMS has them by name.
"""
import argparse
import functools

import recorded_memory

PROGRAMS = {}
SIZE = argparse.Namespace(width=256, layers=4, vocabulary=2048, batch=4, seq=96)
FOUR = 4  # ranks of a mesh with two axes


def program(name, ranks=2, packages=()):
    """Adds a function as the program `name`. `packages`: modules that it needs from the script's environment."""

    def add(function):
        PROGRAMS[name] = function
        function.ranks, function.packages = ranks, packages
        return function

    return add


def blocks_and_model():
    model, _ = recorded_memory.make_model(SIZE)
    return list(model.layers), model


def adamw(model, **settings):
    import torch

    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, **settings)


def tokens_of(run, batch=SIZE.batch):
    import torch

    return torch.randint(0, SIZE.vocabulary, (batch, SIZE.seq), generator=run.generator)


def loss_of(model, tokens):
    from torch.nn import functional as F

    return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


def train(run, model, optimizer=None, loss=loss_of):
    """The usual loop, with new tokens in each step."""
    optimizer = optimizer or adamw(model)

    def step():
        value = loss(model, tokens_of(run))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value

    run.train(model, optimizer, step)


def fsdp2(model, blocks, **settings):
    from torch.distributed.fsdp import fully_shard

    for block in blocks:
        fully_shard(block, **settings)
    return fully_shard(model, **settings)


def fsdp1(model, **settings):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **settings)


def ddp(model, **settings):
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, **settings)


# --- Those of recorded_memory.py


for _case in ("fsdp2", "fsdp2-bf16", "fsdp2-checkpoint", "fsdp1", "fsdp1-bf16", "fsdp1-checkpoint", "ddp", "ddp-checkpoint"):

    @program(_case)
    def of_recorded_memory(run, case=_case):
        model = recorded_memory.shard(case, SIZE)
        train(run, model, adamw(model, fused=True))


# --- FSDP2


@program("fsdp2-unit-kinds")
def fsdp2_unit_kinds(run):
    """The embedding, a part of a block, two blocks as one unit, and the norm with the head."""
    from torch.distributed.fsdp import fully_shard

    blocks, model = blocks_and_model()
    fully_shard(model.embed)
    fully_shard(blocks[0].up)
    fully_shard(blocks[0])
    fully_shard(blocks[1])
    fully_shard(blocks[2:])
    fully_shard([model.norm, model.head], reshard_after_forward=False)
    train(run, fully_shard(model))


@program("fsdp2-kept")
def fsdp2_kept(run):
    blocks, model = blocks_and_model()
    train(run, fsdp2(model, blocks, reshard_after_forward=False))


@program("fsdp2-hybrid", FOUR)
def fsdp2_hybrid(run):
    from torch.distributed.device_mesh import init_device_mesh

    blocks, model = blocks_and_model()
    train(run, fsdp2(model, blocks, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))))


@program("fsdp2-offload")
def fsdp2_offload(run):
    from torch.distributed.fsdp import CPUOffloadPolicy

    blocks, model = blocks_and_model()
    train(run, fsdp2(model, blocks, offload_policy=CPUOffloadPolicy(pin_memory=False)))


@program("fsdp2-prefetch")
def fsdp2_prefetch(run):
    blocks, model = blocks_and_model()
    fsdp2(model, blocks)
    for unit, following in zip([model, *blocks], blocks):
        unit.set_modules_to_forward_prefetch([following])
    train(run, model)


@program("fsdp2-accumulate")
def fsdp2_accumulate(run):
    """Two microbatches; only the second reduces gradients. Gradients are clipped."""
    import torch

    blocks, model = blocks_and_model()
    fsdp2(model, blocks)
    optimizer = adamw(model)

    def step():
        for last in (False, True):
            model.set_requires_gradient_sync(last)
            loss = loss_of(model, tokens_of(run, SIZE.batch // 2)) / 2
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run.train(model, optimizer, step)


def closure_step(run, model, optimizer, calls=1):
    """A step that hands its forward and backward to the optimizer, which calls it `calls` times, as LBFGS does."""

    def step():
        tokens = tokens_of(run)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, tokens)
            loss.backward()
            return loss

        for _ in range(calls - 1):
            closure()
        return optimizer.step(closure)

    return step


@program("fsdp2-closure")
def fsdp2_closure(run):
    blocks, model = blocks_and_model()
    fsdp2(model, blocks)
    optimizer = adamw(model)
    run.train(model, optimizer, closure_step(run, model, optimizer))


@program("ddp-lbfgs")
def ddp_lbfgs(run):
    """LBFGS evaluates its closure twice for each step."""
    import torch

    _, model = blocks_and_model()
    model = ddp(model)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-2, max_iter=1, max_eval=2, history_size=2)
    run.train(model, optimizer, closure_step(run, model, optimizer))


@program("fsdp2-lora")
def fsdp2_lora(run):
    """Frozen weights with two small trained matrices beside each."""
    import torch
    from torch import nn

    class Adapted(nn.Module):
        def __init__(self, base, rank=8):
            super().__init__()
            self.base = base
            self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    blocks, model = blocks_and_model()
    torch.manual_seed(1)
    model.requires_grad_(False)
    for block in blocks:
        block.qkv, block.out = Adapted(block.qkv), Adapted(block.out)
    train(run, fsdp2(model, blocks))


# --- torch.compile


@program("fsdp2-compiled-blocks")
def fsdp2_compiled_blocks(run):
    blocks, model = blocks_and_model()
    for block in blocks:
        block.compile(backend="inductor")
    train(run, fsdp2(model, blocks))


@program("fsdp2-compiled-around")
def fsdp2_compiled_around(run):
    import torch

    blocks, model = blocks_and_model()
    train(run, torch.compile(fsdp2(model, blocks), backend="aot_eager"))


@program("ddp-compiled-around")
def ddp_compiled_around(run):
    import torch

    train(run, torch.compile(ddp(blocks_and_model()[1]), backend="aot_eager"))


@program("ddp-compiled-inside")
def ddp_compiled_inside(run):
    import torch

    train(run, ddp(torch.compile(blocks_and_model()[1], backend="aot_eager")))


# --- FSDP1


def fsdp1_by_blocks(run, **settings):
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    blocks, model = blocks_and_model()
    train(run, fsdp1(model, auto_wrap_policy=ModuleWrapPolicy({type(blocks[0])}), **settings))


@program("fsdp1-flat")
def fsdp1_flat(run):
    fsdp1_by_blocks(run, use_orig_params=False)


@program("fsdp1-grad-op")
def fsdp1_grad_op(run):
    from torch.distributed.fsdp import ShardingStrategy

    fsdp1_by_blocks(run, use_orig_params=True, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)


@program("fsdp1-no-shard")
def fsdp1_no_shard(run):
    from torch.distributed.fsdp import ShardingStrategy

    fsdp1_by_blocks(run, use_orig_params=True, sharding_strategy=ShardingStrategy.NO_SHARD)


@program("fsdp1-by-size")
def fsdp1_by_size(run):
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=200_000)
    train(run, fsdp1(blocks_and_model()[1], auto_wrap_policy=policy, forward_prefetch=True))


def accumulated(run, model, optimizer):
    """Two microbatches, the first one within no_sync()."""
    from contextlib import nullcontext

    def step():
        for last in (False, True):
            with nullcontext() if last else model.no_sync():
                loss = loss_of(model, tokens_of(run, SIZE.batch // 2)) / 2
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run.train(model, optimizer, step)


@program("fsdp1-no-sync")
def fsdp1_no_sync(run):
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    blocks, model = blocks_and_model()
    model = fsdp1(model, auto_wrap_policy=ModuleWrapPolicy({type(blocks[0])}), use_orig_params=True)
    accumulated(run, model, adamw(model))


# --- DDP


@program("ddp-static-graph")
def ddp_static_graph(run):
    train(run, ddp(blocks_and_model()[1], static_graph=True))


@program("ddp-buckets")
def ddp_buckets(run):
    train(run, ddp(blocks_and_model()[1], bucket_cap_mb=1, gradient_as_bucket_view=True))


@program("ddp-join")
def ddp_join(run):
    model = ddp(blocks_and_model()[1])
    with model.join():
        train(run, model)


@program("ddp-no-sync")
def ddp_no_sync(run):
    model = ddp(blocks_and_model()[1])
    accumulated(run, model, adamw(model))


@program("replicate")
def replicate(run):
    """The composable API, one unit for each block."""
    from torch.distributed._composable.replicate import replicate

    train(run, replicate(blocks_and_model()[1]))


# --- Checkpoints


@program("checkpoint-after")
def checkpoint_after(run):
    """checkpoint_wrapper around blocks that are sharded already."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

    blocks, model = blocks_and_model()
    fsdp2(model, blocks)
    apply_activation_checkpointing(model, check_fn=lambda module: any(module is block for block in blocks))
    train(run, model)


@program("checkpoint-calls")
def checkpoint_calls(run):
    """torch.utils.checkpoint around calls in forward: of a block, and of a function that runs another."""
    from torch.utils.checkpoint import checkpoint

    blocks, model = blocks_and_model()

    def forward(tokens):
        x = model.embed(tokens)
        for i, block in enumerate(model.layers):
            x = checkpoint(block, x, use_reentrant=False) if i % 2 else checkpoint(lambda x, block=block: block(x), x, use_reentrant=False)
        return model.head(model.norm(x))

    model.forward = forward
    train(run, fsdp2(model, blocks))


def selective_contexts():
    """Contexts of a checkpoint that keeps the results of matrix products."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    products = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    return create_selective_checkpoint_contexts(
        lambda context, op, *args, **kwargs: CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE)


@program("checkpoint-selective")
def checkpoint_selective(run):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    _, model = blocks_and_model()
    for i, block in enumerate(model.layers):
        model.layers[i] = checkpoint_wrapper(block, context_fn=selective_contexts)
    train(run, fsdp2(model, list(model.layers)))


# --- Other parallel dimensions


@program("tensor")
def tensor(run):
    """Tensor parallelism over both ranks, with nothing sharded by FSDP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    blocks, model = blocks_and_model()
    mesh = init_device_mesh("cpu", (run.world,), mesh_dim_names=("tensor",))
    for block in blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    run.same_data()
    train(run, model, adamw(model, foreach=False))  # parameters of two kinds


def of_mesh_programs(run, name):
    """A program of mesh_programs.py."""
    import mesh_programs
    import torch
    from torch.nn import functional as F

    model, data = mesh_programs.build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    run.same_data(data)

    def step():
        tokens = torch.randint(0, mesh_programs.V, (mesh_programs.BATCH, mesh_programs.SEQ), generator=run.generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run.train(model, optimizer, step)


@program("tensor-fsdp2", FOUR)
def tensor_fsdp2(run):
    of_mesh_programs(run, "tensor")


def of_tensor_programs(name):
    """A program of tensor_programs.py with a larger model."""

    def train_it(run):
        import contextlib

        import tensor_programs
        import torch
        from torch.distributed.tensor.parallel import loss_parallel
        from torch.nn import functional as F

        row = dict(tensor_programs.programs()[name], batch=8, seq=128)
        row["config"] = {**row["config"], "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "layer_types": ["full_attention"] * 6, "num_attention_heads": 8, "num_key_value_heads": 4,
                         "head_dim": 48, "vocab_size": 4096, "max_position_embeddings": 128}
        meshes, model, forward, vocabulary = tensor_programs.prepared(row)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=row["optimizer"] == "foreach")
        run.same_data(meshes.fsdp.get_local_rank("shard") if meshes.fsdp is not None and meshes.context is None else 0)

        def step():
            tokens = torch.randint(0, vocabulary, (row["batch"], row["seq"]), generator=run.generator)
            positions = torch.arange(row["seq"]).unsqueeze(0)
            with tensor_programs.context_of(row, meshes, [tokens, positions]), loss_parallel() if row["loss_parallel"] else contextlib.nullcontext():
                loss = F.cross_entropy(forward(tokens, positions).flatten(0, 1).float(), tokens.flatten())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run.train(model, optimizer, step)

    return train_it


for each in ("llama-s2t2", "llama-s2t2-sp", "llama-s2t2-sp-loss", "llama-s2t2-sp-checkpoint", "llama-s2c2", "llama-c2t2-sp", "qwen3-s2t2-sp-loss-checkpoint"):
    program(f"mesh-{each}", FOUR)(of_tensor_programs(each))


@program("experts", FOUR)
def experts(run):
    of_mesh_programs(run, "experts")


@program("context")
def context(run):
    """Context parallelism by hand: each rank has a part of every sample, and gathers keys and values; DDP averages the gradients."""
    import torch
    import torch.distributed as dist
    from torch.distributed.nn.functional import all_gather
    from torch.nn import functional as F

    blocks, model = blocks_and_model()
    rank, world = run.rank, run.world
    size = SIZE.seq // world
    rows = torch.arange(rank * size, (rank + 1) * size)
    mask = rows[:, None] >= torch.arange(SIZE.seq)[None, :]

    def forward(block, x):
        heads = (x.shape[0], size, x.shape[2] // 64, 64)
        q, k, v = (part.reshape(heads).transpose(1, 2).contiguous() for part in block.qkv(block.norm1(x)).chunk(3, dim=-1))
        k, v = (torch.cat(all_gather(part), dim=2) for part in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + block.out(attended.transpose(1, 2).reshape(x.shape))
        return x + block.down(F.gelu(block.up(block.norm2(x))))

    for block in blocks:
        block.forward = functools.partial(forward, block)
    run.same_data()

    def loss(model, tokens):
        part = tokens[:, rank * size:(rank + 1) * size]
        return F.cross_entropy(model(part).flatten(0, 1), part.flatten())

    train(run, ddp(model, process_group=dist.group.WORLD), loss=loss)


# --- Optimizers


@program("sgd-foreach")
def sgd_foreach(run):
    import torch

    blocks, model = blocks_and_model()
    fsdp2(model, blocks)
    train(run, model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, foreach=True))


@program("adamw-foreach")
def adamw_foreach(run):
    blocks, model = blocks_and_model()
    fsdp2(model, blocks)
    train(run, model, adamw(model, foreach=True))


@program("adafactor")
def adafactor(run):
    import torch

    model = ddp(blocks_and_model()[1])
    train(run, model, torch.optim.Adafactor(model.parameters(), lr=1e-3))


@program("muon")
def muon(run):
    """Muon for the blocks' matrices, AdamW for everything else."""
    import torch

    blocks, model = blocks_and_model()
    matrices = [p for block in blocks for p in block.parameters() if p.dim() == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    model = ddp(model)

    class Both:
        """Two optimizers as one."""

        def __init__(self):
            self.parts = [torch.optim.Muon(matrices, lr=1e-3), torch.optim.AdamW(others, lr=1e-3)]
            self.muon, self.adamw = self.parts

        def step(self):
            for part in self.parts:
                part.step()

        def zero_grad(self):
            for part in self.parts:
                part.zero_grad()

    train(run, model, Both())


@program("optimizer-in-backward")
def optimizer_in_backward(run):
    """Each parameter is updated when its gradient is complete."""
    import torch

    blocks, model = blocks_and_model()
    fsdp2(model, blocks)
    optimizers = {parameter: torch.optim.AdamW([parameter], lr=1e-3) for parameter in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(update)

    def step():
        loss = loss_of(model, tokens_of(run))
        loss.backward()
        return loss

    run.train(model, list(optimizers.values()), step)


@program("zero-redundancy")
def zero_redundancy(run):
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = ddp(blocks_and_model()[1])
    train(run, model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3))


# --- Parameters that the program itself gathers


@program("simple-fsdp")
def simple_fsdp(run):
    """Parameters are DTensors; a parametrization redistributes each when it is read, so that autograd reduces its gradient."""
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.nn.utils import parametrize

    class Gathered(nn.Module):
        def forward(self, parameter):
            return parameter.redistribute(placements=(Replicate(),)).to_local(grad_placements=(Partial(reduce_op="avg"),))

    _, model = blocks_and_model()
    mesh = init_device_mesh("cpu", (run.world,), mesh_dim_names=("shard",))
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, (Shard(0),))))
            parametrize.register_parametrization(module, name, Gathered(), unsafe=True)
    train(run, model)
