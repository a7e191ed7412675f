"""A draft model that serves sessions: requests in, trees out.

A long text that is new is cached bit by bit, over several requests, so that it never keeps other
sessions waiting for long; until then its session gets an empty tree. Not safe for use from several
threads at once; knows no transport.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from actors.decoder.attention_groups import Span
from actors.decoder.native.draws import gumbel_maker
from actors.drafts import (
    DraftModelDescription,
    DraftReply,
    DraftRequest,
    DraftSession,
    SessionDraft,
)
from actors.errors import ProtocolError
from actors.logit_steps import Occurrences
from actors.noise import NoiseSource
from actors.ssm.candidates import CandidateRanker, DrawRules
from actors.ssm.config import SSMConfig
from actors.ssm.expansion import Sprout, catch_up, expand
from actors.ssm.folder import DraftConfig, load_draft
from actors.ssm.growth import BestFirst, Growth, Policy, Static
from actors.ssm.inference import FusedDraft
from actors.ssm.model import DraftModel
from actors.ssm.pass_worth import PassWorth
from actors.ssm.sessions import Session, SessionStore
from actors.tree import TokenTree

MAX_CATCH_UP_TOKENS = 512
"""Tokens that one request may cache beside its trees."""

MAX_PENDING_TOKENS = 32
"""A session with more tokens that are not cached yet is not ready for a tree."""


@dataclass(frozen=True)
class SpeculatorOptions:
    """What a draft model is told when it starts.

    Attributes:
        path: its folder.
        llm_path: the LLM's folder.
        ssm: the configuration's entry.
        expansion: `best_first`, or the widths of a static tree.
        dtype: to compute in.
        index: the draft model's place among those of the configuration.
    """

    path: Path
    llm_path: Path
    ssm: SSMConfig
    expansion: str | tuple[int, ...] = "best_first"
    dtype: torch.dtype = torch.bfloat16
    index: int = 0


def load_speculator(options: SpeculatorOptions) -> Speculator:
    """Load a draft model for an LLM. Raises ModelError if it cannot be used with it."""
    torch.set_num_threads(options.ssm.num_threads)
    model, config = load_draft(options.path, options.llm_path)
    return Speculator(model, config, options)


class Speculator:
    """A draft model with its sessions.

    Args:
        model: with its weights; may be dropped afterwards.
        config: what its folder says of it.
        options: limits and policy.
    """

    def __init__(self, model: DraftModel, config: DraftConfig, options: SpeculatorOptions) -> None:
        self._model = FusedDraft(model, options.dtype)
        self._ssm = options.ssm
        self._policy = policy_of(options.expansion)
        cut_ids, vocab_size = self._model.cut_ids, self._model.vocab_size
        self.noise = NoiseSource(vocab_size, cut_ids.numpy(), maker=gumbel_maker)
        self._ranker = CandidateRanker(cut_ids, vocab_size, self.noise, options.index)
        self._store = SessionStore(
            self._model.kv_shape, self._model.dtype, options.ssm.kv_memory_bytes
        )
        self._worth = PassWorth()
        _warm_up(self._model, self._store, options.ssm.max_nodes)
        self._description = DraftModelDescription(
            name=options.path.name,
            vocab_size=self._model.vocab_size,
            llm_weights_hash=config.llm.weights_hash,
            weights_version=config.weights_version,
            num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        )

    def describe(self) -> DraftModelDescription:
        return self._description

    def draft(self, request: DraftRequest) -> DraftReply:
        """Bring the request's sessions up to date and draft a tree for each that is ready.

        Raises:
            ProtocolError: the request is wrong in itself; no session has changed.
        """
        _check(request, self._model.vocab_size)
        with torch.inference_mode():
            sessions = self._sync(request)
            ready = self._catch_up(sessions)
            sprouts = {
                asked.session_id: self._sprout(asked, session)
                for asked, session in zip(request.sessions, sessions, strict=True)
                if session in ready
            }
            if sprouts:
                self._grow(list(sprouts.values()), request.tokens_per_s)
        drafts = tuple(_answers(request.sessions, sessions, sprouts))
        return DraftReply(drafts, self._description.weights_version, *self.noise.take_counts())

    def release(self, session_ids: Sequence[int]) -> None:
        """Forget sessions; unknown ones are no fault."""
        for session_id in session_ids:
            self._store.release(session_id)

    def _sync(self, request: DraftRequest) -> list[Session | None]:
        in_use = frozenset(asked.session_id for asked in request.sessions)
        return [
            self._store.sync(asked.session_id, asked.keep_tokens, asked.token_ids, in_use)
            for asked in request.sessions
        ]

    def _catch_up(self, sessions: Sequence[Session | None]) -> list[Session]:
        """Cache what may be cached in one request; returns the sessions that are ready."""
        room = MAX_CATCH_UP_TOKENS
        ready = []
        for session in filter(None, sessions):
            behind = len(session.pending) - 1
            if behind >= MAX_PENDING_TOKENS and room:
                catch_up(self._model, self._store, session, min(behind, room))
                room -= min(behind, room)
            if len(session.pending) <= MAX_PENDING_TOKENS:
                ready.append(session)
        return ready

    def _grow(self, sprouts: Sequence[Sprout], tokens_per_s: float) -> None:
        # A static tree has the shape that it was asked to have, whatever it costs.
        worth_per_s = tokens_per_s if self._policy.chooses else 0.0
        expand(self._model, self._ranker, self._store, sprouts, self._worth, worth_per_s)

    def _sprout(self, asked: DraftSession, session: Session) -> Sprout:
        occurrences = None
        if asked.sampling.penalizes:
            occurrences = Occurrences.none(self._model.vocab_size)
            occurrences.add(0, session.token_ids, asked.prompt_len)
        rules = DrawRules(
            asked.sampling, asked.prompt_len, asked.banned_early, occurrences, asked.verification
        )
        max_nodes = min(asked.max_nodes, self._ssm.max_nodes)
        max_depth = min(asked.max_depth, self._ssm.max_depth)
        least = asked.least_probability if self._policy.chooses else 0.0
        growth = Growth(self._policy, max_nodes, max_depth, least, rules.weighs_draws)
        return Sprout(session, rules, growth)


def _warm_up(model: FusedDraft, store: SessionStore, max_rows: int) -> None:
    """Run every usual number of rows once: the CPU's kernels are made at first use."""
    with torch.inference_mode():
        for num_rows in range(1, max_rows + 1):
            span = Span(TokenTree.chain([0] * num_rows), 0, 0, store.tree_slots)
            model.logits(model.forward([span], store.cache))


def policy_of(expansion: str | tuple[int, ...]) -> Policy:
    """The policy that a configuration names."""
    return BestFirst() if isinstance(expansion, str) else Static(expansion)


def _answers(
    asked: Sequence[DraftSession],
    sessions: Sequence[Session | None],
    sprouts: dict[int, Sprout],
) -> Iterator[SessionDraft]:
    for one, session in zip(asked, sessions, strict=True):
        sprout = sprouts.get(one.session_id)
        if sprout is not None:
            yield SessionDraft(one.session_id, False, *sprout.growth.result())
        else:
            # A session that was sent whole is not unknown: there is no room for it.
            yield SessionDraft(one.session_id, session is None and one.keep_tokens > 0)


def _check(request: DraftRequest, vocab_size: int) -> None:
    """Raises ProtocolError for what would be wrong whatever the sessions hold."""
    if not (math.isfinite(request.tokens_per_s) and request.tokens_per_s >= 0.0):
        raise ProtocolError("tokens_per_s is not a rate")
    seen: set[int] = set()
    for asked in request.sessions:
        if asked.session_id in seen:
            raise ProtocolError(f"session {asked.session_id} is asked for twice")
        seen.add(asked.session_id)
        if not asked.keep_tokens + len(asked.token_ids):
            raise ProtocolError(f"session {asked.session_id} has no tokens")
        if asked.max_nodes < 1 or asked.max_depth < 1:
            raise ProtocolError(f"session {asked.session_id} asks for no tree")
        if not 0.0 <= asked.least_probability <= 1.0:
            raise ProtocolError(f"session {asked.session_id} has no sensible least probability")
        ids = (*asked.token_ids, *asked.banned_early)
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            raise ProtocolError(f"session {asked.session_id} names a token that the LLM lacks")
