"""The HTTP face: a FastAPI application over any backend; knows nothing of Ray.

A body is read once, checked by one model, turned into token ids, and answered whole or as a
stream. Prompts and answers are never logged.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request
from opentelemetry.trace import Tracer
from starlette.responses import Response

from actors.errors import InputError
from actors.vocabulary import Vocabulary
from deploy.answers import Answer, Envelope
from deploy.api_keys import ApiKeys
from deploy.backend import Backend
from deploy.doorkeeper import Door, Doorkeeper, HeadAsGet
from deploy.grammar_checks import GrammarCheck, check_here
from deploy.http_errors import ApiError, add_error_handlers, error_frame
from deploy.http_metrics import Counted, HttpMetrics, add_metrics_routes
from deploy.openai_schema import (
    ChatRequest,
    CompletionRequest,
    GenerationFields,
    StreamOptions,
)
from deploy.openapi import ERROR_RESPONSE, describe, generation_route
from deploy.page import add_page
from deploy.prompts import EncodedPrompt, PromptEncoder, Tokenizer
from deploy.readiness import Readiness
from deploy.request_body import read_json_object, validate
from deploy.request_log import Logged, name_request
from deploy.request_spans import TracedBackend, TracedRequests
from deploy.requests import (
    Budget,
    Choice,
    LogprobsWish,
    UnknownModel,
    build_choices,
    chat_budget,
    chat_logprobs,
    check_common,
    completion_budget,
    num_candidates,
)
from deploy.responses import ChatFormat, CompletionFormat, ResponseFormat, to_json
from deploy.settings import ApiSettings
from deploy.streaming import EventStream, until_disconnect
from deploy.structured_output import OutputGrammar, wanted_by
from deploy.unbuilt import CHAT_NEUTRAL, COMPLETION_NEUTRAL, without_unbuilt


def random_seed() -> int:
    """64 random bits, for a request without a seed."""
    return secrets.randbits(64)


def build_app(
    backend: Backend,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    settings: ApiSettings | None = None,
    door: Door | None = None,
    tracer: Tracer | None = None,
    *,
    check_grammar: GrammarCheck = check_here,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
    new_seed: Callable[[], int] = random_seed,
) -> FastAPI:
    """The application.

    Args:
        tokenizer: of `transformers`; used from one thread only.
        vocabulary: the same tokenizer's, as bytes.
        door: lets requests in; by default everybody.
        tracer: makes a span for each request that is traced; None if none is.
        check_grammar: checks what outputs are to follow.
        clock, wall_clock: monotonic and calendar seconds.
        new_seed: where a request's seed comes from if it has none.
    """
    settings = settings or ApiSettings()
    door = door or Door(ApiKeys())
    if tracer is not None:
        backend = TracedBackend(backend)
    readiness = Readiness(backend, settings, clock)
    metrics = HttpMetrics(backend.description.model_name)
    service = _Service(
        backend,
        tokenizer,
        vocabulary,
        settings,
        door,
        readiness,
        check_grammar,
        wall_clock,
        new_seed,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with readiness.running():
            yield

    app = FastAPI(
        title="TreeServe",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    add_error_handlers(app)
    app.add_middleware(Doorkeeper, door=door)
    app.add_middleware(HeadAsGet)
    app.add_middleware(Counted, metrics=metrics)
    app.add_middleware(Logged, clock=clock)
    if tracer is not None:
        model_name = backend.description.model_name
        app.add_middleware(TracedRequests, tracer=tracer, model_name=model_name)
    _add_generation_routes(app, service)
    _add_model_routes(app, backend, created=int(wall_clock()))
    _add_status_routes(app, readiness, door)
    add_metrics_routes(app, backend, metrics)
    if settings.page:
        add_page(app)
    describe(app, backend.description, service.max_choices)
    return app


class _Service:
    """What the generation routes share."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        vocabulary: Vocabulary,
        settings: ApiSettings,
        door: Door,
        readiness: Readiness,
        check_grammar: GrammarCheck,
        wall_clock: Callable[[], float],
        new_seed: Callable[[], int],
    ) -> None:
        self._backend = backend
        self._description = backend.description
        self._encoder = PromptEncoder(tokenizer, vocabulary, self._description)
        self._vocabulary = vocabulary
        self._settings = settings
        limits = (settings.max_choices, self._description.max_places, door.max_places_per_key)
        self.max_choices = min(limit for limit in limits if limit is not None)
        self._readiness = readiness
        self._check_grammar = check_grammar
        self._wall_clock = wall_clock
        self._new_seed = new_seed

    async def complete(self, request: Request) -> Response:
        body = await self._body(request)
        fields = validate(CompletionRequest, without_unbuilt(body, COMPLETION_NEUTRAL))
        check_common(fields, self._description)
        many = isinstance(fields.prompt, list) and bool(fields.prompt)
        many = many and not isinstance(fields.prompt[0], int)
        self._check_num_choices(len(fields.prompt) if many else 1, fields)
        prompts = await self._encoder.completion(fields.prompt, fields.truncate_prompt_tokens)
        form = CompletionFormat(self._vocabulary, with_token_ids=fields.return_token_ids)
        wish = LogprobsWish(fields.logprobs, of_prompt=fields.echo)
        return await self._answer(
            request, fields, prompts, completion_budget(fields), wish, form, echo=fields.echo
        )

    async def chat(self, request: Request) -> Response:
        body = await self._body(request)
        fields = validate(ChatRequest, without_unbuilt(body, CHAT_NEUTRAL))
        check_common(fields, self._description)
        self._check_num_choices(1, fields)
        budget, wish = chat_budget(fields), chat_logprobs(fields)
        prompt = await self._encoder.chat(fields)
        form = ChatFormat(self._vocabulary, with_token_ids=fields.return_token_ids)
        return await self._answer(request, fields, [prompt], budget, wish, form, echo=False)

    async def _body(self, request: Request) -> dict[str, Any]:
        return await read_json_object(request, self._settings.max_body_bytes)

    def _check_num_choices(self, num_prompts: int, fields: GenerationFields) -> None:
        per_prompt = num_candidates(fields)
        if num_prompts * per_prompt > self.max_choices:
            name = "best_of" if per_prompt > fields.n else "n"
            raise InputError(
                f"{num_prompts} prompts with {name} = {per_prompt} ask for more than "
                f"{self.max_choices} outputs",
                name if per_prompt > 1 else "prompt",
            )

    def _check_prompt_tokens(self, choices: Sequence[Choice], n: int) -> None:
        """What can never be queued together is no matter of trying again."""
        num_tokens = sum(len(choice.prompt.token_ids) for choice in choices)
        most = self._description.max_queued_tokens
        if len(choices) > 1 and num_tokens > most:
            raise InputError(
                f"the prompts of all choices have {num_tokens} tokens; at most {most} are taken",
                "n" if n > 1 else "prompt",
            )

    async def _answer(
        self,
        request: Request,
        fields: GenerationFields,
        prompts: list[EncodedPrompt],
        budget: Budget,
        wish: LogprobsWish,
        form: ResponseFormat,
        *,
        echo: bool,
    ) -> Response:
        described = self._description
        response_id = form.id_prefix + uuid4().hex
        name_request(request, response_id)
        request.state.visit.take(len(prompts) * num_candidates(fields))
        grammar = await self._grammar(request, fields)
        choices = build_choices(
            response_id,
            fields,
            prompts,
            budget,
            wish,
            described,
            self._new_seed(),
            grammar,
        )
        self._check_prompt_tokens(choices, fields.n)
        answer = Answer(
            self._backend,
            self._vocabulary,
            choices,
            sum(len(prompt.token_ids) for prompt in prompts),
            form,
            Envelope(
                response_id, int(self._wall_clock()), described.model_name, described.fingerprint
            ),
            echo=echo,
            num_shown=fields.n,
            token_seen=self._readiness.token_seen,
        )
        if not fields.stream:
            body = await until_disconnect(request.receive, answer.whole())
            return Response(body, media_type="application/json")
        frames = answer.frames(fields.stream_options or StreamOptions())
        return EventStream(frames, error_frame)

    async def _grammar(self, request: Request, fields: GenerationFields) -> OutputGrammar:
        wanted = wanted_by(fields)
        if wanted is None:
            return OutputGrammar()
        checking = self._check_grammar(*wanted, request.state.visit.holder)
        source = await until_disconnect(request.receive, checking)
        return OutputGrammar(source, wanted[0])


def _add_generation_routes(app: FastAPI, service: _Service) -> None:
    @app.post("/v1/completions", **generation_route(CompletionRequest))
    async def create_completion(request: Request) -> Response:
        return await service.complete(request)

    @app.post("/v1/chat/completions", **generation_route(ChatRequest))
    async def create_chat_completion(request: Request) -> Response:
        return await service.chat(request)


def _add_model_routes(app: FastAPI, backend: Backend, created: int) -> None:
    described = backend.description
    model = {
        "id": described.model_name,
        "object": "model",
        "created": created,
        "owned_by": "treeserve",
        "max_model_len": described.max_context_tokens,
        "batch_invariant": described.batch_invariant,
        "quantization": described.quantization,
        **({} if described.note is None else {"note": described.note}),
    }

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name:path}", responses={404: ERROR_RESPONSE})
    async def retrieve_model(name: str) -> dict[str, Any]:
        if name != described.model_name:
            raise UnknownModel(name)
        return model


def _add_status_routes(app: FastAPI, readiness: Readiness, door: Door) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process answers; it says nothing of the model."""
        return {"status": "ok"}

    @app.get("/ready", responses={503: ERROR_RESPONSE})
    async def ready() -> Response:
        """A token was generated lately, and requests are taken."""
        if readiness.is_ready() and not door.is_draining:
            return Response(to_json({"status": "ready"}), media_type="application/json")
        why = "shutting down" if door.is_draining else "no token was generated lately"
        return ApiError(503, why, "server_error", code="not_ready").response()
