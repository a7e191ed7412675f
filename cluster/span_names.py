"""Names of the attributes of spans.

`gen_ai.*`, `http.*`, `url.*` and `error.type` are OpenTelemetry's semantic conventions. Those for
generative AI are still in flux and live in a module that is private to the library, so they are
written down here, and a test compares them. `treeserve.*` are our own.
"""

from __future__ import annotations

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
MAX_TOKENS = "gen_ai.request.max_tokens"
TEMPERATURE = "gen_ai.request.temperature"
TOP_P = "gen_ai.request.top_p"
TOP_K = "gen_ai.request.top_k"
CHOICE_COUNT = "gen_ai.request.choice.count"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"

HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
URL_PATH = "url.path"
URL_SCHEME = "url.scheme"
ERROR_TYPE = "error.type"

REQUEST_ID = "treeserve.request.id"
LLM_STEPS = "treeserve.llm_steps"
STEP_ID = "treeserve.step.id"
STEP_GROUP = "treeserve.step.group"
BATCH_REQUESTS = "treeserve.batch.requests"
BATCH_TOKENS = "treeserve.batch.tokens"
"""Of the whole batch, draft nodes counted in."""
RUN_TOKENS = "treeserve.tokens.run"
DRAFT_NODES = "treeserve.tree.nodes"
ACCEPTED_TOKENS = "treeserve.tokens.accepted"
COMMITTED_TOKENS = "treeserve.tokens.committed"
DRAFTER = "treeserve.drafter"
DRAFTER_OUTCOME = "treeserve.drafter.outcome"
FORWARD_S = "treeserve.llm.forward_s"
SAMPLE_S = "treeserve.llm.sample_s"

FIRST_TOKEN = "first token"
"""An event of a request's span and of each of its outputs'."""
