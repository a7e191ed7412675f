"""The `llm` section of the configuration.

What is not built yet, or not together, is refused by validation, so that no key is silently without
effect.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Quantization = Literal["none", "int8"]


class LLMConfig(BaseModel):
    """How the LLM is run.

    Attributes:
        tensor_parallel: ranks that share each layer.
        pipeline_parallel: stages that the layers are split into.
        replicas: request managers, each with an LLM of its own; only 1 is built.
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
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    offload: Literal["none", "cpu", "nvme"] = "none"
    offload_dir: Annotated[str, Field(min_length=1)] | None = None
    quantization: Quantization = "none"
    start_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    step_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    trace_file: Annotated[str, Field(min_length=1)] | None = None
    num_threads: Annotated[int, Field(ge=1, le=1024)] | None = None

    @field_validator("replicas")
    @classmethod
    def _single_replica_only(cls, value: int) -> int:
        if value != 1:
            raise ValueError("several request managers are not built yet; leave it 1")
        return value

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
