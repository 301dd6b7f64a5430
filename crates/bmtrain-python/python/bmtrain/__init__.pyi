import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Optional, TypedDict, Union, final, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Unpack

__version__: str

_Path = Union[str, os.PathLike[str]]
_Head = Literal["lm", "mlm", "nsp", "cls", "regression", "tokens", "qa", "none"]
_DType = Literal["f32", "bf16", "f16"]
_Task = Literal["classification", "regression", "language", "seq2seq"]
_LabelKind = Literal["classes", "values", "next-tokens", "predicted", "token-classes", "spans", "target"]
_Ids = Union[npt.NDArray[np.integer[Any]], Sequence[int]]

class Error(Exception): ...
class ArgumentError(Error): ...
class DataError(Error): ...
class ModelError(Error): ...
class OutputError(Error): ...
class DivergedError(Error): ...

class _GenerateOptions(TypedDict, total=False):
    max_new_tokens: int
    min_new_tokens: int
    greedy: bool
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    beams: int
    length_penalty: float
    repetition_penalty: float
    no_repeat: int
    stop: list[str]

class _AdapterSettings(TypedDict, total=False):
    method: Literal["none", "lora", "ia3", "prompt", "prefix", "bottleneck"]
    path: _Path
    quantize: Literal["none", "nf4", "as-stored"]
    rank: int
    alpha: float
    rank_stabilized: bool
    dora: bool
    dropout: float
    targets: list[str]
    feed_forward: list[str]
    trained: list[str]
    virtual_tokens: int
    prompt_text: str
    prompt_stacks: Literal["first", "both"]
    bottleneck_size: int
    activation: str
    placement: Literal["both", "attention", "feed-forward"]

class _Message(TypedDict):
    role: str
    content: str

@final
class Model:
    def __new__(
        cls,
        path: _Path,
        *,
        head: Optional[_Head] = None,
        labels: Optional[Sequence[str]] = None,
        dtype: Optional[_DType] = None,
        device: str = "cpu",
        threads: Optional[int] = None,
        seed: int = 1234,
        recompute: bool = False,
        frozen: Optional[Sequence[str]] = None,
        only: Optional[Sequence[str]] = None,
        revision: Optional[str] = None,
        adapter: Union[_Path, Sequence[_Path], _AdapterSettings, None] = None,
        adapter_weights: Optional[Sequence[float]] = None,
    ) -> Model: ...
    def forward(self, batch: Batch) -> dict[str, Any]: ...
    def dataset(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        task: Optional[_Task] = None,
        text: str = "text",
        text_pair: Optional[str] = None,
        label: str = "label",
        prompt: Optional[str] = None,
        target: str = "target",
        max_length: Optional[int] = None,
        target_length: Optional[int] = None,
        name: str = "records",
    ) -> Dataset: ...
    @overload
    def generate(
        self, prompt: str, *, on_text: Optional[Callable[[str], object]] = None, **options: Unpack[_GenerateOptions]
    ) -> str: ...
    @overload
    def generate(
        self, prompt: list[str], *, on_text: Optional[Callable[[str], object]] = None,
        **options: Unpack[_GenerateOptions],
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompt: _Ids, *, on_text: Optional[Callable[[str], object]] = None, **options: Unpack[_GenerateOptions]
    ) -> npt.NDArray[np.int64]: ...
    def chat(
        self,
        messages: list[_Message],
        *,
        on_text: Optional[Callable[[str], object]] = None,
        **options: Unpack[_GenerateOptions],
    ) -> str: ...
    @overload
    def predict(
        self,
        inputs: Union[str, Mapping[str, Any]],
        *,
        text: Optional[str] = None,
        text_pair: Optional[str] = None,
        tokens: Optional[str] = None,
        max_length: Optional[int] = None,
        threshold: float = 0.5,
        stride: int = 128,
        answer_length: int = 30,
        may_be_none: bool = False,
        prompt_name: Optional[str] = None,
        batch_size: int = 32,
    ) -> dict[str, Any]: ...
    @overload
    def predict(
        self,
        inputs: Iterable[Union[str, Mapping[str, Any]]],
        *,
        text: Optional[str] = None,
        text_pair: Optional[str] = None,
        tokens: Optional[str] = None,
        max_length: Optional[int] = None,
        threshold: float = 0.5,
        stride: int = 128,
        answer_length: int = 30,
        may_be_none: bool = False,
        prompt_name: Optional[str] = None,
        batch_size: int = 32,
    ) -> list[dict[str, Any]]: ...
    def encode(
        self, text: str, pair: Optional[str] = None, *, max_length: Optional[int] = None
    ) -> npt.NDArray[np.int64]: ...
    def decode(self, ids: _Ids, *, skip_special: bool = True) -> str: ...
    def save(self, directory: _Path, *, dtype: Optional[_DType] = None, merged: bool = False) -> None: ...
    def parameter(self, name: str) -> npt.NDArray[np.float32]: ...
    @property
    def parameter_names(self) -> list[str]: ...
    @property
    def trainable_names(self) -> list[str]: ...
    @property
    def adapter(self) -> Optional[str]: ...
    @property
    def parameter_count(self) -> int: ...
    @property
    def labels(self) -> list[str]: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def directory(self) -> pathlib.Path: ...
    @property
    def initialized(self) -> list[str]: ...
    @property
    def notes(self) -> list[str]: ...

@final
class Batch:
    def __new__(
        cls,
        input_ids: npt.ArrayLike,
        *,
        attention_mask: Optional[npt.ArrayLike] = None,
        token_type_ids: Optional[npt.ArrayLike] = None,
        labels: Optional[npt.ArrayLike] = None,
        label_kind: Optional[_LabelKind] = None,
    ) -> Batch: ...
    @property
    def input_ids(self) -> npt.NDArray[np.int64]: ...
    @property
    def attention_mask(self) -> npt.NDArray[np.uint8]: ...
    @property
    def token_type_ids(self) -> Optional[npt.NDArray[np.int64]]: ...
    @property
    def labels(self) -> Optional[npt.NDArray[Any]]: ...
    @property
    def samples(self) -> list[int]: ...
    @property
    def rows(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def tokens(self) -> int: ...

@final
class Dataset:
    def batches(
        self,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 1234,
        epoch: int = 0,
        drop_last: bool = True,
        length_grouped: bool = False,
        packing: bool = False,
    ) -> BatchIterator: ...
    @property
    def labels(self) -> list[str]: ...
    @property
    def tokens(self) -> int: ...
    @property
    def truncated(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def __len__(self) -> int: ...

@final
class BatchIterator(Iterator[Batch]):
    def __next__(self) -> Batch: ...
    def __len__(self) -> int: ...

@final
class Trainer:
    def __new__(cls, model: Model, *, steps: int, **settings: Any) -> Trainer: ...
    def step(self, batches: Union[Batch, Iterable[Batch]]) -> StepResult: ...

@final
class StepResult:
    @property
    def step(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def grad_norm(self) -> float: ...
    @property
    def lr(self) -> float: ...
    @property
    def loss_scale(self) -> float: ...
    @property
    def skipped(self) -> bool: ...
    @property
    def samples(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...

def finetune(
    recipe: Optional[_Path] = None, settings: Optional[dict[str, Any]] = None, *, overwrite: bool = False
) -> Optional[pathlib.Path]: ...
def read_metrics(run: _Path, kind: Optional[str] = None) -> list[dict[str, Any]]: ...
