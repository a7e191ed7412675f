"""`treeserve tune`: distil a draft model (SSM), or a pool of them, from the LLM's own answers.

Steps, each of which goes on where it was when the command is killed and called again in the same
way: answer prompts and score given answers (shard by shard), train (from the last checkpoint),
measure coverage, write the folder. Work files stand in `OUT/work`; the draft itself in `OUT`, those
of a pool in `OUT/ssm-0`, `OUT/ssm-1`, ….

The LLM answers and coverage is measured in this process, on the CPU; models are trained in Ray
actors side by side (`cluster.tune_workers`).
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
from actors.ssm.boost_tuning.lesson import Answers, Lesson
from actors.ssm.boost_tuning.recipe import Progress, Recipe
from actors.ssm.boost_tuning.records import Record, RecordFolder, claim_folder, save_weights
from actors.ssm.folder import LLMIdentity, identify_llm, load_draft, load_matrices, save_draft
from actors.ssm.model import DraftModel, DraftShape
from actors.weight_files import hash_files, weight_files
from cluster.config import load_config
from cluster.models import resolve_model
from cluster.progress import ProgressLine
from cluster.tokenizer import load_tokenizer
from cluster.tune_sets import SetOptions, evaluation_tasks, expand, training_tasks
from cluster.tune_teacher import Task, Teacher
from cluster.tune_workers import Workers, train

ANSWERS, CHECKPOINT = "answers", "checkpoint.safetensors"
EVALUATION_TOKENS = 96
BATCH_ANSWERS = 64
CACHE_TOKENS = 49_152
MAX_POOL = 16
OWN_TERMS = "composed by us from templates and word lists; no terms"


def run(arguments: argparse.Namespace) -> int:
    """Tune one draft model; returns the exit status."""
    config = load_config(arguments.config)
    sets, recipe, terms = _sets(arguments), _recipe(arguments), _terms(arguments.terms)
    _require(1 <= arguments.pool <= MAX_POOL, "--pool", f"between 1 and {MAX_POOL}")
    _require(0 <= arguments.boost_rest <= 1, "--boost-rest", "between 0 and 1")
    _require(arguments.workers is None or arguments.workers > 0, "--workers", "above 0")
    _require(arguments.checkpoint_s >= 0, "--checkpoint-s", "0 or more")
    if config.llm.num_threads is not None:
        torch.set_num_threads(config.llm.num_threads)
    folder = resolve_model(config.model.path).resolve()
    identity = identify_llm(folder)
    _require(recipe.cut_size <= identity.vocab_size, "--cut", f"at most {identity.vocab_size}")
    work: Path = arguments.out.resolve() / "work"
    if arguments.init:
        load_draft(arguments.init, folder)  # an unusable one is told before any work
    claim_folder(work, _settings(identity, sets, recipe, arguments))
    evaluation = _answer(folder, identity, sets, arguments, work)
    answers = Answers(
        (work / ANSWERS, *map(_earlier_answers, arguments.records)),
        identity.weights_hash,
        recipe.seed,
    )
    learnt, held_out = answers.read()
    workers = Workers(arguments.workers, config.llm.device, config.llm.num_threads)
    matrices = load_matrices(folder)
    models: list[DraftModel] = []
    base = Lesson(
        llm=folder,
        answers=answers,
        weights=None,
        recipe=recipe,
        checkpoint=work / CHECKPOINT,
        checkpoint_s=arguments.checkpoint_s,
        initial=arguments.init and arguments.init.resolve(),
    )
    for place, out, lesson, records in _pool(arguments, base, learnt, models):
        _train(lesson, workers, out.name)
        models.append(lesson.saved.model(matrices))
        facts = TuningFacts(
            llm_name=config.model.path,
            llm_hash=identity.weights_hash,
            recipe=lesson.recipe,
            progress=lesson.saved.progress,
            records=records,
            terms={"own": OWN_TERMS, **terms},
            held_out=coverage(models[-1], held_out),
            evaluated=coverage_by_source(models[-1], evaluation),
            place=place,
        )
        save_draft(out, models[-1], identity, 0, write_card(facts))
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
    base: Lesson,
    learnt: Sequence[Record],
    models: Sequence[DraftModel],
) -> Iterator[tuple[PoolPlace | None, Path, Lesson, Sequence[Record]]]:
    """For each draft model where it stands in the pool, its folder, how it is trained, and the
    records with their weights.

    Args:
        base: of a model by itself.
        models: grows with each that has been trained.
    """
    if arguments.pool == 1:
        yield None, arguments.out, base, learnt
        return
    work = base.checkpoint.parent
    boost, rest = Boost(arguments.boost), arguments.boost_rest
    found = [np.zeros(record.answer_len, np.bool_) for record in learnt]
    for index in range(arguments.pool):
        name = f"ssm-{index}"
        records = boosted(learnt, found, boost, rest) if index else learnt
        weights = work / f"{name}.weights.safetensors"
        save_weights(weights, records)
        lesson = replace(
            base,
            weights=weights,
            recipe=replace(base.recipe, seed=base.recipe.seed + index),
            checkpoint=work / f"{name}.safetensors",
        )
        yield PoolPlace(index, arguments.pool, boost, rest), arguments.out / name, lesson, records
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


def _answer(
    folder: Path,
    identity: LLMIdentity,
    sets: SetOptions,
    arguments: argparse.Namespace,
    work: Path,
) -> list[Record]:
    """Makes the records to train on that are not there yet; returns those to measure on."""
    loaded = load_tokenizer(folder)
    tasks = training_tasks(sets, loaded.tokenizer)
    teacher = Teacher(folder, loaded.vocabulary.eos_ids, CACHE_TOKENS)
    training = RecordFolder(work / ANSWERS, identity.weights_hash)
    most_tokens = arguments.generate_tokens
    _fill(training, teacher, tasks, arguments.answer_tokens, most_tokens, "answers")
    evaluation = RecordFolder(work / "evaluation", identity.weights_hash)
    measured = evaluation_tasks(sets, loaded.tokenizer)
    _fill(evaluation, teacher, measured, EVALUATION_TOKENS, None, "evaluation answers")
    return evaluation.read()


def _earlier_answers(out: Path) -> Path:
    """Where another run of this command had the LLM's answers."""
    folder = out.resolve() / "work" / ANSWERS
    _require(folder.is_dir(), "--records", f"folders that this command wrote to, not {out}")
    return folder


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


def _train(lesson: Lesson, workers: Workers, name: str) -> None:
    """Train to the end, if that has not been done."""
    if lesson.saved.progress.is_done:
        return
    line = ProgressLine(f"training {name}")

    def show(progress: Progress) -> None:
        per_second = progress.answer_tokens / max(progress.trained_s, 1e-3)
        note = f"step {progress.step:,}, loss {progress.loss:.3f}, {per_second:,.0f} tokens/s"
        line.show(progress.share, note)

    train(lesson, workers, show)
