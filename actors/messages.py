"""What the request manager and the LLM ranks say to each other, as plain dataclasses.

One ordered stream of `StepMessage`s goes to every rank; the last pipeline stage answers each with
a `StepReply`. Inside a step the order is: commits (copy to contiguous slots) → trims → releases →
new requests (so a preempted one can come back under its number, with blocks that are filled
already) → block grants → writes and the forward pass. Token IDs and per-token scalars only: nothing
here has the size of the vocabulary or of a hidden state.

`actors.wire` turns these into protos and back.
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.sampling import SamplingParams
from actors.tree import TokenTree
from actors.verification import NodeDraws, Rule

MAX_GRAMMAR_BYTES = 1 << 16


@dataclass(frozen=True)
class NewRequest:
    """A request that the ranks have not seen in this epoch (or since it was released)."""

    request_id: int
    """The manager's own number for it; unique within an epoch."""
    prompt_len: int
    """Tokens of the prompt: where the output, and so `min_tokens` and penalties, begin."""
    sampling: SamplingParams
    banned_early: tuple[int, ...] = ()
    """Token ids that cannot be drawn before `sampling.min_tokens` output tokens (EOS, stops)."""
    num_logprobs: int | None = None
    """None: none wanted; k: the drawn token's log-probability and the top k at each node."""
    reused_blocks: tuple[int, ...] = ()
    """KV blocks that begin its block table and are full of its first tokens' KV already, computed
    for another request or for this one before; nobody writes into them."""
    token_ids: tuple[int, ...] = ()
    """Prompt and output as they are now, if `needs_text`; what comes later is known from rows and
    commits."""
    grammar: str = ""
    """What the output must follow, as source text (`actors.grammar`); empty for anything."""
    verification: Rule = Rule.COUPLED
    """The rule by which drafts are verified."""

    @property
    def needs_text(self) -> bool:
        """True if its draws depend on which tokens came before."""
        return self.sampling.penalizes or bool(self.grammar)


@dataclass(frozen=True)
class KVCommit:
    """Which nodes of the request's last row became committed tokens."""

    request_id: int
    kept_nodes: tuple[int, ...]
    """Indices into the last row's tree, ascending; their KV moves to contiguous slots from
    that row's `start` on, the rest is forgotten."""


@dataclass(frozen=True)
class Row:
    """One request's share of a step: a run of tokens, or a root with a tree of drafts."""

    request_id: int
    start: int
    """Number of committed KV slots before this row; node i is written to slot start + i and has
    position start + depth(i)."""
    tree: TokenTree
    """The tokens to run; node 0 hangs off the committed prefix."""
    new_blocks: tuple[int, ...] = ()
    """KV blocks granted with this row, appended to the request's block table."""
    first_output: int = 0
    """Nodes from this one on are sampled; `len(tree)` for a prefill chunk that is not the last."""
    scored_ids: tuple[int, ...] = ()
    """For prompt log-probabilities: token ids whose own log-probabilities are wanted instead of
    the drawn tokens', for the output nodes from the first on; nodes beyond them report the drawn
    token's."""
    draws: tuple[NodeDraws, ...] = ()
    """What draft models drew below nodes of the row, all of it, whatever is left of it in the tree;
    only where the rule weighs drafts against what they were drawn from."""

    @property
    def num_outputs(self) -> int:
        return len(self.tree) - self.first_output


@dataclass(frozen=True)
class StepMessage:
    """Everything that the ranks need for one forward pass."""

    epoch: int
    """A higher epoch than the last makes the ranks forget every request and block."""
    step_id: int
    """Counts up from 0 within an epoch; ranks run strictly in this order."""
    group: int = 0
    """Which of the groups in flight this step belongs to (for traces)."""
    commits: tuple[KVCommit, ...] = ()
    trims: tuple[int, ...] = ()
    """Requests whose blocks beyond the last committed token are taken back."""
    releases: tuple[int, ...] = ()
    """Requests to forget; their blocks may be granted again from this very step on."""
    new: tuple[NewRequest, ...] = ()
    rows: tuple[Row, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(row.tree) for row in self.rows)


@dataclass(frozen=True)
class TopLogprobs:
    """The most probable tokens at one node, best first, by the LLM's raw logits."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def first(self, count: int) -> TopLogprobs:
        """The best `count` of them."""
        return TopLogprobs(self.token_ids[:count], self.logprobs[:count])


@dataclass(frozen=True)
class RowResult:
    """What the LLM drew at each output node of a row, in node order."""

    request_id: int
    drawn_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    """Of the drawn token (or of `scored_ids`), from the raw logits; empty if not wanted."""
    top: tuple[TopLogprobs, ...] = ()
    failed_outputs: tuple[int, ...] = ()
    """Output nodes, by their number among these, that the request's grammar forbids, or at which
    it needed too much work: what was drawn there means nothing."""
    undrawn: bool = False
    """True if the request's grammar is not compiled yet: nothing was drawn, and the last token of
    the row has to be run again."""


@dataclass(frozen=True)
class StepReply:
    """The last stage's answer to one step."""

    epoch: int
    step_id: int
    results: tuple[RowResult, ...] = ()
    """One per row that has outputs, in row order."""
    forward_s: float = 0.0
    """Seconds spent inside the model's forward pass."""
    sample_s: float = 0.0
    """Seconds spent choosing tokens from the logits."""
    noise_hits: int = 0
    """How often a position's noise was at hand."""
    noise_misses: int = 0
    """How often it had to be computed."""
    started_at: float = 0.0
    """When the step began, in seconds since 1970 by the clock of the rank's machine."""
    waited_s: float = 0.0
    """Seconds of `forward_s` in which the rank waited for the stage before."""
    streamed_bytes: int = 0
    """Bytes of weights that were brought to the device, where they do not stay there."""


@dataclass(frozen=True)
class LLMDescription:
    """What a rank says of the model it serves, once, before the first step."""

    model_id: str
    vocab_size: int
    max_context_tokens: int
    num_kv_blocks: int
    kv_block_tokens: int
    num_parameters: int
    weights_hash: str
    """Of the weight files; drafts name the hash they were tuned for."""
    dtype: str
    device: str
    backend: str
    """`fused` or `stock`."""
    batch_invariant: bool
    """True if a row's logits are bit for bit independent of what else is in the step; probed."""
    max_nodes_per_row: int = 1024
    """Of a row whose tree branches; chains may be longer."""
    num_held_parameters: int = 0
    """How many of the parameters this rank holds."""
    load_s: float = 0.0
    """Seconds that it took to load them."""
    peak_memory_bytes: int = 0
    """What the rank's process had resident at most by then."""
    held_bytes: int = 0
    """What the parameters that this rank holds take."""
    quantization: str = "none"
    """Of the weights: `none` or `int8`."""

    @property
    def max_request_tokens(self) -> int:
        """Prompt and output of one request at most: the model's context, or the whole KV cache."""
        return min(self.max_context_tokens, self.num_kv_blocks * self.kv_block_tokens)
