"""Runs the Tofino program without a Tofino: an interpreter of its P4 source.

It reads p4src/tna as the compiler does and passes packets through parser, ingress, recirculation, replication and
egress. docs/tofino_tests.md says what that proves and what it does not. Bottom up:

    grammar.lark     the part of P4_16 that the program uses
    values.py        types and values, with one for what is undefined
    expressions.py   expressions become closures
    externs.py       registers, counters, checksums, random numbers
    stateful.py      what a stateful ALU can do
    tables.py        match and action
    program.py       controls, parsers, actions, declarations
    switch.py        two pipelines, the ports and what lies between
    prelude/         the architecture's metadata, in P4
"""
