"""What the request manager and the draft models say to each other, as plain dataclasses.

A draft request brings each session up to date and asks for a tree below its last token. Sessions
are a pure function of token ids: a draft model may forget one at any time, says so, and is sent
all of its tokens again. Token ids and scalars for each only; nothing has the vocabulary's size.

`actors.draft_wire` turns these into protos and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.sampling import SamplingParams
from actors.tree import TokenTree
from actors.verification import NodeDraws, Rule


@dataclass(frozen=True)
class DraftSession:
    """One session's part in a draft request."""

    session_id: int
    keep_tokens: int
    """The session's first so many tokens stand; 0 begins it anew."""
    token_ids: tuple[int, ...]
    """They follow the kept ones; the last is the root of the tree."""
    prompt_len: int
    """How many of all tokens are prompt: where `min_tokens` begins to count."""
    sampling: SamplingParams
    max_nodes: int
    max_depth: int
    banned_early: tuple[int, ...] = ()
    """Token ids that cannot be drawn before `sampling.min_tokens` output tokens."""
    least_probability: float = 0.0
    """Nodes that are accepted with a lower one, all ancestors counted, are of no use."""
    verification: Rule = Rule.COUPLED
    """The rule by which the drafts will be verified; it decides how they are drawn."""


@dataclass(frozen=True)
class DraftRequest:
    """Everything for one round of drafting."""

    sessions: tuple[DraftSession, ...] = ()
    tokens_per_s: float = 0.0
    """What all of them together commit: what the time is worth that trees take to grow."""


@dataclass(frozen=True)
class SessionDraft:
    """One session's answer."""

    session_id: int
    unknown_session: bool = False
    """The tokens must be sent again from the start; no tree follows."""
    tree: TokenTree = field(default_factory=TokenTree)
    """Nodes that hang off the context are children of the root; empty while the session catches
    up with a long text."""
    scores: tuple[float, ...] = ()
    """One per node: an estimate of the probability that it is accepted given that its parent is."""
    draws: tuple[NodeDraws, ...] = ()
    """What was drawn below nodes of the tree and below its root, whatever is left of it in the
    tree; only where the rule weighs drafts against what they were drawn from."""


@dataclass(frozen=True)
class DraftReply:
    """The answers, in the order of the request's sessions."""

    drafts: tuple[SessionDraft, ...] = ()
    weights_version: int = 0
    """Of the weights that drew them."""
    noise_hits: int = 0
    """How often a position's noise was at hand."""
    noise_misses: int = 0
    """How often it had to be computed."""


@dataclass(frozen=True)
class DraftModelDescription:
    """What a draft model says of itself."""

    name: str
    vocab_size: int
    """Of the LLM; the ids drafted are all below it."""
    llm_weights_hash: str
    """The LLM that it was tuned for."""
    weights_version: int
    num_parameters: int
    """Its own, without what it shares with the LLM."""
