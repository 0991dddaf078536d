"""Registers of a running bmv2, over Thrift, as `simple_switch_CLI` has them. bmv2's Thrift server lets in everybody who
reaches its port."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator

from thriftpy2.parser import load_fp
from thriftpy2.protocol import TBinaryProtocolFactory, TMultiplexedProtocolFactory
from thriftpy2.rpc import client_context

from wiresum_lab.patience import PATIENCE_S

PORT = 9090
CONTEXT = 0
INTERFACE = """
exception InvalidRegisterOperation { 1: i32 code }
service Standard {
  void bm_register_write(1: i32 context, 2: string name, 3: i32 index, 4: i64 value)
    throws (1: InvalidRegisterOperation error),
}
"""


@contextlib.contextmanager
def register_writer(address: str) -> Iterator[Callable[[str, int, int], None]]:
    """Gives a function that writes one cell: the register's name, the cell, and the value, of which bmv2 takes 63 bits.
    Raises Thrift's `TTransportException` if nobody answers at `address`, and its `TException` if bmv2 refuses."""
    interface = load_fp(io.StringIO(INTERFACE), "bmv2_thrift")
    protocol = TMultiplexedProtocolFactory(TBinaryProtocolFactory(), "standard")
    wait_ms = int(1000 * PATIENCE_S)
    with client_context(
        interface.Standard, address, PORT, proto_factory=protocol, connect_timeout=wait_ms, socket_timeout=wait_ms
    ) as client:
        yield lambda name, cell, value: client.bm_register_write(CONTEXT, name, cell, value)
