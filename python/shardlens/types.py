"""Types of what the package returns: the program's JSON, and rows of runs.

Made from docs/schemas by scripts/python_types; what a schema says of a key is a comment here. The classes are dicts: nothing is checked when a program runs.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from typing_extensions import NotRequired  # in typing from Python 3.11 on


class UnitRow(TypedDict):
    rank: int
    unit: str  # "" is the root.
    collective: Literal["all_gather_forward", "all_gather_backward", "reduce_scatter", "all_reduce", "other"]
    count: int
    bytes: int | None
    busy_ns: int
    exposed_ns: int
    lead_ns: int | None  # Median time from the issue until it was needed; negative: it was waited for.
    cause: Literal["first_of_the_step", "last_of_the_step", "not_prefetched", "host_late", "behind_another_collective", "held_by_the_limiter", "limited_by_bandwidth", "frozen_views", "host_waited", "waited_for_another_rank", "needed_at_once", "unknown", "one_hardware_queue"] | None
    issued_by: Literal["own", "forward_prefetch", "backward_prefetch", "explicit_prefetch", "limiter", "user", "backward_end"] | None


class StepRow(TypedDict):
    rank: int
    step: int
    span_ns: int
    compute_ns: int
    comm_ns: int
    overlap_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int
    overlap_ratio: float | None
    idle_host_late_ns: int
    idle_event_wait_ns: int
    idle_gap_ns: int
    idle_unknown_ns: int


class CollectiveRow(TypedDict):
    rank: int
    unit: str  # "" is the root.
    kind: Literal["all_gather", "reduce_scatter", "all_reduce", "other"]
    section: Literal["none", "forward", "loss", "backward", "clip", "optimizer", "ambiguous"]
    step: int | None
    issued_ns: int | None
    start_ns: int
    end_ns: int
    busy_ns: int
    needed_ns: int | None
    slack_ns: int | None
    exposed_ns: int
    cause: Literal["first_of_the_step", "last_of_the_step", "not_prefetched", "host_late", "behind_another_collective", "held_by_the_limiter", "limited_by_bandwidth", "frozen_views", "host_waited", "waited_for_another_rank", "needed_at_once", "unknown", "one_hardware_queue"] | None
    issued_by: Literal["own", "forward_prefetch", "backward_prefetch", "explicit_prefetch", "limiter", "user", "backward_end"] | None
    bytes: int | None


class CauseRow(TypedDict):
    cause: Literal["first_of_the_step", "last_of_the_step", "not_prefetched", "host_late", "behind_another_collective", "held_by_the_limiter", "limited_by_bandwidth", "frozen_views", "host_waited", "waited_for_another_rank", "needed_at_once", "unknown", "one_hardware_queue"]
    exposed_ns: int
    count: int
    explanation: str  # What the cause means.


class OrderRow(TypedDict):
    rank: int
    steps: str  # Numbers of steps, with spaces between.
    index: int
    what: Literal["unshard", "reshard", "reduce"]
    unit: str
    section: Literal["forward", "backward"]
    by: Literal["own", "forward_prefetch", "backward_prefetch", "explicit_prefetch"] | None
    hook_unit: str


class KindFigures(TypedDict):
    count: int | None
    bytes: int | None
    busy_ns: int
    exposed_ns: int
    matched: int | None  # Those found on all ranks.
    transfer_ns: int | None
    wait_ns: int | None
    algbw_gbps: float | None
    busbw_gbps: float | None


class Idle(TypedDict):
    host_late_ns: int
    event_wait_ns: int
    gap_ns: int
    unknown_ns: int


class RankFiguresEventWait(TypedDict):
    graph_ns: int
    inferred_ns: int


class Launch(TypedDict):
    count: int
    latency_median_ns: int
    latency_p99_ns: int
    latency_max_ns: int
    before_launch: int
    queue_max: int
    queue_mean: float


class DeviceMemorySteps(TypedDict):
    step: int
    peak_allocated_bytes: NotRequired[int]
    peak_growth_bytes: NotRequired[int]


class DeviceMemory(TypedDict):
    device: str
    source: Literal["driver", "allocator"]
    peak_allocated_bytes: int | None
    peak_time_ns: int
    peak_reserved_bytes: int | None
    peak_growth_bytes: int | None
    steps: list[DeviceMemorySteps]
    timeline: list[list[int]]  # Time, allocated and reserved bytes.


class StepFigures(TypedDict):
    step: int
    span_ns: int  # The window, ns
    compute_ns: int
    comm_ns: int
    overlap_ns: int  # Communication that compute hides, ns
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int
    overlap_ratio: float | None  # Hidden part of the communication, 0 to 1; null: there is none.
    collectives: dict[str, KindFigures]  # By kind of collective.
    idle: Idle


class PartFigures(TypedDict):
    count: int
    bytes: int | None
    busy_ns: int
    exposed_ns: int
    lead_ns: int | None  # Median time from the issue until it was needed; negative: it was waited for.
    cause: Literal["first_of_the_step", "last_of_the_step", "not_prefetched", "host_late", "behind_another_collective", "held_by_the_limiter", "limited_by_bandwidth", "frozen_views", "host_waited", "waited_for_another_rank", "needed_at_once", "unknown", "one_hardware_queue"] | None
    issued_by: Literal["own", "forward_prefetch", "backward_prefetch", "explicit_prefetch", "limiter", "user", "backward_end"] | None


class NamedPart(TypedDict):
    count: int
    bytes: int | None
    busy_ns: int
    exposed_ns: int
    lead_ns: int | None  # Median time from the issue until it was needed; negative: it was waited for.
    cause: Literal["first_of_the_step", "last_of_the_step", "not_prefetched", "host_late", "behind_another_collective", "held_by_the_limiter", "limited_by_bandwidth", "frozen_views", "host_waited", "waited_for_another_rank", "needed_at_once", "unknown", "one_hardware_queue"] | None
    issued_by: Literal["own", "forward_prefetch", "backward_prefetch", "explicit_prefetch", "limiter", "user", "backward_end"] | None
    name: str


class UnitFigures(TypedDict):
    fqn: str  # "" is the root.
    all_gather_forward: PartFigures | None
    all_gather_backward: PartFigures | None
    reduce_scatter: PartFigures | None
    compute_ns: int
    exposed_copy_ns: int
    all_reduce: NotRequired[PartFigures]
    other: NotRequired[PartFigures]
    compute_forward_ns: NotRequired[int]
    compute_backward_ns: NotRequired[int]
    others: NotRequired[list[NamedPart]]


class Spread(TypedDict):
    sum_ns: int
    median_ns: int
    worst_ns: int
    worst_unit: str


class BlockFigures(TypedDict):
    """Units of blocks alike."""

    name: str
    units: list[str]
    outliers: list[str]
    exposed: Spread
    compute: Spread
    all_gather_forward: NotRequired[Spread]
    all_gather_backward: NotRequired[Spread]
    reduce_scatter: NotRequired[Spread]
    all_reduce: NotRequired[Spread]
    other: NotRequired[Spread]


class GroupFigures(TypedDict):
    name: str
    ranks: str
    size: int | None
    count: int
    bytes: int | None
    busy_ns: int
    exposed_ns: int
    under_compute_ns: int
    under_ns: dict[str, int]  # By name of another group.


class CommunicationFigures(TypedDict):
    """Communication of one purpose and kind over one group."""

    purpose: Literal["gather_parameters", "reduce_gradients", "reduce_replicas", "activations", "tokens", "context", "norm", "loss", "other"]
    group: str  # Name of the group of ranks.
    ranks: int | None  # Size of the group; null: not known.
    kind: Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "send_recv", "barrier"] | None
    count: int | None  # null: ranks differ.
    bytes: int | None  # null: the trace has no sizes.
    busy_ns: int
    exposed_ns: int


class Waste(TypedDict):
    kind: Literal["gathered_again", "unused_gather", "cast_again", "frozen_views", "late_bucket", "slow_in_graph", "host_sync", "root_gathered_again", "unaligned_message", "shared_communicator"]
    where: str
    count: int
    lost_ns: int


class FrozenViews(TypedDict):
    backwards: int
    late: int
    lost_ns: int
    found: str
    fresh: str


class OrderDifferenceCounts(TypedDict):
    collective: str
    expected: int
    found: int


class OrderDifference(TypedDict):
    step: int
    index: int
    expected: str | None
    found: str | None
    counts: list[OrderDifferenceCounts]


class OrderCheck(TypedDict):
    compared: int  # How many entries.
    first_difference: OrderDifference | None


class ObservedEvent(TypedDict):
    what: Literal["unshard", "reshard", "reduce"]
    unit: str
    section: Literal["forward", "backward"]
    by: NotRequired[Literal["own", "forward_prefetch", "backward_prefetch", "explicit_prefetch"]]
    hook_unit: NotRequired[str]


class ObservedOrder(TypedDict):
    steps: list[int]
    events: list[ObservedEvent]


class Order(TypedDict):
    planned_vs_issued: OrderCheck
    issued_vs_started: OrderCheck
    observed: list[ObservedOrder]


class PathPart(TypedDict):
    rank: int
    bound: Literal["compute", "communication", "copy", "host", "launch", "idle"]
    name: str
    count: int
    length_ns: int


class StepPath(TypedDict):
    step: int
    bound: Literal["compute", "communication", "copy", "host", "launch", "idle"]
    compute_ns: int
    communication_ns: int
    copy_ns: int
    host_ns: int
    launch_ns: int
    idle_ns: int
    parts: list[PathPart]


class Attribution(TypedDict):
    what: Literal["compute", "communication", "copy"]
    basis: Literal["none", "range", "annotation", "order", "ambiguous"]
    count: int
    count_share: float
    time_ns: int
    time_share: float


class SpanProof(TypedDict):
    what: str
    event: str
    start_ns: int
    end_ns: int


class Span(TypedDict):
    fqn: str
    kind: Literal["all_gather", "reduce_scatter", "all_reduce", "other", "copy_out", "copy", "compute"]
    section: Literal["none", "forward", "loss", "backward", "clip", "optimizer", "ambiguous"]
    step: int | None
    issued_ns: int | None
    start_ns: int
    end_ns: int
    busy_ns: int
    needed_ns: int | None
    slack_ns: int | None
    exposed_ns: int
    cause: Literal["first_of_the_step", "last_of_the_step", "not_prefetched", "host_late", "behind_another_collective", "held_by_the_limiter", "limited_by_bandwidth", "frozen_views", "host_waited", "waited_for_another_rank", "needed_at_once", "unknown", "one_hardware_queue"] | None
    issued_by: Literal["own", "forward_prefetch", "backward_prefetch", "explicit_prefetch", "limiter", "user", "backward_end"] | None
    bytes: int | None
    purpose: Literal["gather_parameters", "reduce_gradients", "reduce_replicas", "activations", "tokens", "context", "norm", "loss", "other"] | None
    name: NotRequired[str]
    module: NotRequired[str]  # Within the unit, where the program gathers its own parameters.
    attributed_by: NotRequired[Literal["annotation", "order", "ambiguous"]]  # How the unit was found, if not by a range.
    proof: NotRequired[list[SpanProof]]


class RankFigures(TypedDict):
    rank: int
    span_ns: int  # The window, ns
    compute_ns: int
    comm_ns: int
    overlap_ns: int  # Communication that compute hides, ns
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int
    overlap_ratio: float | None  # Hidden part of the communication, 0 to 1; null: there is none.
    collectives: dict[str, KindFigures]  # By kind of collective.
    idle: Idle
    event_wait: RankFiguresEventWait
    launch: Launch | None  # null: no device.
    memory: list[DeviceMemory]
    steps: list[StepFigures]
    units: list[UnitFigures]
    blocks: list[BlockFigures]
    groups: list[GroupFigures]
    communication: list[CommunicationFigures]
    waste: list[Waste]
    frozen_views: FrozenViews | None
    order: Order
    critical_path: NotRequired[list[StepPath]]  # With --critical-path.
    attribution: NotRequired[list[Attribution]]  # Of a run captured as a graph, or of one that gathers its own parameters.
    spans: NotRequired[list[Span]]  # With --by span or --explain.


class Diagnostic(TypedDict):
    severity: Literal["note", "warning", "error"]
    message: str
    count: int  # How often it was found.


class Clock(TypedDict):
    rank: int
    offset_ns: int
    spread_ns: int
    residual_ns: int
    reference: int
    collectives: int


class Straggler(TypedDict):
    rank: int
    last: int
    held_up_ns: int


class Matched(TypedDict):
    collective: Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "send_recv", "barrier"]
    group: str
    bytes: int | None
    ranks: int
    count: int
    transfer_median_ns: int
    wait_median_ns: int
    skew_median_ns: int
    skew_max_ns: int
    algbw_gbps: float | None
    busbw_gbps: float | None


class Analysis(TypedDict):
    """Output of analyze --json and merge --json (shardlens docs metrics). Times in ns, sizes in bytes."""

    schema: Literal[1]
    ranks: list[RankFigures]
    causes: dict[str, str]  # What each cause means.
    diagnostics: list[Diagnostic]
    clocks: list[Clock]
    stragglers: list[Straggler]
    matched: list[Matched]


class Mesh(TypedDict):
    """The size of every axis of the mesh, outermost first; expert divides the same ranks another way."""

    replicate: int
    shard: int
    context: int
    tensor: int
    expert: int


class Memory(TypedDict):
    """Bytes at the peak, by what they are."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    unsharded: int
    communication: int


class SimulationMemoryByUnit(TypedDict):
    unit: str | None
    memory: Memory


class SimulationOutsideMemory(TypedDict):
    """Bytes that no allocator of PyTorch has."""

    context: int
    nccl: int
    cublas: int


class LeftOutSteps(TypedDict):
    """Recorded steps that the measured time does not have."""

    steps: int
    reason: str


class Baseline(TypedDict):
    measured_step_ns: int
    simulated_step_ns: int
    error: float  # (simulated - measured) / measured.
    steps: int
    one_pass: bool
    left_out: list[LeftOutSteps]


class Extrapolation(TypedDict):
    """Work whose duration was extrapolated far."""

    work: str
    beyond: float  # Times the nearest measured size.
    share: float  # Of the step's time, 0 to 1.


class Exchange(TypedDict):
    """What the rank sends and receives in an all-to-all of a microbatch."""

    module: str
    sent_bytes: int
    received_bytes: int


class UnevenRank(TypedDict):
    rank: int
    compute_ns: int
    peer_wait_ns: int  # Waiting of its collectives for later ranks.
    measured_peer_wait_ns: int | None  # The same in the recorded run, under its own plan.
    all_to_alls: list[Exchange]


class Software(TypedDict):
    """What a step is assumed to run under."""

    compile: Literal["none", "block", "model"]
    cuda_graphs: bool
    matmul_dtype: Literal["fp8_tensorwise", "fp8_rowwise", "mxfp8", "nvfp4", "mxfp8_cublas_rceil"] | None  # null: as the plan's dtypes
    matmul_tail: int  # so many of the last blocks keep the plan's dtypes
    loss_chunks: int | None  # null: as the program does it
    expandable_segments: bool | None  # PYTORCH_ALLOC_CONF; null: as the program sets it


class PlanLint(TypedDict):
    kind: Literal["root_gathered_again", "unaligned_messages"]
    unit: str  # The first that has it.
    units: int  # How many have it.
    evidence: str
    remedy: str


class BareStep(TypedDict):
    """The step on the bare hardware, without the constants of a software stack."""

    step_ns: int
    tokens_per_s: float


class Simulation(TypedDict):
    """Output of simulate --json (shardlens docs simulator)."""

    schema: Literal[1]
    machine: str
    mesh: Mesh
    step_ns: int
    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int
    tokens_per_s: float
    mfu: float | None
    peak_allocated_bytes: int
    peak_requested_bytes: int
    peak_reserved_bytes: int
    fits: bool
    memory: Memory
    memory_by_unit: list[SimulationMemoryByUnit]  # Of the plan's units in its order, then of no unit (null); those without memory are left out.
    outside_memory: SimulationOutsideMemory  # Bytes that no allocator of PyTorch has.
    baseline: Baseline | None  # The run's own plan; null: there is no recorded run.
    interval_ns: list[int] | None  # 90 %.
    tokens_per_s_interval: list[float] | None
    change_interval_ns: list[int] | None
    extrapolated: list[Extrapolation]
    unknown: list[str]  # What the figures leave out.
    ranks: NotRequired[list[UnevenRank]]  # Only of a recorded run whose ranks have unequal numbers of rows for their experts.
    software: Software
    communication: list[CommunicationFigures]
    lints: list[PlanLint]  # What is slow in each step of the plan, found before anything runs.
    stack: NotRequired[str | None]  # Only on the data of a machine. null: bare.
    program: NotRequired[str | None]
    stack_gpu: NotRequired[str | None]
    bare: NotRequired[BareStep | None]


class PlanFileMesh(TypedDict):
    """Sizes of axes; an axis without one gets what the number of ranks leaves."""

    replicate: NotRequired[int | None]
    shard: NotRequired[int | None]
    context: NotRequired[int | None]
    tensor: NotRequired[int | None]
    expert: NotRequired[int | None]


class PlanFileContextParallel(TypedDict):
    method: NotRequired[Literal["all_gather", "ring"]]


class PlanFileExpertParallel(TypedDict):
    dispatch: NotRequired[Literal["all_to_all", "all_gather", "deep_ep"]]
    ranks_per_token: NotRequired[int | None]


class MixedPrecision(TypedDict):
    param_dtype: NotRequired[Literal["fp32", "bf16", "fp16"] | None]
    reduce_dtype: NotRequired[Literal["fp32", "bf16", "fp16"] | None]
    output_dtype: NotRequired[Literal["fp32", "bf16", "fp16"] | None]
    buffer_dtype: NotRequired[Literal["fp32", "bf16", "fp16"] | None]
    gather_dtype: NotRequired[Literal["float8_e4m3fn"] | None]
    cast_forward_inputs: NotRequired[bool | None]


class ParameterGroup(TypedDict):
    parameters: NotRequired[list[str]]
    mesh: NotRequired[Literal["dense", "expert"]]
    shard_dim: NotRequired[int]


class PlanUnit(TypedDict):
    modules: str | list[str]  # A glob: a unit of each module. A list of globs: one unit of all.
    api: NotRequired[Literal["fully_shard", "replicate"]]
    reshard_after_forward: NotRequired[bool | int | None]  # true, false, the number of ranks of a sub-mesh, or null: true except for the root.
    reshard_after_backward: NotRequired[bool]
    requires_all_reduce: NotRequired[bool]
    keep_unsharded_storage: NotRequired[bool]
    unshard_in_backward: NotRequired[bool]
    mixed_precision: NotRequired[MixedPrecision | None]
    cpu_offload: NotRequired[bool]
    optimizer_in_backward: NotRequired[bool]
    gradient_divide_factor: NotRequired[float | None]
    bucket_cap_mb: NotRequired[float | None]  # null: DDP's sizes.
    find_unused_parameters: NotRequired[bool]
    static_graph: NotRequired[bool]
    gradient_as_bucket_view: NotRequired[bool]
    groups: NotRequired[list[ParameterGroup]]


class PlanFile(TypedDict):
    """plan.json: how a model is sharded (shardlens docs plan). Each key but version has a default."""

    version: Literal[1]
    mesh: NotRequired[PlanFileMesh | None]  # Sizes of axes; an axis without one gets what the number of ranks leaves.
    tensor_parallel: NotRequired[dict[str, Literal["column", "row", "vocabulary", "sequence", "replicate"] | int] | None]  # By glob of modules: a style, or the dimension that is cut.
    sequence_parallel: NotRequired[bool]
    loss_parallel: NotRequired[bool]
    shared_gathers: NotRequired[bool]
    context_parallel: NotRequired[PlanFileContextParallel | None]
    expert_parallel: NotRequired[PlanFileExpertParallel | None]
    dialect: NotRequired[Literal["fsdp1", "fsdp2"]]
    layout: NotRequired[Literal["flat", "per_parameter"]]
    views: NotRequired[Literal["fresh", "frozen"]]
    units: NotRequired[list[PlanUnit]]
    reshard_after_forward: NotRequired[bool | int | None]  # true, false, the number of ranks of a sub-mesh, or null: true except for the root.
    reshard_after_backward: NotRequired[bool]
    requires_all_reduce: NotRequired[bool]
    keep_unsharded_storage: NotRequired[bool]
    backward_finalization: NotRequired[Literal["automatic", "waits", "reduces"]]
    backward_prefetch: NotRequired[Literal["pre", "post", "none"] | dict[str, list[str]]]
    forward_prefetch: NotRequired[int | dict[str, list[str]]]
    limit_all_gathers: NotRequired[bool]
    separate_reduce_scatter_group: NotRequired[bool]
    reduce_scatter_unused_params: NotRequired[bool]
    reduce_scatter_max_input_buffers: NotRequired[int]
    dtype: NotRequired[Literal["fp32", "bf16", "fp16"] | None]
    mixed_precision: NotRequired[MixedPrecision | None]
    activation_checkpointing: NotRequired[list[str]]
    checkpointing_saves: NotRequired[list[Literal["attention", "products", "every_second_product"]]]
    cpu_offload: NotRequired[bool]
    optimizer_in_backward: NotRequired[bool]
    ignored_modules: NotRequired[list[str]]
    ignored_parameters: NotRequired[list[str]]
    frozen_parameters: NotRequired[list[str]]
    gradient_divide_factor: NotRequired[float | None]
    bucket_cap_mb: NotRequired[float | None]  # null: DDP's sizes.
    find_unused_parameters: NotRequired[bool]
    static_graph: NotRequired[bool]
    gradient_as_bucket_view: NotRequired[bool]


class StepMemoryAlive(TypedDict):
    what: str
    unit: str | None
    category: Literal["parameters", "gradients", "optimizer", "activations", "unsharded", "communication"]
    bytes: int


class StepMemory(TypedDict):
    value: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    memory: Memory
    alive: list[StepMemoryAlive]


class LargestStep(TypedDict):
    value: int | None
    unit: int
    bound: int
    largest: StepMemory | None
    beyond: StepMemory | None
    refusal: str | None


class LargestSteps(TypedDict):
    batch: LargestStep
    sequence: LargestStep


class BestPlan(TypedDict):
    name: str
    mesh: Mesh
    plan: PlanFile
    precision: str | None
    batch: int
    accumulate: int
    step_ns: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    exposed_comm_ns: int
    interval_ns: list[int] | None
    tokens_per_s_interval: list[float] | None
    change_interval_ns: list[int] | None
    why: str
    fits: NotRequired[LargestSteps]  # With --fits.


class SearchResultBare(TypedDict):
    name: str
    step_ns: int
    same_plan: bool


class SearchResultPrecisions(TypedDict):
    precision: str
    name: str | None
    step_ns: int | None


class PerBlockPlan(TypedDict):
    name: str
    mesh: Mesh
    plan: PlanFile
    precision: str | None
    batch: int
    accumulate: int
    step_ns: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    exposed_comm_ns: int
    gap: float
    evaluated: int
    cancelled: bool


class PlanOfMesh(TypedDict):
    name: str
    batch: int
    accumulate: int
    step_ns: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    exposed_comm_ns: int


class PurposeTime(TypedDict):
    purpose: str
    busy_ns: int
    exposed_ns: int


class TimeOfMesh(TypedDict):
    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: int
    communication: list[PurposeTime]
    bound_by: list[Literal["compute", "links", "copies", "host", "memory"]]
    difference: str | None  # From the mesh before it.


class SearchedMesh(TypedDict):
    mesh: Mesh
    status: Literal["not_reached", "searched", "refused", "does_not_fit", "slower"]
    reason: str | None  # Why it has no plan.
    samples: int  # Of a data-parallel rank in a step.
    candidates: int
    evaluated: int
    pruned: int
    slower: int
    bound_ns: int | None  # Below the step of every plan that fits.
    best: PlanOfMesh | None
    time: TimeOfMesh | None  # Of the five best meshes.


class FoundPlan(TypedDict):
    name: str
    mesh: Mesh
    plan: PlanFile
    precision: str | None
    batch: int
    accumulate: int
    step_ns: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    exposed_comm_ns: int
    interval_ns: list[int] | None
    tokens_per_s_interval: list[float] | None
    change_interval_ns: list[int] | None
    fits: NotRequired[LargestSteps]  # With --fits.


class SearchResult(TypedDict):
    """Output of search --json."""

    schema: Literal[1]
    candidates: int
    evaluated: int
    pruned: int
    slower: int  # Not evaluated, since a lower bound of their step is above the best meshes.
    refused: int
    cancelled: bool
    software: Software
    best: BestPlan | None  # null: nothing fits.
    stack: str | None
    program: str | None
    stack_gpu: str | None
    bare: SearchResultBare | None
    precisions: list[SearchResultPrecisions]
    per_block: PerBlockPlan | None
    meshes: list[SearchedMesh]  # Every mesh that was to be searched.
    not_tried: list[str]  # What no mesh was searched with.
    pareto: list[FoundPlan]  # From the fastest to the smallest.


class AdviceBaseline(TypedDict):
    measured_step_ns: int
    simulated_step_ns: int
    error: float  # (simulated - measured) / measured.
    steps: int
    one_pass: bool
    left_out: list[LeftOutSteps]
    peak_allocated_bytes: int
    fits: bool


class AdvisedChangeRun(TypedDict):
    batch: int
    accumulate: int
    sync_every_microbatch: bool


class AdvisedChangeHides(TypedDict):
    unit: str
    collective: str
    ns: int


class AdvisedChange(TypedDict):
    id: str
    title: str
    plan: PlanFile
    run: AdvisedChangeRun
    pytorch: list[str]
    lines: list[str]
    step_ns: int
    change_ns: int
    interval_ns: list[int]
    bound_ns: int
    verdict: Literal["does not fit", "pays", "probably pays", "no difference", "probably loses", "loses"]
    odds: int | None  # Of 100; null: certain.
    probability: float
    extrapolated: list[Extrapolation]
    peak_allocated_bytes: int
    fits: bool
    hides: list[AdvisedChangeHides]
    measured_change_ns: int | None
    measured_error_ns: int | None


class AdviceUnknown(TypedDict):
    id: str
    title: str
    reason: str


class AdviceWaste(TypedDict):
    kind: str
    unit: str
    ns: int  # Lost in a step, ns
    evidence: str


class PricedMeshRun(TypedDict):
    batch: int
    accumulate: int
    sync_every_microbatch: bool


class PricedMesh(TypedDict):
    mesh: Mesh
    title: str  # Of the plan; empty: the run's own.
    plan: PlanFile
    run: PricedMeshRun
    step_ns: int
    interval_ns: list[int] | None  # 90 %.
    peak_reserved_bytes: int


class MeshProposal(TypedDict):
    """The best plan on another mesh, predicted from the model."""

    refusal: str | None  # null: one is proposed.
    machine: str
    own: PricedMesh | None  # The run's own plan.
    best: PricedMesh | None
    change_ns: int | None
    searched: int  # Other meshes.
    refused: int
    why_refused: str
    not_tried: list[str]


class Advice(TypedDict):
    """Output of advise --json (shardlens docs cli)."""

    schema: Literal[1]
    baseline: AdviceBaseline
    framework: str
    all_gathers_block: bool
    changes: list[AdvisedChange]
    others: list[AdvisedChange]  # Predicted not to pay.
    unknown: list[AdviceUnknown]
    waste: list[AdviceWaste]
    mesh: MeshProposal


class CheckedMetric(TypedDict):
    name: str
    gates: bool
    baseline: float  # ns per step.
    candidate: float
    change: float | None
    ci: list[float | None]
    threshold: float | None
    verdict: Literal["pass", "regression", "inconclusive", "unknown", "within noise", "higher", "lower"]
    change_ns: float
    ci_ns: list[float | None]
    threshold_ns: float | None
    detectable_ns: float | None
    upper_bound_ns: float | None
    enough: int | None


class StructuralDifference(TypedDict):
    kind: str
    unit: str
    baseline: str
    candidate: str
    ranks: list[int]


class CheckedMemory(TypedDict):
    rank: int
    device: str
    gates: bool
    baseline_bytes: int | None  # The peak of its steps; null: not recorded.
    candidate_bytes: int
    baseline_kept_bytes: int | None  # Of the peak, what was there when its step began.
    candidate_kept_bytes: int | None
    allowed_bytes: int | None  # A regression is above this; null: it does not gate.
    verdict: Literal["pass", "regression", "unknown", "equal", "higher", "lower"]


class AttributedChange(TypedDict):
    metric: str
    unit: str
    part: str
    delta_ns: float


class ComparedRuns(TypedDict):
    baseline: int
    candidate: int
    steps: int
    baseline_sessions: int
    candidate_sessions: int
    by_sessions: bool


class CheckResult(TypedDict):
    """Output of check --json (shardlens docs gate-ci)."""

    schema: Literal[1]
    verdict: Literal["pass", "regression", "inconclusive"]
    reason: str
    metrics: list[CheckedMetric]
    structural: list[StructuralDifference]
    memory: list[CheckedMemory]
    attribution: list[AttributedChange]
    causes: list[str]
    notes: list[str]
    runs: ComparedRuns
    alpha: float


class ComparedMetric(TypedDict):
    name: str
    baseline: float
    candidate: float
    change: float | None
    ci: list[float | None]
    change_ns: float
    ci_ns: list[float | None]
    within_noise: bool | None


class ComparedMemory(TypedDict):
    rank: int
    device: str
    baseline_bytes: int | None  # The peak of its steps; null: not recorded.
    candidate_bytes: int
    baseline_kept_bytes: int | None  # Of the peak, what was there when its step began.
    candidate_kept_bytes: int | None


class ItemChange(TypedDict):
    section: str
    unit: str
    kind: str
    occurrence: int
    baseline_ns: float | None
    candidate_ns: float | None
    delta_ns: float
    baseline_exposed_ns: float | None
    candidate_exposed_ns: float | None
    within_noise: bool | None


class Comparison(TypedDict):
    """Output of compare --json."""

    schema: Literal[1]
    metrics: list[ComparedMetric]
    structural: list[StructuralDifference]
    memory: list[ComparedMemory]
    attribution: list[AttributedChange]
    causes: list[str]
    notes: list[str]
    runs: ComparedRuns
    items: list[ItemChange]
