"""The `llm` section of the configuration.

What is not built yet, or not together, is refused by validation, so that no key is silently without
effect.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

Quantization = Literal["none", "int8"]
MAX_REPLICAS = 64


class ReplicaRange(BaseModel):
    """How many request managers there are, by what waits and what runs.

    Attributes:
        min, max: at least and at most so many.
        wait_s: more are started when what waits would wait longer than this, by the prompt tokens
            that wait and by how fast they have left the queue lately.
        occupancy: more are started, too, when a larger share of the places for requests, or of the
            KV blocks, is taken than this; and fewer are kept when the others stay below it.
        up_delay_s, down_delay_s: how long that must hold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    min: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    max: Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
    wait_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    occupancy: Annotated[float, Field(gt=0, le=1)] = 0.8
    up_delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    down_delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 300.0

    @model_validator(mode="after")
    def _is_ordered(self) -> ReplicaRange:
        if self.min > self.max:
            raise ValueError("min must not lie above max")
        return self

    @property
    def is_fixed(self) -> bool:
        """True if the load changes nothing."""
        return self.min == self.max


def _as_range(value: object) -> object:
    """A plain number is a range of one."""
    return {"min": value, "max": value} if type(value) is int else value


class LLMConfig(BaseModel):
    """How the LLM is run.

    Attributes:
        tensor_parallel: ranks that share each layer.
        pipeline_parallel: stages that the layers are split into.
        replicas: request managers, each with an LLM and draft models of its own: so many, or a
            range, within which their number follows the load.
        device: of the ranks; `auto` takes GPUs if each rank can have one, else CPUs.
        offload: where weights are streamed from in every pass, if they do not fit the device: `cpu`
            for host memory, `nvme` for files; `none` leaves them on the device.
        offload_dir: folder for the files of `nvme`; None is one in TreeServe's cache.
        quantization: of the weights of layers and head: `int8`, or `none` for as they are stored.
        start_timeout_s: an actor that takes longer to load and answer is given up.
        step_timeout_s: a step that takes longer counts as lost.
        trace_file: where the manager writes a timeline of its first steps, in Chrome's trace
            format.
        num_threads: CPU threads of a rank; None leaves torch's own choice to a single rank, and
            shares a machine's cores between several.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    pipeline_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    replicas: Annotated[ReplicaRange, BeforeValidator(_as_range)] = ReplicaRange(min=1, max=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    offload: Literal["none", "cpu", "nvme"] = "none"
    offload_dir: Annotated[str, Field(min_length=1)] | None = None
    quantization: Quantization = "none"
    start_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    step_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    trace_file: Annotated[str, Field(min_length=1)] | None = None
    num_threads: Annotated[int, Field(ge=1, le=1024)] | None = None

    @field_validator("offload")
    @classmethod
    def _whole_layers_only(cls, value: str, info: ValidationInfo) -> str:
        if value != "none" and info.data.get("tensor_parallel", 1) > 1:
            raise ValueError(
                "streamed weights are not split: with llm.tensor_parallel above 1 only 'none' works"
            )
        return value

    @field_validator("offload_dir")
    @classmethod
    def _files_only(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("offload", "nvme") != "nvme":
            raise ValueError("only with llm.offload: nvme are there files")
        return value

    @field_validator("quantization")
    @classmethod
    def _not_streamed(cls, value: str, info: ValidationInfo) -> str:
        if value != "none" and info.data.get("offload", "none") != "none":
            raise ValueError(
                "streamed weights are not quantised: with llm.offload only 'none' works"
            )
        return value

    @field_validator("trace_file")
    @classmethod
    def _one_writer(cls, value: str | None, info: ValidationInfo) -> str | None:
        replicas = info.data.get("replicas")
        if value is not None and replicas is not None and replicas.max > 1:
            raise ValueError("several request managers cannot write one file; leave it out")
        return value
