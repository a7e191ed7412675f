"""How many draft nodes a step should carry, and which.

A step that carries k draft nodes beside its R rows is expected to commit R + Σ pᵢ tokens, where pᵢ
is the probability that node i is accepted (the product of the conditional acceptances along its
path), and to take T(R + k) seconds. Nodes are taken in order of pᵢ as long as that raises expected
tokens per second. pᵢ never exceeds its parent's, so what is taken is a tree; where guesses are poor
or batches large nothing is taken, and the step is plain decoding.

T is learnt from the steps themselves, the acceptances from what became of the drafts. Much is known
before a drafter is asked: nodes that cannot be worth their time need not be drafted, a request of a
batch that has good guesses already needs no more (`draft_gain`), and a drafter whose answers take
longer than they save is left alone (`drafter_worth`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple, Protocol

from actors.request_manager.draft_gain import DraftGain, Share
from actors.request_manager.drafter_names import drop_all_of
from actors.request_manager.drafter_worth import DrafterWorth, StepKind, StepOutcome
from actors.request_manager.merge import MergedTree


class StepCost:
    """Seconds of a step as a linear function of its tokens, learnt as the machine drifts.

    Least squares over exponentially forgotten steps. The slope is held near 3 % of a step per
    token until the steps seen differ enough in size to tell: few do where a pass is cheap, and
    where it is dear (weights that are streamed, large models) the truth is far below.
    """

    FORGET = 0.98
    PRIOR_SLOPE = 0.03
    PRIOR_WEIGHT = 16.0
    LEAST_SLOPE = 0.0001
    HICCUP = 3.0

    def __init__(self) -> None:
        self._weight = 0.0
        self._mean_tokens = 0.0
        self._mean_s = 0.0
        self._variance = 0.0
        self._covariance = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from one step; steps over three times the estimate are the machine's hiccups."""
        if self._weight > 1.0 and seconds > self.HICCUP * self.seconds(num_tokens):
            seconds = self.HICCUP * self.seconds(num_tokens)
        self._weight = self.FORGET * self._weight + 1.0
        share = 1.0 / self._weight
        off_tokens = num_tokens - self._mean_tokens
        off_s = seconds - self._mean_s
        self._mean_tokens += share * off_tokens
        self._mean_s += share * off_s
        self._variance += share * ((1.0 - share) * off_tokens * off_tokens - self._variance)
        self._covariance += share * ((1.0 - share) * off_tokens * off_s - self._covariance)

    @property
    def seconds_per_token(self) -> float:
        """What one more token in a step costs; never nothing."""
        prior = self.PRIOR_SLOPE * self._mean_s
        # Its weight is that of so much spread in all steps together, not in each.
        weight = self.PRIOR_WEIGHT / max(self._weight, 1.0)
        slope = (self._covariance + weight * prior) / (self._variance + weight)
        return max(slope, self.LEAST_SLOPE * self._mean_s, 1e-9)

    def seconds(self, num_tokens: int) -> float:
        """Estimate for a step of so many tokens; 0 before anything was observed."""
        estimate = self._mean_s + self.seconds_per_token * (num_tokens - self._mean_tokens)
        return max(estimate, 0.1 * self._mean_s)


class Rate:
    """Tokens a second over recent steps."""

    FORGET = 1 / 32

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def tokens_per_s(self) -> float:
        """0 before anything was observed."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        self._tokens += self.FORGET * (num_tokens - self._tokens)
        self._seconds += self.FORGET * (seconds - self._seconds)


class Acceptance:
    """Turns the drafters' own scores into measured probabilities of acceptance.

    For each drafter, depth and score a node falls into a cell that counts how often its like was
    accepted once its parent was; a cell without counts believes the drafter.
    """

    FORGET = 0.995
    PRIOR_WEIGHT = 6.0
    SCORE_CELLS = 12
    DEPTH_CELLS = 6

    def __init__(self) -> None:
        self._cells: defaultdict[tuple[str, int, int], list[float]] = defaultdict(
            lambda: [0.0, 0.0]
        )

    def probability(self, drafter: str, depth: int, score: float) -> float:
        """Probability that a node is accepted given that its parent is."""
        tried, accepted = self._cells[self._cell(drafter, depth, score)]
        return (accepted + self.PRIOR_WEIGHT * score) / (tried + self.PRIOR_WEIGHT)

    def observe(self, drafter: str, depth: int, score: float, accepted: bool) -> None:
        """Count a node whose parent was accepted. `score` is the drafter's own."""
        cell = self._cells[self._cell(drafter, depth, score)]
        cell[0] = self.FORGET * cell[0] + 1.0
        cell[1] = self.FORGET * cell[1] + accepted

    def begin_anew(self, drafter: str) -> None:
        """Believe the drafter again: it is another one."""
        drop_all_of(drafter, self._cells)

    def _cell(self, drafter: str, depth: int, score: float) -> tuple[str, int, int]:
        level = min(int(score * self.SCORE_CELLS), self.SCORE_CELLS - 1)
        return drafter, min(depth, self.DEPTH_CELLS - 1), level


class Bar(NamedTuple):
    """What drafts have to be worth.

    Attributes:
        least_probability: no node will be taken whose drafter gives its path a lower one, but by a
            wrong score.
        tokens_per_s: what all requests together commit: what a drafter's time is worth.
    """

    least_probability: float = 0.0
    tokens_per_s: float = 0.0


class Budget(Protocol):
    """Decides who is asked for drafts, and which draft nodes a step carries."""

    def considers(self, drafter: str, kind: StepKind) -> bool:
        """False if a drafter's answers are not worth waiting for in such a step."""

    def asks(self, drafter: str, promises: Mapping[int, float], num_draws: int) -> set[int]:
        """The requests for which a drafter's answer is worth waiting for; called once a step.

        Args:
            promises: by request id, tokens that its other drafts are expected to bring.
            num_draws: requests, with a tree or without, that get a token from the step anyway.
        """

    def bar(self, num_draws: int, num_tokens: int) -> Bar:
        """For the drafts of a step that has so many draws and tokens without them."""

    def select(
        self, trees: Mapping[int, MergedTree], num_draws: int, num_tokens: int, room: int
    ) -> dict[int, MergedTree]:
        """Trees cut down to what is worth its time, empty ones left out.

        Args:
            trees: by request id.
            num_draws: as above.
            num_tokens: what the step carries beside drafts.
            room: draft nodes at most.
        """

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step."""

    def observe_share(self, drafter: str, promise: float, share: Share, num_draws: int) -> None:
        """Learn what a drafter that was asked for a request added to the step."""

    def begin_anew(self, drafter: str) -> None:
        """Forget what was learnt of a drafter."""


class FixedBudget:
    """Takes whatever the drafters bring, the most probable nodes first, while there is room."""

    def considers(self, drafter: str, kind: StepKind) -> bool:
        return True

    def asks(self, drafter: str, promises: Mapping[int, float], num_draws: int) -> set[int]:
        return set(promises)

    def bar(self, num_draws: int, num_tokens: int) -> Bar:
        return Bar()

    def select(
        self, trees: Mapping[int, MergedTree], num_draws: int, num_tokens: int, room: int
    ) -> dict[int, MergedTree]:
        return _restricted(trees, _by_priority(trees)[: max(room, 0)])

    def observe(self, outcome: StepOutcome) -> None:
        """A fixed budget learns nothing."""

    def observe_share(self, drafter: str, promise: float, share: Share, num_draws: int) -> None:
        """Nor from this."""

    def begin_anew(self, drafter: str) -> None:
        """It has nothing to forget."""


class AdaptiveBudget:
    """Takes nodes as long as they raise expected tokens per second."""

    FORGET = 1 / 32
    FORGET_ASKING = 1 / 8
    DOUBT = 0.5
    """Drafters compare the bar with their own scores, which may be too low by such a factor."""

    def __init__(self) -> None:
        self.cost = StepCost()
        self._worth = DrafterWorth()
        self._gain = DraftGain()
        self._asking_s: dict[tuple[str, int], float] = {}  # a request's share, by their number
        self._beside_s = 0.0  # what a step takes beside the LLM, drafting included
        self._rates: defaultdict[int, Rate] = defaultdict(Rate)  # by size of batch

    def considers(self, drafter: str, kind: StepKind) -> bool:
        return self._worth.pays(drafter, kind)

    def asks(self, drafter: str, promises: Mapping[int, float], num_draws: int) -> set[int]:
        if num_draws == 1:
            # Trials of the drafter as a whole judge this better: estimates from the few steps in
            # which it is asked take its cold caches for its price, and it is never asked again.
            return set(promises)
        tokens_per_s = self._rate(num_draws).tokens_per_s

        def price(count: int) -> float:
            return count * self._asking_s.get((drafter, count.bit_length()), 0.0) * tokens_per_s

        return self._gain.choose(drafter, promises, price)

    def bar(self, num_draws: int, num_tokens: int) -> Bar:
        # A node that is taken raises tokens per second, and with it the bar for the next one: the
        # bar is lowest when there are none.
        seconds = self._beside_s + self.cost.seconds(num_tokens)
        bar = num_draws * self.cost.seconds_per_token / seconds if seconds else 0.0
        return Bar(min(self.DOUBT * bar, 1.0), self._rate(num_draws).tokens_per_s)

    def select(
        self, trees: Mapping[int, MergedTree], num_draws: int, num_tokens: int, room: int
    ) -> dict[int, MergedTree]:
        expected_tokens = float(num_draws)
        seconds = self._beside_s + self.cost.seconds(num_tokens)
        per_token = self.cost.seconds_per_token
        taken: list[_Candidate] = []
        for node in _by_priority(trees):
            if len(taken) >= room:
                break
            # Level by level a better node may still follow; one below this node is no better.
            if node.probability * seconds <= expected_tokens * per_token:
                continue
            expected_tokens += node.probability
            seconds += per_token
            taken.append(node)
        return _restricted(trees, taken)

    def observe(self, outcome: StepOutcome) -> None:
        if not outcome.num_tokens:
            return  # releases alone: the LLM has not run
        self.cost.observe(outcome.num_tokens, outcome.step_s)
        if outcome.only_decodes:
            self._rate(outcome.num_draws).observe(outcome.num_committed, outcome.total_s)
            self._observe_asking(outcome)
        beside_s = outcome.total_s - outcome.step_s
        self._beside_s += self.FORGET * (beside_s - self._beside_s)
        self._worth.observe(outcome)

    def observe_share(self, drafter: str, promise: float, share: Share, num_draws: int) -> None:
        nodes_s = share.num_nodes * self.cost.seconds_per_token
        price = nodes_s * self._rate(num_draws).tokens_per_s
        self._gain.observe(drafter, promise, share.num_accepted - price)

    def begin_anew(self, drafter: str) -> None:
        self._worth.begin_anew(drafter)
        self._gain.begin_anew(drafter)
        drop_all_of(drafter, self._asking_s)

    def _rate(self, num_draws: int) -> Rate:
        return self._rates[num_draws.bit_length()]

    def _observe_asking(self, outcome: StepOutcome) -> None:
        for drafter, num_requests in outcome.answered.items():
            key = drafter, num_requests.bit_length()
            seconds = outcome.asking_s.get(drafter, 0.0) / num_requests
            known = self._asking_s.get(key, seconds)
            # Time varies little: a few answers tell, were it not for the machine's hiccups.
            seconds = min(seconds, StepCost.HICCUP * known)
            self._asking_s[key] = known + self.FORGET_ASKING * (seconds - known)


BUDGETS: dict[str, Callable[[], Budget]] = {"adaptive": AdaptiveBudget, "fixed": FixedBudget}


class _Candidate(NamedTuple):
    probability: float
    request_id: int
    node: int


def _by_priority(trees: Mapping[int, MergedTree]) -> list[_Candidate]:
    """All nodes, the most probable first; of trees that must be cut level by level, the first level
    first. Parents before children (the sort is stable)."""
    nodes = [
        (priority, _Candidate(tree.path_scores[node], request_id, node))
        for request_id, tree in trees.items()
        for node, priority in enumerate(tree.priorities)
    ]
    return [candidate for _, candidate in sorted(nodes, key=itemgetter(0))]


def _restricted(
    trees: Mapping[int, MergedTree], taken: Iterable[_Candidate]
) -> dict[int, MergedTree]:
    nodes: defaultdict[int, list[int]] = defaultdict(list)
    for candidate in taken:
        nodes[candidate.request_id].append(candidate.node)
    return {
        request_id: trees[request_id].restricted(sorted(kept)) for request_id, kept in nodes.items()
    }
