"""Reads a register of the bmv2 in this network namespace, over Thrift, as `simple_switch_CLI` does.

python register_read.py rounds        every cell that is not zero
python register_read.py bitmaps 2     one cell
"""

from __future__ import annotations

import argparse
import io
import json
import sys

from thriftpy2.parser import load_fp
from thriftpy2.protocol import TBinaryProtocolFactory, TMultiplexedProtocolFactory
from thriftpy2.rpc import client_context
from thriftpy2.thrift import TException
from thriftpy2.transport import TTransportException

from wiresum import compiled

THRIFT_PORT = 9090
CELLS_SHOWN_MAX = 32
CONTEXT = 0
TIMEOUT_MS = 10_000
BITS_MAX = 63
"""Bits of a value. Thrift has a value as a signed number of 64 bits, and bmv2 gives the largest of these for any larger
value."""

# The two calls of bmv2's Thrift interface that are used.
INTERFACE = """
exception InvalidRegisterOperation { 1: i32 code }
service Standard {
  i64 bm_register_read(1: i32 context, 2: string name, 3: i32 index) throws (1: InvalidRegisterOperation error),
  list<i64> bm_register_read_all(1: i32 context, 2: string name) throws (1: InvalidRegisterOperation error),
}
"""


def read(name: str, cell: int | None) -> dict[int, int]:
    """Values by cell: of one cell, or of all cells that are not zero. Raises `TException`."""
    interface = load_fp(io.StringIO(INTERFACE), "bmv2_thrift")
    protocol = TMultiplexedProtocolFactory(TBinaryProtocolFactory(), "standard")
    with client_context(
        interface.Standard,
        "127.0.0.1",
        THRIFT_PORT,
        proto_factory=protocol,
        connect_timeout=TIMEOUT_MS,
        socket_timeout=TIMEOUT_MS,
    ) as client:
        if cell is not None:
            return {cell: client.bm_register_read(CONTEXT, name, cell)}
        values = client.bm_register_read_all(CONTEXT, name)
    return {index: value for index, value in enumerate(values) if value}


def too_wide(name: str) -> str:
    """Why this register cannot be read, and where its values are; empty if it can be."""
    registers = json.loads(compiled.load("v1model").device_config)["register_arrays"]
    bits = next((register["bitwidth"] for register in registers if register["name"] == name), 0)
    if bits <= BITS_MAX:
        return ""
    return (
        f"{name} has {bits} bits, and bmv2 gives at most {BITS_MAX} of a register: see a sum's words in its RESULT "
        f"(`tshark -O wiresum` on a capture), or all that is written in bmv2's log (--log-level trace)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="register", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("name", help="as in p4src/v1model/cells.p4: owners, rounds, bitmaps, exponents, ...")
    parser.add_argument("cell", type=int, nargs="?", help="2 * slot, + 1 for an odd round (all that are not zero)")
    options = parser.parse_args()
    if complaint := too_wide(options.name):
        sys.exit(complaint)
    try:
        values = read(options.name, options.cell)
    except TTransportException as error:
        sys.exit(f"no bmv2 answers at port {THRIFT_PORT}: {error}")
    except TException:
        sys.exit(
            f"bmv2 has no register called {options.name}, or no such cell in it: p4src/v1model/cells.p4 names them"
        )
    for index, value in list(values.items())[:CELLS_SHOWN_MAX]:
        print(f"{options.name}[{index}] = {value} (0x{value:x})")
    if len(values) > CELLS_SHOWN_MAX:
        print(f"... and {len(values) - CELLS_SHOWN_MAX} more")
    if not values:
        print(f"{options.name}: all zero")


if __name__ == "__main__":
    main()
