"""The software switch in C++: see soft_switch/src/server.hpp. Addresses are integers in host byte order."""

from typing import Final

class JobCounters:
    packets: Final[list[int]]
    results: Final[int]
    tensor_last: Final[list[int]]
    contributions: Final[list[int]]

class ServerStats:
    threads: Final[int]
    transport: Final[str]
    cpu_seconds: Final[float]
    datagrams_received: Final[int]
    received_by_thread: Final[list[int]]
    datagrams_passed: Final[int]
    datagrams_sent: Final[int]
    receive_calls: Final[int]
    send_calls: Final[int]
    send_failures: Final[int]
    stray: Final[JobCounters]

class SwitchServer:
    def __init__(
        self,
        *,
        address: int,
        port: int,
        ports: int,
        threads: int,
        slots: int,
        lanes_max: int,
        jobs_max: int,
        receive_buffer_bytes: int,
        spin_us: int,
        transport: str,
    ) -> None: ...
    local: Final[tuple[int, int]]
    def admit(
        self,
        *,
        job: int,
        key: int,
        threads: int,
        port_offset: int,
        lanes: int,
        slot_base: int,
        slots: int,
        endpoints: list[tuple[int, int]],
        results_group: tuple[int, int],
        parent: tuple[int, int],
        number_at_parent: int,
    ) -> None: ...
    def configure(
        self,
        *,
        job: int,
        key: int,
        threads: int,
        port_offset: int,
        lanes: int,
        slot_base: int,
        slots: int,
        endpoints: list[tuple[int, int]],
        contributors: list[int],
        sources: list[tuple[int, int]],
        receivers: int,
        results_group: tuple[int, int],
        parent: tuple[int, int],
        number_at_parent: int,
    ) -> None: ...
    def reset(self) -> None: ...
    def evict(self, job: int) -> bool: ...
    def counters(self, job: int) -> JobCounters: ...
    def stats(self) -> ServerStats: ...
    def stop(self) -> None: ...
