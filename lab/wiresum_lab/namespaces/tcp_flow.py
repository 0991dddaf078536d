"""A TCP connection as fast as possible: `... sink ADDRESS` and `... source ADDRESS CONGESTION_CONTROL`.

The sink takes any number of connections. Each 100 ms it prints the time, in seconds of CLOCK_MONOTONIC, and the bytes
received over all connections.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections.abc import Sequence

PORT = 5001
PRINT_S = 0.1
CHUNK = bytes(1 << 18)


def sink(address: str) -> None:
    received, printed_at = 0, 0.0
    with socket.create_server((address, PORT)) as listener, selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select(PRINT_S / 2):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is listener:
                    ready.register(listener.accept()[0], selectors.EVENT_READ)
                elif data := connection.recv(len(CHUNK)):
                    received += len(data)
                else:
                    ready.unregister(connection)
                    connection.close()
            if (now := time.monotonic()) >= printed_at + PRINT_S:
                print(now, received, flush=True)
                printed_at = now


def source(address: str, congestion_control: str) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
        connection.connect((address, PORT))
        while True:
            connection.sendall(CHUNK)


def mbit_per_s(printed: str, begin_s: float, end_s: float) -> float:
    """The rate of all connections together between two times, from a sink's output. ValueError without two lines
    there."""
    lines = [line.split() for line in printed.splitlines() if line.count(" ") == 1]
    between = [(float(at), int(received)) for at, received in lines if begin_s <= float(at) <= end_s]
    if len(between) < 2:
        raise ValueError(f"the sink printed {len(between)} lines between {begin_s} and {end_s}")
    (first_s, first), (last_s, last) = between[0], between[-1]
    return (last - first) * 8 / (last_s - first_s) / 1e6


def main(arguments: Sequence[str]) -> None:
    if arguments[0] == "sink":
        sink(arguments[1])
    else:
        source(arguments[1], arguments[2])


if __name__ == "__main__":
    main(sys.argv[1:])
