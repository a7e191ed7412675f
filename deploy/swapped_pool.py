"""Draft models that were put in the place of a configuration's, kept for the manager's next life.

A manager that dies is started again with the configuration that it was deployed with; which draft
models have followed those of it since is known to the cluster. It holds for that configuration
alone: one that is deployed anew, with any change, is taken at its word. Ends with the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter

from actors.ssm.config import SSMConfig
from cluster import ray_api
from cluster.config import Config, with_ssms

SSMS = TypeAdapter(tuple[SSMConfig, ...])


def keep(config: Config, ssms: Sequence[SSMConfig]) -> None:
    """Note that these draft models run now. Raises PeerError."""
    ray_api.remember(_key(config), SSMS.dump_json(tuple(ssms)))


def with_kept(config: Config) -> Config:
    """The configuration with the draft models that are to run. Raises PeerError."""
    kept = ray_api.recall(_key(config))
    return config if kept is None else with_ssms(config, SSMS.validate_json(kept))


def _key(config: Config) -> str:
    return f"ssms of {config.digest}"
