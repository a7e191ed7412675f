"""Text of a wanted length: random common words, or passages of a prompt set one after the other.

Random words hold no long repeats, so drafters that look text up find little in them; with a prompt
set the text reads like it. Equal keys give equal text, which is how prefixes are shared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadtest.tokenizer import CHARACTERS_PER_TOKEN, TextRuler, cut

_WORDS = """
time year people way day man thing woman life child world school state family student
group country problem hand part place case week company system program question work
government number night point home water room mother area money story fact month lot right
study book eye job word business issue side kind head house service friend father power
hour game line end member law car city community name president team minute idea kid body
information back parent face others level office door health person art war history party
result change morning reason research girl guy moment air teacher force education good new
first last long great little own other old right big high different small large next early
young important few public bad same able and the of to in that it for with on as at by
from up about into over after is are was be have do say get make go know take see come
think look want give use find tell ask seem feel try leave call
"""
WORDS = tuple(_WORDS.split())


class Filler:
    """Makes text.

    Args:
        ruler: what a token is.
        seed: of all text made here.
        passages: to draw from; without any, random words.
    """

    def __init__(self, ruler: TextRuler, seed: int, passages: Sequence[str] = ()) -> None:
        self._ruler = ruler
        self._seed = seed
        self._passages = passages

    def text(self, key: tuple[int, ...], num_tokens: int) -> str:
        """About `num_tokens` tokens (exactly, but for the ruler's own edges), by its key."""
        rng = np.random.default_rng([self._seed, *key])
        parts: list[str] = []
        while (missing := num_tokens - len(self._ruler.ends(" ".join(parts)))) > 0:
            parts += self._more(rng, missing)
        return cut(self._ruler, " ".join(parts), num_tokens)

    def fit(self, text: str, key: tuple[int, ...], num_tokens: int) -> str:
        """A text cut or lengthened to `num_tokens`."""
        missing = num_tokens - len(self._ruler.ends(text))
        if missing <= 0:
            return cut(self._ruler, text, num_tokens)
        return cut(self._ruler, f"{text}\n\n{self.text(key, missing)}", num_tokens)

    def _more(self, rng: np.random.Generator, missing: int) -> list[str]:
        """Words, or as many passages as should do: the whole is measured after each handful, not
        after each of them.
        """
        if not self._passages:
            return [WORDS[place] for place in rng.integers(len(WORDS), size=missing)]
        chosen: list[str] = []
        num_characters = 0
        while num_characters < missing * CHARACTERS_PER_TOKEN:
            chosen.append(self._passages[int(rng.integers(len(self._passages)))])
            num_characters += len(chosen[-1]) + 1
        return chosen
