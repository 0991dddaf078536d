"""Checks any switch against the protocol: docs/conformance.md.

Bottom up:

    frames.py      Ethernet frames, byte by byte
    scenarios.py   jobs, packets in, and the answers that docs/protocol.md requires
    reader.py      reads the vectors
    model.py       section 3 and 8 of the protocol as a program: the required answer to any packet, and the rule for it
    traffic.py     seeded random packets
    switch.py      what a switch under test must offer: jobs in, frames in, frames out
    network.py     imaginary hosts at the ports of such a switch
    player.py      plays a scenario, step by step
    frame_cases.py what is around a datagram, and traffic that is not the protocol's
    checks.py      all checks of a run
    report.py      text by rule, and JUnit
    wires.py       packet sockets on interfaces, as the ports of a switch
    p4runtime.py   a switch that is programmed over P4Runtime
    hook.py        a switch that is programmed by a vendor's script
    command.py     `wiresum conformance`
"""
