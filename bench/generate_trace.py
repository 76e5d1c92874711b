#!/usr/bin/env python3
"""Writes a Kineto trace of about a given size, like that of an FSDP2 training run on eight GPUs.

    generate_trace.py --megabytes 300 --out rank0.json [--gzip] [--rank 0] [--graph] [--host-first]

The same arguments give the same file. All steps have the same work: for each layer an all-gather, its copy-out, 14 operators with their launches, kernels and flows, and in the
backward pass a reduce-scatter. From the third step on, events are those of the second with shifted times and ids. Line breaks, members and their order are those of PyTorch 2.11.
With --graph all steps but the first are replays of one CUDA graph: a launch and kernels, without operators, ranges, flows and the arguments of collectives.
With --host-first the operators and ranges of all steps come first, then their launches, flows and kernels, as PyTorch writes them, and only whole steps are written.
"""
import argparse
import gzip
import itertools
import os
import random
import shutil
import tempfile

LAYERS = 32
BASE = 1790857026000000000
GROUP = ('"Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"')
OPERATORS = [
    ("aten::rms_norm", "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int, float, c10::BFloat16 const*, "
     "c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)", "[[4, 4096, 4096], [4096]]"),
    ("aten::mm", "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "[[16384, 4096], [4096, 4096]]"),
    ("aten::mm", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "[[16384, 4096], [4096, 1024]]"),
    ("aten::mm", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "[[16384, 4096], [4096, 1024]]"),
    ("aten::mul", "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
     "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, "
     "c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul>)", "[[4, 4096, 32, 128], [4096, 1, 128]]"),
    ("aten::_scaled_dot_product_flash_attention", "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t> >"
     "(pytorch_flash::Flash_fwd_params)", "[[4, 32, 4096, 128], [4, 8, 4096, 128], [4, 8, 4096, 128]]"),
    ("aten::mm", "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "[[16384, 4096], [4096, 4096]]"),
    ("aten::add", "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int, "
     "at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)", "[[4, 4096, 4096], [4, 4096, 4096], []]"),
    ("aten::mm", "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "[[16384, 4096], [4096, 14336]]"),
    ("aten::silu", "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)"
     "::{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >", "[[16384, 14336]]"),
    ("aten::mm", "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "[[16384, 4096], [4096, 14336]]"),
    ("aten::mm", "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "[[16384, 14336], [14336, 4096]]"),
]


class Trace:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.host = 4391404951531684  # nanoseconds since the base time
        self.free = {7: self.host, 20: self.host, 24: self.host}  # when each stream is idle again
        self.external = self.correlation = 0
        self.thread = 10100
        self.node = None  # of the CUDA graph's last kernel; None: nothing is captured
        self.first = True

    # Times and ids, which change from step to step, are between \x01 marks until the step is written.
    def time(self, ns):
        return f"\x01t{ns}\x01"

    def id(self, number):
        return f"\x01i{number}\x01"

    def event(self, category, name, pid, tid, start, length, args):
        # In the profiler's format: four lines and the brackets.
        self.first = False
        return (f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n    "ts": {self.time(start)}, '
                f'"dur": {length // 1000}.{length % 1000:03d},\n    "args": {{\n      {args}\n    }}\n  }}')

    def flow(self, phase, pid, tid, start):
        tail = ', "bp": "e"' if phase == "f" else ""
        return (f'  {{\n    "ph": "{phase}", "id": {self.id(self.correlation)}, "pid": {pid}, "tid": {tid}, "ts": {self.time(start)},\n    "cat": "ac2g", '
                f'"name": "ac2g"{tail}\n  }}')

    def launched(self, name, stream, length, args=""):
        """The launch, the kernel and the arrows between them; of a graph only the kernel."""
        if self.node is not None:
            self.node += 1
            start = max(self.host + 1500, self.free[stream] + 1000)
            self.free[stream] = start + length
            yield self.kernel(name, stream, start, length, 0, f',\n      "graph id": 7, "graph node id": {(7 << 32) + self.node}')
            return
        self.correlation += 1
        begin = self.host
        self.host += self.random.randrange(3000, 6000)
        start = max(self.host + 1500, self.free[stream] + 1000)
        self.free[stream] = start + length
        external = self.id(self.external)
        yield self.event("cuda_runtime", "cudaLaunchKernelExC", 9200, self.thread, begin, self.host - begin,
                         f'"External id": {external}, "cbid": 430, "correlation": {self.id(self.correlation)}')
        yield self.flow("s", 9200, self.thread, begin)
        yield self.kernel(name, stream, start, length, external, args)
        yield self.flow("f", 0, stream, start)

    def kernel(self, name, stream, start, length, external, args):
        return self.event("kernel", name, 0, stream, start, length,
                          f'"External id": {external}, "queued": 0, "device": 0, "context": 1,\n      "stream": {stream}, "correlation": {self.id(self.correlation)},\n'
                          f'      "registers per thread": 168, "shared memory": 232448,\n      "blocks per SM": 0.984848,\n      "warps per SM": 11.818182,\n'
                          f'      "grid": [132, 1, 1],\n      "block": [384, 1, 1],\n      "est. achieved occupancy %": 18{args}')

    def operator(self, name, kernel, dims, length):
        if self.node is not None:
            yield from self.launched(kernel, 7, length)
            return
        self.external += 1
        begin, external = self.host, self.id(self.external)
        self.host += self.random.randrange(2000, 5000)
        inner = list(self.launched(kernel, 7, length))
        self.host += self.random.randrange(1000, 2000)
        types = ", ".join(['"c10::BFloat16"'] * (dims.count("], [") + 1))
        yield self.event("cpu_op", name, 9200, self.thread, begin, self.host - begin,
                         f'"External id": {external},"Record function id": 0, "Concrete Inputs": ["", ""], "Input type": [{types}], '
                         f'"Input Strides": {dims}, "Input Dims": {dims}, "Ev Idx": {external}')
        yield from inner

    def collective(self, range_name, name, kernel, stream, in_nelems, out_nelems):
        if self.node is not None:
            yield from self.launched(kernel, stream, self.random.randrange(600000, 900000))
            return
        begin = self.host
        self.external += 1
        self.host += 4000
        args = (f'"Collective name": "{name}", "In msg nelems": {in_nelems}, "Out msg nelems": {out_nelems}, "Group size": 8, "dtype": "BFloat16", '
                f'"In split size": "[]", "Out split size": "[]", "Global rank start": 0, "Global rank stride": 1, {GROUP}')
        external = self.id(self.external)
        inner = list(self.launched(kernel, stream, self.random.randrange(600000, 900000), ",\n      " + args))
        yield self.event("cpu_op", "record_param_comms", 9200, self.thread, begin + 500, 3000,
                         f'"External id": {external}, {args}, "Ev Idx": {external}')
        yield from inner
        self.host += 3000
        yield self.event("user_annotation", range_name, 9200, self.thread, begin - 1000, self.host - begin + 2000,
                         f'"External id": {external}, "Ev Idx": {external}')

    def layer(self, layer, backward):
        fqn = f"model.layers.{layer}"
        begin = self.host
        self.host += 3000
        yield from self.collective(f"FSDP::all_gather ({fqn})", "_allgather_base",
                                   "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20, 27263488, 218107904)
        yield from self.operator("fsdp::split_with_sizes_copy", "void at::native::(anonymous namespace)::split_with_sizes_copy_out_contiguous_no_cast_kernel"
                                 "(char**, char**, long*, long*, long*, long, long)", "[[8, 27263488], [], []]", 180000)
        # The range is that of the hook: it ends before the module's own operators, which are compute.
        self.host += 2000
        kind = "pre_backward" if backward else "pre_forward"
        if self.node is None:
            yield self.event("user_annotation", f"FSDP::{kind} ({fqn})", 9200, self.thread, begin, self.host - begin,
                             f'"External id": {self.id(self.external)}, "Ev Idx": {self.id(self.external)}')
        for name, kernel, dims in OPERATORS:
            yield from self.operator(name, kernel, dims, self.random.randrange(20000, 400000))
        if backward:
            yield from self.collective(f"FSDP::post_backward_reduce ({fqn})", "_reduce_scatter_base",
                                       "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 24, 218107904, 27263488)
        self.host += 2000

    def step(self, number, graph=False):
        begin = self.host
        if graph:
            self.node = 0
            self.correlation += 1
            yield self.event("cuda_runtime", "cudaGraphLaunch", 9200, self.thread, begin + 2000, 9000, f'"cbid": 311, "correlation": {self.id(self.correlation)}')
        for layer in range(LAYERS):
            yield from self.layer(layer, False)
        self.thread = 10200  # autograd's
        for layer in reversed(range(LAYERS)):
            yield from self.layer(layer, True)
        self.thread = 10100
        self.host = max(self.host, *self.free.values()) + 10000
        self.external += 1
        yield self.event("user_annotation", f"ProfilerStep#\x01n{number}\x01", 9200, self.thread, begin, self.host - begin,
                         f'"External id": {self.id(self.external)},"Record function id": 0, "Ev Idx": {self.id(self.external)}')


def written(events, steps_later, step_ns, step_ids):
    """The text of a step's events, shifted by `steps_later` steps."""
    parts = ",\n".join(events).split("\x01")
    ns, ids = steps_later * step_ns, steps_later * step_ids
    for i in range(1, len(parts), 2):
        kind, number = parts[i][0], int(parts[i][1:])
        if kind == "t":
            parts[i] = f"{(number + ns) // 1000}.{(number + ns) % 1000:03d}"
        else:
            parts[i] = str(number + (ids if kind == "i" else steps_later))
    return "".join(parts)


def write_in_order(out, first, step, trace, begin, limit):
    size = out.write(written(first, 0, 0, 0))
    # Ids of a later step are larger than all earlier ones, but there may be gaps.
    step_ids = max(trace.external, trace.correlation)
    for later in itertools.count():
        if size >= limit:
            break
        text = written(step, later, trace.host - begin, step_ids)
        if size + len(text) > limit:  # a part of the step, up to the end of an event
            text = text[: text.rfind("\n  },\n", 0, max(int(limit - size), 0)) + 4] if limit - size > 2000 else text[: text.index("\n  },\n") + 4]
        size += out.write(",\n" + text)


def by_side(events):
    """The events of the host's side, and launches, flows and kernels."""
    device = [any(f'"cat": "{category}"' in event for category in ("kernel", "cuda_runtime", "ac2g")) for event in events]
    return [[event for event, of_device in zip(events, device) if of_device == side] for side in (False, True)]


def write_host_first(out, first, step, trace, begin, limit):
    step_ids = max(trace.external, trace.correlation)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as later:
        size = 0
        for number in itertools.count():
            texts = [written(side, max(number - 1, 0), trace.host - begin, step_ids) for side in by_side(step if number > 0 else first)]
            if number > 0 and size + sum(map(len, texts)) > limit:
                break
            size += out.write((",\n" if number > 0 else "") + texts[0]) + later.write(",\n" + texts[1])
        later.seek(0)
        shutil.copyfileobj(later, out, 1 << 20)


def head(rank):
    return ('{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {\n      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028896768,\n'
            '      "computeMajor": 9, "computeMinor": 0, "numSms": 132\n    }\n  ],\n  "cuda_runtime_version": 13000,\n  "record_shapes": 1,\n'
            f'  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 8, "pg_count": 1, "pg_config": [{{"pg_name": "0", "pg_desc": '
            '"default_pg", "backend_config": "cuda:nccl", "pg_size": 8, "ranks": [0, 1, 2, 3, 4, 5, 6, 7]}], "nccl_version": "2.28.9"},\n'
            f'  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE},\n  "traceEvents": [\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--gzip", action="store_true")
    parser.add_argument("--graph", action="store_true", help="all steps but the first are replays of a CUDA graph")
    parser.add_argument("--host-first", action="store_true", help="all operators come before all launches and kernels")
    options = parser.parse_args()
    trace = Trace(options.rank)
    limit = options.megabytes * 1e6
    opener = (lambda name: gzip.open(name, "wt", compresslevel=6)) if options.gzip else (lambda name: open(name, "w", encoding="utf-8"))
    with opener(options.out + ".tmp") as out:
        out.write(head(options.rank))
        first = list(trace.step(0))
        begin = trace.host
        step = list(trace.step(1, options.graph))
        if options.host_first:
            write_host_first(out, first, step, trace, begin, limit)
        else:
            write_in_order(out, first, step, trace, begin, limit)
        out.write('\n  ],\n  "traceName": "trace.json"\n}\n')
    os.replace(options.out + ".tmp", options.out)


if __name__ == "__main__":
    main()
