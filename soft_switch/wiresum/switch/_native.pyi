"""The software switch in C++: see soft_switch/src/server.hpp. Addresses are integers in host byte order."""

class JobCounters:
    @property
    def packets(self) -> list[int]: ...
    @property
    def results(self) -> int: ...
    @property
    def tensor_last(self) -> list[int]: ...
    @property
    def contributions(self) -> list[int]: ...

class ServerStats:
    @property
    def threads(self) -> int: ...
    @property
    def transport(self) -> str: ...
    @property
    def cpu_seconds(self) -> float: ...
    @property
    def datagrams_received(self) -> int: ...
    @property
    def received_by_thread(self) -> list[int]: ...
    @property
    def datagrams_passed(self) -> int: ...
    @property
    def datagrams_sent(self) -> int: ...
    @property
    def receive_calls(self) -> int: ...
    @property
    def send_calls(self) -> int: ...
    @property
    def send_failures(self) -> int: ...
    @property
    def stray(self) -> JobCounters: ...

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
        offload: bool,
        transport: str,
        device: str,
    ) -> None: ...
    @property
    def local(self) -> tuple[int, int]: ...
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
