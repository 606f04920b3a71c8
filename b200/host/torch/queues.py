"""Queues and events of torch.cuda, over those of a B200 in software.

Work is done when it is launched, so nothing has to wait; who waits for which queue is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from b200.host.event_clock import Clock
from b200.host.queues import HOST, Queues
from b200.host.runtime import Runtime
from b200.host.torch.device_arguments import DEVICE, about_device, check_device
from b200.host.torch.work import NOT_PERMITTED, Watch, use


def functions(runtime: Runtime) -> dict[str, Any]:
    """The functions of torch.cuda about queues and events."""
    queues = _CurrentQueue()
    context = _queue_context(queues)
    Stream.queues = runtime.queues
    use(Watch(runtime.works, lambda: queues.current.cuda_stream))

    def current(device=None):
        check_device(device)
        return queues.current

    def synchronize(device=None):
        check_device(device)
        if runtime.recording is not None:
            raise RuntimeError(NOT_PERMITTED)
        runtime.queues.finished()

    def capturing() -> bool:
        return runtime.capture_of(queues.current.cuda_stream) is not None

    return {
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "Event": event_type(Clock(runtime), runtime.queues, lambda: queues.current),
        "current_stream": current,
        "default_stream": about_device(DEFAULT),
        "set_stream": queues.set,
        "stream": lambda stream: context(stream),
        "StreamContext": context,
        "get_stream_from_external": ExternalStream,
        "is_current_stream_capturing": capturing,
        "synchronize": synchronize,
        "_sleep": lambda cycles: None,
    }


class Stream:
    """A queue. Launches of all queues run one after the other, in the order of their calls; who
    waits for which is kept in `queues`.
    """

    _handles = 0x1000
    queues: Queues | None = None  # of the runtime

    def __init__(self, device: Any = None, priority: int = 0, stream_ptr: int | None = None, **_):
        check_device(device)
        if stream_ptr is None:
            Stream._handles += 0x10
            stream_ptr = Stream._handles
            if self.queues is not None:
                self.queues.made(stream_ptr, non_blocking=True)  # as PyTorch makes them
        self.cuda_stream = self.stream_id = stream_ptr
        self.device, self.priority = DEVICE, priority
        self.device_index, self.device_type = 0, 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={DEVICE} cuda_stream={self.cuda_stream:#x}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def query(self) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        if self.queues is not None:
            self.queues.joins(HOST, self.cuda_stream)

    def wait_event(self, event) -> None:
        event.wait(self)

    def wait_stream(self, stream) -> None:
        if self.queues is not None:
            self.queues.joins(self.cuda_stream, stream.cuda_stream)

    def record_event(self, event=None) -> Any:
        event = event or torch.cuda.Event()
        event.record(self)  # pyright: ignore[reportArgumentType]  a queue of this GPU
        return event

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5


DEFAULT = Stream(stream_ptr=0)


class ExternalStream(Stream):
    """A queue that somebody else made."""

    def __init__(self, stream_ptr: int, device: Any = None, **_):
        super().__init__(device, stream_ptr=stream_ptr)


class _CurrentQueue:
    """The current queue."""

    def __init__(self) -> None:
        self.current = DEFAULT

    def set(self, stream: Stream | None) -> None:
        if stream is not None:
            self.current = stream


def _queue_context(queues: _CurrentQueue) -> type:
    """torch.cuda.StreamContext over `queues`."""

    class StreamContext:
        """Inside, another queue is the current one."""

        def __init__(self, stream: Stream | None):
            self.stream = stream
            self.before: list = []

        def __enter__(self) -> None:
            self.before.append(queues.current)
            queues.set(self.stream)

        def __exit__(self, *_exception) -> None:
            queues.set(self.before.pop())

    return StreamContext


def event_type(clock: Clock, waits: Queues, current: Callable[[], Any]) -> type:
    """torch.cuda.Event over `clock`. current: the queue that a call means which names none."""

    class Event:
        """A point in the order of launches."""

        def __init__(
            self,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            **_,
        ):
            self.enable_timing = enable_timing
            self.recorded: tuple[float, int] | None = None
            self.device, self.cuda_event = DEVICE, id(self)

        def record(self, stream=None) -> None:
            self.recorded = clock.now()
            waits.recorded(id(self), (stream or current()).cuda_stream)

        def wait(self, stream=None) -> None:
            waits.waits((stream or current()).cuda_stream, id(self))

        def query(self) -> bool:
            self.synchronize()
            return True

        def synchronize(self) -> None:
            waits.waits(HOST, id(self))

        def elapsed_time(self, end_event) -> float:
            """Milliseconds; see Clock."""
            for event in (self, end_event):
                if not event.enable_timing:
                    raise ValueError(
                        "Both events must be created with argument 'enable_timing=True'."
                    )
                if event.recorded is None:
                    raise ValueError(
                        "Both events must be recorded before calculating elapsed time."
                    )
            start, end = self.recorded, end_event.recorded
            assert start is not None and end is not None
            return clock.milliseconds(start, end)

    return Event
