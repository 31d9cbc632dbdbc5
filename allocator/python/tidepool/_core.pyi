# SPDX-License-Identifier: Apache-2.0
# The extension (allocator/python/core.cc). Use the package's own classes: arguments here have no defaults, and
# arrays must be NumPy's.
from typing import Any, ClassVar, Dict, List, Optional, Sequence, Tuple

from numpy import float32, int64
from numpy.typing import NDArray

class ElementType:
    float32: ClassVar[ElementType]
    float16: ClassVar[ElementType]
    bfloat16: ClassVar[ElementType]
    int8: ClassVar[ElementType]
    __members__: ClassVar[Dict[str, ElementType]]

class Optimizer:
    sgd: ClassVar[Optimizer]
    momentum: ClassVar[Optimizer]
    adagrad: ClassVar[Optimizer]
    rowwise_adagrad: ClassVar[Optimizer]
    adam: ClassVar[Optimizer]
    __members__: ClassVar[Dict[str, Optimizer]]

class IdKind:
    dense: ClassVar[IdKind]
    hashed: ClassVar[IdKind]
    __members__: ClassVar[Dict[str, IdKind]]

class Pooling:
    sum: ClassVar[Pooling]
    mean: ClassVar[Pooling]
    __members__: ClassVar[Dict[str, Pooling]]

class InitializerKind:
    zero: ClassVar[InitializerKind]
    uniform: ClassVar[InitializerKind]
    normal: ClassVar[InitializerKind]
    __members__: ClassVar[Dict[str, InitializerKind]]

class Step:
    learning_rate: float
    momentum: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    def __init__(self) -> None: ...

class Initializer:
    def __init__(self, kind: InitializerKind, first: float, second: float, seed: int) -> None: ...

class RowFormat:
    def __init__(self, type: ElementType, optimizer: Optimizer, dim: int) -> None: ...
    @property
    def row_bytes(self) -> int: ...

class TableOptions:
    name: str
    rows: int
    format: RowFormat
    ids: IdKind
    initializer: Initializer
    step: Step
    dram_bytes: int
    def __init__(self) -> None: ...

class Table:
    def read(self, ids: NDArray[int64], out: Optional[NDArray[float32]]) -> NDArray[float32]: ...
    def write(self, ids: NDArray[int64], values: NDArray[float32]) -> None: ...
    def finished(self, batch: int) -> None: ...
    def set_step(self, step: Step) -> None: ...
    def counts(self) -> Dict[str, int]: ...
    def rows(self) -> int: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

class Space:
    def __init__(self, far: List[str], threads: int, timeout_seconds: float) -> None: ...
    def create_table(self, options: TableOptions, tier: int) -> Table: ...
    def close(self) -> None: ...
    @property
    def far_tiers(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def closed(self) -> bool: ...

def bags(calls: Sequence[Tuple[Any, ...]]) -> List[NDArray[float32]]: ...
def updates(calls: Sequence[Tuple[Any, ...]]) -> None: ...
def prefetches(calls: Sequence[Tuple[Table, NDArray[int64]]]) -> List[int]: ...
def parse_size(text: str, whole: int) -> int: ...
def error_code_name(code: int) -> str: ...
