"""What the next model of a pool learns, and what a pool covers together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from actors.errors import InputError
from actors.ssm.boost_tuning.boosting import Boost, boosted, joined, pool_coverage
from actors.ssm.boost_tuning.checkpoint import Checkpoint
from actors.ssm.boost_tuning.coverage import coverage, first_hits
from actors.ssm.boost_tuning.recipe import Recipe
from actors.ssm.boost_tuning.records import Record, read_weights, save_weights
from actors.ssm.boost_tuning.trainer import Trainer, word_mass
from actors.ssm.model import DraftModel, DraftShape, LLMMatrices
from tests.alone import Alone

VOCAB = 60


def trained(
    records: list[Record], matrices: LLMMatrices, folder: Path, steps: int = 60, seed: int = 0
) -> DraftModel:
    recipe = Recipe(DraftShape(64, 1, 64), cut_size=VOCAB, steps=steps, step_tokens=100, seed=seed)
    checkpoint = Checkpoint(folder / f"{seed}-{steps}.safetensors", recipe)
    trainer = Trainer(recipe, matrices, records, checkpoint, Alone)
    for _ in trainer.run():
        pass
    return trainer.model


def test_hits_are_the_places_that_coverage_counts(
    records: list[Record], matrices: LLMMatrices, tmp_path: Path
) -> None:
    model = trained(records, matrices, tmp_path, steps=25)
    hits = first_hits(model, records)
    assert [len(one) for one in hits] == [record.answer_len for record in records]
    share = np.concatenate(hits).mean()
    assert 0.05 < share < 1.0
    assert share == pytest.approx(coverage(model, records)[0])
    for record, alone in zip(records[:3], hits, strict=False):
        assert (first_hits(model, [record])[0] == alone).mean() > 0.8


def test_places_and_answers_that_are_right_weigh_less(records: list[Record]) -> None:
    first = [np.arange(record.answer_len) % 2 == 0 for record in records]
    second = [np.arange(record.answer_len) == 1 for record in records]
    found = joined(first, second)
    assert found[0][:4].tolist() == [True, True, True, False]
    places = boosted(records, found, Boost.PLACES, 0.25)
    assert places[0].place_weights[:4].tolist() == [0.25, 0.25, 0.25, 1.0]
    answers = boosted(records, found, Boost.ANSWERS, 0.0)
    for record, hits in zip(answers, found, strict=True):
        assert record.place_weights == pytest.approx(1.0 - hits.mean())
    assert all(one.weights is None for one in boosted(records, found, Boost.NONE, 0.0))
    assert records[0].weights is None and (records[0].place_weights == 1.0).all()


def test_what_weighs_nothing_is_not_learnt(
    records: list[Record], matrices: LLMMatrices, tmp_path: Path
) -> None:
    """Words below 30 are got right already; the next model learns those that follow the others."""
    found = [record.tokens[record.prompt_len - 1 : -1] < 30 for record in records]
    weighted = boosted(records, found, Boost.PLACES, 0.0)
    hits = np.concatenate(first_hits(trained(weighted, matrices, tmp_path), records))
    where = np.concatenate(found)
    assert hits[~where].mean() > 2 * hits[where].mean() > 0.0
    mass = word_mass(weighted, VOCAB)
    assert mass.sum() == pytest.approx(float((~where).sum()) * 0.95, rel=0.01)


def test_a_pool_covers_what_one_of_it_covers(
    records: list[Record], matrices: LLMMatrices, tmp_path: Path
) -> None:
    models = [trained(records, matrices, tmp_path, steps=12, seed=seed) for seed in range(3)]
    shares = pool_coverage(models, records)
    hits = np.array([np.concatenate(first_hits(model, records)) for model in models])
    assert shares == pytest.approx([hits[: 1 + place].any(0).mean() for place in range(3)])
    assert shares[2] > shares[0]
    assert pool_coverage(models, []).tolist() == [0.0] * 3


def test_weights_change_what_is_trained_and_nothing_without_them(
    records: list[Record], matrices: LLMMatrices, tmp_path: Path
) -> None:
    even = [np.zeros(record.answer_len, np.bool_) for record in records]
    models = [
        trained(given, matrices, tmp_path / name, steps=5)
        for name, given in (
            ("plain", records),
            ("even", boosted(records, even, Boost.PLACES, 0.0)),
            ("left", boosted(records, [~one for one in even], Boost.PLACES, 0.5)),
        )
    ]
    plain, same, other = (torch.cat([p.flatten() for p in m.parameters()]) for m in models)
    assert torch.equal(plain, same)
    assert not torch.equal(plain, other)


def test_weights_are_read_as_they_were_saved(records: list[Record], tmp_path: Path) -> None:
    found = [np.arange(record.answer_len) % 3 == 0 for record in records]
    weighted = boosted(records, found, Boost.PLACES, 0.25)
    save_weights(tmp_path / "weights", weighted)
    for one, other in zip(read_weights(tmp_path / "weights", records), weighted, strict=True):
        assert (one.place_weights == other.place_weights).all()
        assert (one.tokens == other.tokens).all()
    with pytest.raises(InputError, match="other records"):
        read_weights(tmp_path / "weights", records[1:])
    with pytest.raises(InputError, match="cannot be read"):
        read_weights(tmp_path / "none", records)
