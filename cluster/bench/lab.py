"""One loaded LLM, and engines over it in this process: without Ray, gRPC and HTTP.

Each engine has a KV cache and drafters of its own, so that nothing is learnt across them; one
thread runs the LLM's steps for all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import torch
from prometheus_client import CollectorRegistry

from actors.llm.loading import DTYPES, LoadedModel, load_model
from actors.request_manager.config import SpeculationConfig
from actors.request_manager.drafter_names import SSM
from actors.request_manager.drafters import DRAFTERS
from actors.request_manager.engine import Engine
from actors.request_manager.ports import Drafter
from actors.ssm.speculator import SpeculatorOptions
from cluster.bench.local_drafts import LocalDraftModel
from cluster.bench.prefixes import local_llm
from cluster.config import Config
from cluster.metrics import Metrics
from cluster.observed import ObservedDrafter
from cluster.tokenizer import load_encoder, load_tokenizer

KV_BYTES = 1 << 28


class Lab:
    """Engines over one model.

    Args:
        config: of which `model` and `scheduler` count.
        path: the LLM's folder.
        loaded: the LLM.
    """

    def __init__(self, config: Config, path: Path, loaded: LoadedModel) -> None:
        self._config = config
        self._path = path
        self._loaded = loaded
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llm")
        # It has its number of threads from here on, whatever draft models choose for theirs.
        self._thread.submit(torch.get_num_threads).result()
        vocabulary = load_tokenizer(path).vocabulary
        self._language = (vocabulary, load_encoder(path, vocabulary))

    @classmethod
    def load(cls, config: Config, path: Path) -> Lab:
        """With the LLM of a configuration, on the CPU."""
        loaded = load_model(path, DTYPES[config.model.dtype], torch.device("cpu"))
        return cls(config, path, loaded)

    @asynccontextmanager
    async def engine(
        self,
        speculation: SpeculationConfig,
        models: Mapping[str, SpeculatorOptions] | None = None,
    ) -> AsyncIterator[Engine]:
        """A running engine.

        Args:
            speculation: its section of the configuration.
            models: the draft models that stand for `ssm` among its drafters, by name.
        """
        async with AsyncExitStack() as resources:
            drafters: list[Drafter] = []
            for name in speculation.drafters:
                if name != SSM:
                    drafters.append(DRAFTERS[name](speculation, *self._language))
                    continue
                for label, options in (models or {}).items():
                    model = LocalDraftModel(label, options)
                    resources.callback(model.close)
                    drafters.append(model)
            engine = await self._engine(speculation, drafters)
            await engine.start()
            resources.push_async_callback(engine.stop)
            yield engine

    async def _engine(self, speculation: SpeculationConfig, drafters: list[Drafter]) -> Engine:
        llm = local_llm(self._config, self._loaded, self._thread, KV_BYTES)
        names = tuple(drafter.name for drafter in drafters)
        metrics = Metrics(CollectorRegistry(), self._config.model.name, names)
        return Engine(
            llm,
            await llm.describe(),
            self._language[0],
            speculation,
            self._config.scheduler,
            [ObservedDrafter(drafter, metrics) for drafter in drafters],
            metrics,
        )
