"""How a chunk of a stream shows the trees of its steps, to those who ask with `return_trees`."""

from __future__ import annotations

from typing import Any

from actors.request_manager.step_tree import StepTree
from actors.vocabulary import Vocabulary
from deploy.detokenize import token_text

ESTIMATE_DIGITS = 3
SECONDS_DIGITS = 6


def tree_json(vocabulary: Vocabulary, tree: StepTree) -> dict[str, Any]:
    """One step; for the meaning of the fields see `StepTree`. Tokens as text (`token_text`)."""
    return {
        "step": tree.step,
        "tokens": [token_text(vocabulary, token) for token in tree.token_ids],
        "parents": tree.parents,
        "drafters": tree.proposers,
        "estimates": [round(estimate, ESTIMATE_DIGITS) for estimate in tree.estimates],
        "accepted": tree.accepted,
        "committed": [token_text(vocabulary, token) for token in tree.committed_ids],
        "phase_s": {
            phase: round(seconds, SECONDS_DIGITS) for phase, seconds in tree.phase_s.items()
        },
    }
