"""Queues and events of torch.cuda, over those of a B200 in software.

Work is done when it is launched, so nothing has to wait; who waits for which queue is kept.
"""

from __future__ import annotations

from typing import Any

import torch

from b200.host.event_clock import EventClock
from b200.host.queues import HOST, Queues
from b200.host.runtime import Runtime
from b200.host.torch.device_arguments import DEVICE, about_device, check_device
from b200.host.torch.work import NOT_PERMITTED, Watch, use


def functions(runtime: Runtime) -> dict[str, Any]:
    Stream.queues, Event.clock = runtime.queues, EventClock(runtime)
    use(Watch(runtime.works, lambda: _Current.queue.cuda_stream))

    def current(device=None):
        check_device(device)
        return _Current.queue

    def synchronize(device=None) -> None:
        check_device(device)
        if runtime.recording is not None:
            raise RuntimeError(NOT_PERMITTED)
        runtime.queues.finished()

    def capturing() -> bool:
        return runtime.capture_of(_Current.queue.cuda_stream) is not None

    return {
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "Event": Event,
        "current_stream": current,
        "default_stream": about_device(DEFAULT),
        "set_stream": _Current.set,
        "stream": lambda stream: StreamContext(stream),
        "StreamContext": StreamContext,
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
    queues = Queues()  # of the runtime, once there is one

    def __init__(
        self, device: Any = None, priority: int = 0, stream_ptr: int | None = None, **_: Any
    ):
        check_device(device)
        if stream_ptr is None:
            Stream._handles += 0x10
            stream_ptr = Stream._handles
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
        self.queues.joins(HOST, self.cuda_stream)

    def wait_event(self, event) -> None:
        event.wait(self)

    def wait_stream(self, stream) -> None:
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
    def __init__(self, stream_ptr: int, device: Any = None, **_: Any):
        super().__init__(device, stream_ptr=stream_ptr)


class _Current:
    queue: Stream = DEFAULT

    @classmethod
    def set(cls, stream: Stream | None) -> None:
        if stream is not None:
            cls.queue = stream


class StreamContext:
    def __init__(self, stream: Stream | None):
        self.stream = stream
        self.before: list[Stream] = []

    def __enter__(self) -> None:
        self.before.append(_Current.queue)
        _Current.set(self.stream)

    def __exit__(self, *_exception: Any) -> None:
        _Current.set(self.before.pop())


class Event:
    clock: EventClock

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, **_: Any):
        self.enable_timing = enable_timing
        self.recorded: tuple[float, int] | None = None
        self.device, self.cuda_event = DEVICE, id(self)

    def record(self, stream=None) -> None:
        self.recorded = self.clock.now()
        Stream.queues.recorded(id(self), (stream or _Current.queue).cuda_stream)

    def wait(self, stream=None) -> None:
        Stream.queues.waits((stream or _Current.queue).cuda_stream, id(self))

    def query(self) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        Stream.queues.waits(HOST, id(self))

    def elapsed_time(self, end_event) -> float:
        """Milliseconds; see EventClock."""
        for event in (self, end_event):
            if not event.enable_timing:
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if event.recorded is None:
                raise ValueError("Both events must be recorded before calculating elapsed time.")
        assert self.recorded is not None
        return self.clock.milliseconds(self.recorded, end_event.recorded)
