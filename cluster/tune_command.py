"""`treeserve tune`: distil a draft model (SSM), or a pool of them, from the LLM's own answers.

Steps, each of which goes on where it was when the command is killed and called again in the same
way: answer prompts and score given answers (shard by shard), train (from the last checkpoint),
measure coverage, write the folder. Work files stand in `OUT/work`; the draft itself in `OUT`, those
of a pool in `OUT/ssm-0`, `OUT/ssm-1`, ….

Runs in this process on the CPU, without a cluster.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from actors.errors import InputError
from actors.ssm.boost_tuning.boosting import Boost, boosted, joined, pool_coverage
from actors.ssm.boost_tuning.card import PoolPlace, TuningFacts, coverage_row, write_card
from actors.ssm.boost_tuning.coverage import Shares, coverage, coverage_by_source, first_hits
from actors.ssm.boost_tuning.records import Record, RecordFolder, claim_folder
from actors.ssm.boost_tuning.trainer import Progress, Recipe, Trainer
from actors.ssm.folder import LLMIdentity, identify_llm, load_draft, load_matrices, save_draft
from actors.ssm.model import DraftModel, DraftShape
from actors.weight_files import hash_files, weight_files
from cluster.config import load_config
from cluster.models import resolve_model
from cluster.progress import ProgressLine
from cluster.tokenizer import load_tokenizer
from cluster.tune_sets import SetOptions, evaluation_tasks, expand, training_tasks
from cluster.tune_teacher import Task, Teacher

ANSWERS = "answers"
EVALUATION_TOKENS = 96
BATCH_ANSWERS = 64
CACHE_TOKENS = 49_152
MAX_POOL = 16
HELD_OUT_EVERY = 25
OWN_TERMS = "composed by us from templates and word lists; no terms"


def run(arguments: argparse.Namespace) -> int:
    """Tune one draft model; returns the exit status."""
    config = load_config(arguments.config)
    sets, recipe, terms = _sets(arguments), _recipe(arguments), _terms(arguments.terms)
    _require(1 <= arguments.pool <= MAX_POOL, "--pool", f"between 1 and {MAX_POOL}")
    _require(0 <= arguments.boost_rest <= 1, "--boost-rest", "between 0 and 1")
    if config.llm.num_threads is not None:
        torch.set_num_threads(config.llm.num_threads)
    folder = resolve_model(config.model.path)
    identity = identify_llm(folder)
    _require(recipe.cut_size <= identity.vocab_size, "--cut", f"at most {identity.vocab_size}")
    work: Path = arguments.out / "work"
    initial = load_draft(arguments.init, folder)[0] if arguments.init else None
    claim_folder(work, _settings(identity, sets, recipe, arguments))
    training, evaluation = _answers(folder, identity, sets, arguments, work)
    for earlier in arguments.records:
        training += _earlier_answers(earlier, identity)
    learnt, held_out = _divide(training, recipe.seed)
    matrices = load_matrices(folder)
    models: list[DraftModel] = []
    for place, out, checkpoint, records, own in _pool(arguments, recipe, learnt, models):
        model, progress = _train(Trainer(own, matrices, records, checkpoint, initial), out.name)
        models.append(model)
        facts = TuningFacts(
            llm_name=config.model.path,
            llm_hash=identity.weights_hash,
            recipe=own,
            progress=progress,
            records=records,
            terms={"own": OWN_TERMS, **terms},
            held_out=coverage(model, held_out),
            evaluated=coverage_by_source(model, evaluation),
            place=place,
        )
        save_draft(out, model, identity, 0, write_card(facts))
        print(f"| {out.name}: coverage of the LLM's first word, % | top 1 | 2 | 3 | 4 | 5 |")
        for name, shares in {"held out": facts.held_out, **facts.evaluated}.items():
            print(coverage_row(name, shares))
    if len(models) > 1:
        print("| the first words of the first 1, 2, … models cover, % |")
        for name, shares in _coverage_together(models, held_out, evaluation).items():
            print(coverage_row(name, shares))
    return 0


def _pool(
    arguments: argparse.Namespace,
    recipe: Recipe,
    learnt: Sequence[Record],
    models: Sequence[DraftModel],
) -> Iterator[tuple[PoolPlace | None, Path, Path, Sequence[Record], Recipe]]:
    """For each draft model where it stands in the pool, its folder and checkpoint, what it learns
    from, and its recipe.

    Args:
        models: grows with each that has been trained.
    """
    work: Path = arguments.out / "work"
    if arguments.pool == 1:
        yield None, arguments.out, work / "checkpoint.safetensors", learnt, recipe
        return
    boost, rest = Boost(arguments.boost), arguments.boost_rest
    found = [np.zeros(record.answer_len, np.bool_) for record in learnt]
    for index in range(arguments.pool):
        name = f"ssm-{index}"
        yield (
            PoolPlace(index, arguments.pool, boost, rest),
            arguments.out / name,
            work / f"{name}.safetensors",
            boosted(learnt, found, boost, rest) if index else learnt,
            replace(recipe, seed=recipe.seed + index),
        )
        found = joined(found, first_hits(models[-1], learnt))


def _coverage_together(
    models: Sequence[DraftModel], held_out: Sequence[Record], evaluation: Sequence[Record]
) -> dict[str, Shares]:
    """Of the pool: on what was held out, and by evaluation set."""
    sets = {"held out": list(held_out)}
    for record in evaluation:
        sets.setdefault(record.source, []).append(record)
    return {name: pool_coverage(models, records) for name, records in sets.items()}


def _settings(
    identity: LLMIdentity, sets: SetOptions, recipe: Recipe, arguments: argparse.Namespace
) -> dict[str, str]:
    """What the work in a folder depends on."""
    return {
        "llm": identity.weights_hash,
        "sets": repr(sets),
        "recipe": repr(recipe),
        "answer tokens": str(arguments.answer_tokens),
        "init": hash_files(weight_files(arguments.init)) if arguments.init else "",
        "records": repr(arguments.records),
        "pool": repr((arguments.pool, arguments.boost, arguments.boost_rest)),
    }


def _recipe(arguments: argparse.Namespace) -> Recipe:
    _require(arguments.width > 0 and arguments.width % 64 == 0, "--width", "a multiple of 64")
    for name in ("layers", "ff", "cut", "steps", "answer_tokens", "matrix_rate"):
        _require(getattr(arguments, name) > 0, f"--{name.replace('_', '-')}", "above 0")
    for name in ("minutes", "generate_tokens"):
        limit = getattr(arguments, name)
        _require(limit is None or limit > 0, f"--{name.replace('_', '-')}", "above 0")
    _require(arguments.seed >= 0, "--seed", "0 or more")
    return Recipe(
        shape=DraftShape(arguments.width, arguments.layers, arguments.ff),
        cut_size=arguments.cut,
        steps=arguments.steps,
        matrix_rate=arguments.matrix_rate,
        seed=arguments.seed,
        minutes=arguments.minutes,
    )


def _sets(arguments: argparse.Namespace) -> SetOptions:
    _require(arguments.own_prompts >= 0, "--own-prompts", "0 or more")
    _require(0 <= arguments.sampled <= 1, "--sampled", "between 0 and 1")
    return SetOptions(
        answers=expand(arguments.data),
        prompts=expand(arguments.prompts),
        num_own_prompts=arguments.own_prompts,
        evaluation=expand(arguments.evaluate),
        sampled_share=arguments.sampled,
        seed=arguments.seed,
    )


def _terms(pairs: Sequence[str]) -> Mapping[str, str]:
    for pair in pairs:
        _require("=" in pair, "--terms", f"SET=TEXT, not {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs)


def _require(holds: bool, name: str, what: str) -> None:
    if not holds:
        raise InputError(f"{name}: must be {what}", param=name)


def _answers(
    folder: Path,
    identity: LLMIdentity,
    sets: SetOptions,
    arguments: argparse.Namespace,
    work: Path,
) -> tuple[list[Record], list[Record]]:
    """Records to train on and to measure on; makes those that are not there yet."""
    loaded = load_tokenizer(folder)
    tasks = training_tasks(sets, loaded.tokenizer)
    teacher = Teacher(folder, loaded.vocabulary.eos_ids, CACHE_TOKENS)
    training = RecordFolder(work / ANSWERS, identity.weights_hash)
    most_tokens = arguments.generate_tokens
    _fill(training, teacher, tasks, arguments.answer_tokens, most_tokens, "answers")
    evaluation = RecordFolder(work / "evaluation", identity.weights_hash)
    measured = evaluation_tasks(sets, loaded.tokenizer)
    _fill(evaluation, teacher, measured, EVALUATION_TOKENS, None, "evaluation answers")
    return training.read(), evaluation.read()


def _earlier_answers(out: Path, identity: LLMIdentity) -> list[Record]:
    """What another run of this command had the LLM answer."""
    folder = out / "work" / ANSWERS
    _require(folder.is_dir(), "--records", f"folders that this command wrote to, not {out}")
    return RecordFolder(folder, identity.weights_hash).read()


def _fill(
    records: RecordFolder,
    teacher: Teacher,
    tasks: Sequence[Task],
    answer_tokens: int,
    most_tokens: int | None,
    title: str,
) -> None:
    """Run the batches that have no shard yet; batch i becomes shard i."""
    progress = ProgressLine(title)
    batches = teacher.split(tasks, BATCH_ANSWERS, answer_tokens)
    for number, batch in enumerate(batches):
        if number < records.num_shards:
            continue
        if most_tokens is not None and records.num_answer_tokens >= most_tokens:
            break
        records.add(teacher.answer(batch, answer_tokens, seed=number))
        progress.show((number + 1) / len(batches), f"{records.num_answer_tokens:,} tokens")


def _divide(records: Sequence[Record], seed: int) -> tuple[list[Record], list[Record]]:
    """Records to learn from, and those held out of them."""
    order = np.random.default_rng(seed).permutation(len(records)).tolist()
    if len(records) <= HELD_OUT_EVERY:
        raise InputError(f"{len(records)} answers are too few to learn from")
    num_held_out = len(records) // HELD_OUT_EVERY
    divided = [records[index] for index in order]
    return divided[num_held_out:], divided[:num_held_out]


def _train(trainer: Trainer, name: str) -> tuple[DraftModel, Progress]:
    line = ProgressLine(f"training {name}")
    for progress in trainer.run():
        per_second = progress.answer_tokens / max(progress.trained_s, 1e-3)
        note = f"step {progress.step:,}, loss {progress.loss:.3f}, {per_second:,.0f} tokens/s"
        line.show(progress.share, note)
    return trainer.model, trainer.progress
