"""Runs the Tofino program without a Tofino: an interpreter of its P4 source.

It reads p4src/tna as the compiler does, and passes packets through parser, ingress, recirculation, replication and
egress. docs/tofino_design.md says what that proves and what it does not. Bottom up:

    grammar.lark     the part of P4_16 that the program uses
    values.py        types and values, including undefined ones
    expressions.py   expressions are compiled to closures
    externs.py       registers, counters, checksums
    stateful.py      the abilities of a stateful ALU
    tables.py        match and action
    program.py       controls, parsers, actions, declarations
    switch.py        two pipelines, the ports, and what is between them
    prelude/         the architecture's metadata, in P4
"""
