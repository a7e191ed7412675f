from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
BOUND_FIELD_NUMBER: _ClassVar[int]
bound: _descriptor.FieldDescriptor

class Bound(_message.Message):
    __slots__ = ("items", "per_node")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    PER_NODE_FIELD_NUMBER: _ClassVar[int]
    items: int
    per_node: int
    def __init__(self, items: _Optional[int] = ..., per_node: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LLMDescription(_message.Message):
    __slots__ = ("model_id", "vocab_size", "max_context_tokens", "num_kv_blocks", "kv_block_tokens", "num_parameters", "weights_hash", "dtype", "device", "backend", "batch_invariant", "max_nodes_per_row", "num_held_parameters", "load_s", "peak_memory_bytes", "held_bytes", "quantization")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_HASH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    BATCH_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_PER_ROW_FIELD_NUMBER: _ClassVar[int]
    NUM_HELD_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    vocab_size: int
    max_context_tokens: int
    num_kv_blocks: int
    kv_block_tokens: int
    num_parameters: int
    weights_hash: str
    dtype: str
    device: str
    backend: str
    batch_invariant: bool
    max_nodes_per_row: int
    num_held_parameters: int
    load_s: float
    peak_memory_bytes: int
    held_bytes: int
    quantization: str
    def __init__(self, model_id: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., num_kv_blocks: _Optional[int] = ..., kv_block_tokens: _Optional[int] = ..., num_parameters: _Optional[int] = ..., weights_hash: _Optional[str] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., backend: _Optional[str] = ..., batch_invariant: _Optional[bool] = ..., max_nodes_per_row: _Optional[int] = ..., num_held_parameters: _Optional[int] = ..., load_s: _Optional[float] = ..., peak_memory_bytes: _Optional[int] = ..., held_bytes: _Optional[int] = ..., quantization: _Optional[str] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "min_tokens", "seed", "repetition_penalty", "frequency_penalty", "presence_penalty", "bias_ids", "biases")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    min_tokens: int
    seed: int
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    bias_ids: _containers.RepeatedScalarFieldContainer[int]
    biases: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., min_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., bias_ids: _Optional[_Iterable[int]] = ..., biases: _Optional[_Iterable[float]] = ...) -> None: ...

class NewRequest(_message.Message):
    __slots__ = ("request_id", "prompt_len", "sampling", "banned_early", "num_logprobs", "reused_blocks", "token_ids", "grammar", "verification")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    BANNED_EARLY_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    REUSED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    prompt_len: int
    sampling: SamplingParams
    banned_early: _containers.RepeatedScalarFieldContainer[int]
    num_logprobs: int
    reused_blocks: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    grammar: str
    verification: str
    def __init__(self, request_id: _Optional[int] = ..., prompt_len: _Optional[int] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., banned_early: _Optional[_Iterable[int]] = ..., num_logprobs: _Optional[int] = ..., reused_blocks: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., grammar: _Optional[str] = ..., verification: _Optional[str] = ...) -> None: ...

class NodeDraws(_message.Message):
    __slots__ = ("node", "token_ids", "support_ids", "weights")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    node: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    support_ids: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, node: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., support_ids: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class KVCommit(_message.Message):
    __slots__ = ("request_id", "kept_nodes")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KEPT_NODES_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    kept_nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[int] = ..., kept_nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("request_id", "start", "token_ids", "parents", "new_blocks", "first_output", "scored_ids", "draws")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    NEW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SCORED_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAWS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    start: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    new_blocks: _containers.RepeatedScalarFieldContainer[int]
    first_output: int
    scored_ids: _containers.RepeatedScalarFieldContainer[int]
    draws: _containers.RepeatedCompositeFieldContainer[NodeDraws]
    def __init__(self, request_id: _Optional[int] = ..., start: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., new_blocks: _Optional[_Iterable[int]] = ..., first_output: _Optional[int] = ..., scored_ids: _Optional[_Iterable[int]] = ..., draws: _Optional[_Iterable[_Union[NodeDraws, _Mapping]]] = ...) -> None: ...

class StepMessage(_message.Message):
    __slots__ = ("epoch", "step_id", "group", "commits", "releases", "new", "rows", "trims")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TRIMS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step_id: int
    group: int
    commits: _containers.RepeatedCompositeFieldContainer[KVCommit]
    releases: _containers.RepeatedScalarFieldContainer[int]
    new: _containers.RepeatedCompositeFieldContainer[NewRequest]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    trims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., group: _Optional[int] = ..., commits: _Optional[_Iterable[_Union[KVCommit, _Mapping]]] = ..., releases: _Optional[_Iterable[int]] = ..., new: _Optional[_Iterable[_Union[NewRequest, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., trims: _Optional[_Iterable[int]] = ...) -> None: ...

class RowResult(_message.Message):
    __slots__ = ("request_id", "drawn_ids", "logprobs", "num_top", "top_ids", "top_logprobs", "failed_outputs", "undrawn")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DRAWN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOP_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FAILED_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    UNDRAWN_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    drawn_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    num_top: int
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    failed_outputs: _containers.RepeatedScalarFieldContainer[int]
    undrawn: bool
    def __init__(self, request_id: _Optional[int] = ..., drawn_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., num_top: _Optional[int] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., failed_outputs: _Optional[_Iterable[int]] = ..., undrawn: _Optional[bool] = ...) -> None: ...

class StepReply(_message.Message):
    __slots__ = ("epoch", "step_id", "results", "forward_s", "sample_s", "noise_hits", "noise_misses", "started_at", "waited_s", "streamed_bytes")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_S_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_S_FIELD_NUMBER: _ClassVar[int]
    NOISE_HITS_FIELD_NUMBER: _ClassVar[int]
    NOISE_MISSES_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    STREAMED_BYTES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step_id: int
    results: _containers.RepeatedCompositeFieldContainer[RowResult]
    forward_s: float
    sample_s: float
    noise_hits: int
    noise_misses: int
    started_at: float
    waited_s: float
    streamed_bytes: int
    def __init__(self, epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[RowResult, _Mapping]]] = ..., forward_s: _Optional[float] = ..., sample_s: _Optional[float] = ..., noise_hits: _Optional[int] = ..., noise_misses: _Optional[int] = ..., started_at: _Optional[float] = ..., waited_s: _Optional[float] = ..., streamed_bytes: _Optional[int] = ...) -> None: ...

class DraftModelDescription(_message.Message):
    __slots__ = ("name", "vocab_size", "llm_weights_hash", "weights_version", "num_parameters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    LLM_WEIGHTS_HASH_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    vocab_size: int
    llm_weights_hash: str
    weights_version: int
    num_parameters: int
    def __init__(self, name: _Optional[str] = ..., vocab_size: _Optional[int] = ..., llm_weights_hash: _Optional[str] = ..., weights_version: _Optional[int] = ..., num_parameters: _Optional[int] = ...) -> None: ...

class DraftSession(_message.Message):
    __slots__ = ("session_id", "keep_tokens", "token_ids", "prompt_len", "sampling", "banned_early", "max_nodes", "max_depth", "least_probability", "verification")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KEEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    BANNED_EARLY_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    LEAST_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    keep_tokens: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_len: int
    sampling: SamplingParams
    banned_early: _containers.RepeatedScalarFieldContainer[int]
    max_nodes: int
    max_depth: int
    least_probability: float
    verification: str
    def __init__(self, session_id: _Optional[int] = ..., keep_tokens: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., prompt_len: _Optional[int] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., banned_early: _Optional[_Iterable[int]] = ..., max_nodes: _Optional[int] = ..., max_depth: _Optional[int] = ..., least_probability: _Optional[float] = ..., verification: _Optional[str] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("sessions", "tokens_per_s")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[DraftSession]
    tokens_per_s: float
    def __init__(self, sessions: _Optional[_Iterable[_Union[DraftSession, _Mapping]]] = ..., tokens_per_s: _Optional[float] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("session_id", "unknown_session", "token_ids", "parents", "scores", "draws")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_SESSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    DRAWS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    unknown_session: bool
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    draws: _containers.RepeatedCompositeFieldContainer[NodeDraws]
    def __init__(self, session_id: _Optional[int] = ..., unknown_session: _Optional[bool] = ..., token_ids: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ..., draws: _Optional[_Iterable[_Union[NodeDraws, _Mapping]]] = ...) -> None: ...

class DraftReply(_message.Message):
    __slots__ = ("drafts", "weights_version", "noise_hits", "noise_misses")
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    NOISE_HITS_FIELD_NUMBER: _ClassVar[int]
    NOISE_MISSES_FIELD_NUMBER: _ClassVar[int]
    drafts: _containers.RepeatedCompositeFieldContainer[Draft]
    weights_version: int
    noise_hits: int
    noise_misses: int
    def __init__(self, drafts: _Optional[_Iterable[_Union[Draft, _Mapping]]] = ..., weights_version: _Optional[int] = ..., noise_hits: _Optional[int] = ..., noise_misses: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("session_ids",)
    SESSION_IDS_FIELD_NUMBER: _ClassVar[int]
    session_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
