"""Several processes of one run, or one: what each does of the work, and how they come together.

    rank, size            this process's number, and how many there are
    share(items)          this process's part of the problems: contiguous, groups stay whole
    sum_gradients(...)    adds up an adapter's gradients; there is no wrapper around the model
    total(numbers)        sums of numbers over all processes
    gather(item)          everyone's item, at everyone
    collect(item)         everyone's item, at rank 0
    from_first(item)      rank 0's item, at everyone
    agree(what, value)    the same value everywhere, or an error that names who differs

All processes call these in the same order. Each begins with a meeting (`heartbeat`), so that a
process that died or hangs ends the run with its rank. `Alone` does nothing, and with it every
result is that of a program without processes. This module imports torch only where there are
several.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agon.errors import ConfigError, Preempted, ProcessLost
from agon.heartbeat import Doing, Heartbeat, ranks

if TYPE_CHECKING:
    import torch

    from agon.config import Config

Item = TypeVar("Item")


class Processes(Protocol):
    """All processes of a run, as one of them sees them."""

    rank: int
    size: int

    @property
    def waited(self) -> float:
        """Seconds that this process has waited for others since it last asked."""
        ...

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This process's part of a list, the same at every call; the parts in order are the list.

        Parts differ in length by one at most.
        """
        ...

    def meet(self, place: str) -> None:
        """Wait for all.

        Raises:
            ProcessLost: A process is lost.
            KeyboardInterrupt: Another process was interrupted or preempted.
        """
        ...

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Put the sum of everyone's gradients into everyone's; None counts as zero."""
        ...

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Sums over all processes, in double precision."""
        ...

    def largest(self, number: int) -> int:
        """The largest of all processes' numbers."""
        ...

    def gather(self, item: Item, place: str) -> list[Item]:
        """Everyone's item, by rank, at everyone."""
        ...

    def collect(self, item: Item, place: str) -> list[Item]:
        """Everyone's item, by rank, at rank 0; nothing elsewhere."""
        ...

    def from_first(self, item: Item, place: str) -> Item:
        """Rank 0's item at everyone; what the others give is not looked at."""
        ...

    def agree(self, what: str, value: str) -> None:
        """Check that a value is the same everywhere.

        Raises:
            ProcessLost: It is not; names the ranks that differ from rank 0.
        """
        ...

    def hurry(self) -> None:
        """This process will be killed soon; a signal handler may call it."""
        ...

    def stopping(self, doing: Doing) -> None:
        """Tell the others that this process was interrupted or preempted and meets no more."""
        ...

    def missing(self) -> str | None:
        """After `stopping`: which ranks do not end with this one, in a sentence, or None."""
        ...

    def close(self, error: BaseException | None = None) -> None:
        """Leave; with an error, the others end too and name it."""
        ...


class Alone:
    """One process: nothing to share, nobody to wait for."""

    rank = 0
    size = 1
    waited = 0.0

    def share(self, items: Sequence[Item]) -> list[Item]:
        """All of it."""
        return list(items)

    def meet(self, place: str) -> None:
        """Nobody else comes."""

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """They are the sum."""

    def total(self, numbers: Sequence[float]) -> list[float]:
        """The numbers."""
        return list(numbers)

    def largest(self, number: int) -> int:
        """The number."""
        return number

    def gather(self, item: Item, place: str) -> list[Item]:
        """The item."""
        return [item]

    def collect(self, item: Item, place: str) -> list[Item]:
        """The item."""
        return [item]

    def from_first(self, item: Item, place: str) -> Item:
        """The item."""
        return item

    def agree(self, what: str, value: str) -> None:
        """There is no other opinion."""

    def hurry(self) -> None:
        """Nobody is waited for."""

    def stopping(self, doing: Doing) -> None:
        """Nobody is there to be told."""

    def missing(self) -> str | None:
        """Nobody can be missing."""
        return None

    def close(self, error: BaseException | None = None) -> None:
        """Nothing is open."""


ALONE = Alone()


class Group:
    """Several processes over torch.distributed; implements `Processes`."""

    def __init__(self, silence: float, patience: float) -> None:
        """Find the others of an initialised process group.

        Args:
            silence: Seconds without a sign of life after which a process is lost.
            patience: Seconds that a living process may keep the others waiting.
        """
        import torch.distributed as dist
        from torch._C._distributed_c10d import TCPStore

        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # A store of our own: the launcher's may be held by a process that outlives rank 0, and a
        # client that waits would hold up the process group's own messages.
        host = os.environ.get("MASTER_ADDR", "localhost")
        limit = datetime.timedelta(seconds=silence)
        store = None
        if self.rank == 0:
            store = TCPStore(
                host, 0, self.size, is_master=True, timeout=limit, wait_for_workers=False
            )
        place: list[Any] = [None if store is None else (host, store.port)]
        dist.broadcast_object_list(place, src=0)
        if store is None:
            host, port = place[0]
            store = TCPStore(host, port, self.size, is_master=False, timeout=limit)
        self._stopped = False
        self._heart = Heartbeat(store, self.rank, self.size, silence, patience)
        self.meet("the start")

    @property
    def waited(self) -> float:
        """Seconds that this process has waited for others since it last asked."""
        seconds, self._heart.waited = self._heart.waited, 0.0
        return seconds

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This process's contiguous part."""
        return part(items, self.rank, self.size)

    def meet(self, place: str) -> None:
        """Wait for all."""
        self._heart.meet(place)

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """One sum over all of an adapter's gradients in a row: the same bits at every process."""
        import torch
        import torch.distributed as dist

        flat = torch.cat(
            [
                (torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten()
                for p in parameters
            ]
        )
        self._together("the gradients", lambda: dist.all_reduce(flat))
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, part in zip(parameters, torch.split(flat, sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Sums over all processes."""
        parts = self.gather(list(map(float, numbers)), "the sums")
        return [sum(column) for column in zip(*parts, strict=True)]

    def largest(self, number: int) -> int:
        """The largest number."""
        return max(self.gather(number, "the number of passes"))

    def gather(self, item: Item, place: str) -> list[Item]:
        """Everyone's item at everyone."""
        import torch.distributed as dist

        items: list[Any] = [None] * self.size
        self._together(place, lambda: dist.all_gather_object(items, item))
        return items

    def collect(self, item: Item, place: str) -> list[Item]:
        """Everyone's item at rank 0."""
        import torch.distributed as dist

        items: list[Any] | None = [None] * self.size if self.rank == 0 else None
        self._together(place, lambda: dist.gather_object(item, items, dst=0))
        return items or []

    def from_first(self, item: Item, place: str) -> Item:
        """Rank 0's item at everyone."""
        import torch.distributed as dist

        items: list[Any] = [item]
        self._together(place, lambda: dist.broadcast_object_list(items, src=0))
        return items[0]  # type: ignore[no-any-return]

    def agree(self, what: str, value: str) -> None:
        """Compare with rank 0."""
        values = self.gather(value, f"the comparison of {what}")
        others = [rank for rank, other in enumerate(values) if other != values[0]]
        if others:
            raise ProcessLost(
                f"{what}: {ranks(others)} differ{'' if len(others) > 1 else 's'} from rank 0. "
                "All ranks must run the same versions on the same kind of device, and see the same "
                "files; nothing was saved since, so continue from the last checkpoint"
            )

    def hurry(self) -> None:
        """Allow the others less silence."""
        self._heart.hurry()

    def stopping(self, doing: Doing) -> None:
        """Tell the others."""
        self._stopped = True
        self._heart.tell(doing)

    def missing(self) -> str | None:
        """Which ranks do not end with this one."""
        silent = self._heart.silent()
        return f"{ranks(silent)} gave no sign of life and may have died" if silent else None

    def close(self, error: BaseException | None = None) -> None:
        """Leave the group."""
        import torch.distributed as dist

        if isinstance(error, KeyboardInterrupt):
            kind = isinstance(error, Preempted)
            self.stopping(Doing.PREEMPTED if kind else Doing.INTERRUPTED)
        elif error is not None:
            first = (str(error).strip().splitlines() or [""])[0]
            self._heart.tell(Doing.FAILED, first or type(error).__name__)
        self._heart.close()
        if error is None and not self._stopped:
            dist.destroy_process_group()

    def _together(self, place: str, operation: Callable[[], object]) -> None:
        """Run a collective operation once all are there."""
        self.meet(place)
        try:
            operation()
        except RuntimeError as error:
            raise self._heart.explain(error) from error


def part(items: Sequence[Item], rank: int, size: int) -> list[Item]:
    """The contiguous part of a list that one of so many processes has."""
    count = len(items)
    return list(items[rank * count // size : (rank + 1) * count // size])


def launched() -> int:
    """How many processes a launcher has started, by the environment that torchrun sets."""
    try:
        return int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 1


def check_launcher() -> None:
    """Refuse several processes that were not told of each other: each would train alone.

    Raises:
        ConfigError: MPI or Slurm started several, and WORLD_SIZE is not set.
    """
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        if os.environ.get(name, "1") != "1" and "WORLD_SIZE" not in os.environ:
            raise ConfigError(
                f"the environment has {name} = {os.environ[name]}, but not WORLD_SIZE, so that "
                "every process would train alone: set RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR "
                "and MASTER_PORT in each (recipes/slurm/train.sbatch does), or use torchrun"
            )


def is_first() -> bool:
    """Whether this is the only process, or the one of rank 0, before or after `join`."""
    return launched() == 1 or os.environ.get("RANK", "0") == "0"


def join(config: Config) -> Processes:
    """Join the processes that `accelerate launch` or torchrun has started, or stay alone.

    Raises:
        ConfigError: There are more processes than problems in a step, or they do not find each
            other.
    """
    size = launched()
    if size == 1:
        if config.model.shard:
            raise ConfigError(
                "model.shard = true shares the base among several processes, and this is the only "
                "one: start it with `torchrun -m agon train ...`, or set model.shard = false"
            )
        return ALONE
    count = config.training.problems_per_step
    if count < size:
        raise ConfigError(
            f"training.problems_per_step = {count}, but there are {size} processes, and each needs "
            f"a problem of its own: start at most {count}, or raise training.problems_per_step"
        )
    _initialise(config)
    return Group(config.training.process_timeout, config.training.wait_timeout)


def _initialise(config: Config) -> None:
    """Set up torch's process group through Accelerate, with gloo beside NCCL on GPUs."""
    import torch
    from accelerate import PartialState

    cpu = config.training.device == "cpu" or not torch.cuda.is_available()
    try:
        PartialState(
            cpu=cpu,
            backend="gloo" if cpu else "cpu:gloo,cuda:nccl",
            timeout=datetime.timedelta(seconds=config.training.wait_timeout),
        )
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"the {launched()} processes that WORLD_SIZE promises do not find each other: {first} "
            "Start them with `accelerate launch` or torchrun (docs/scaling.md)"
        ) from error


def joined(parts: Iterable[Sequence[Item]]) -> list[Item]:
    """The parts of a list that the processes had, as one."""
    return [item for part in parts for item in part]
