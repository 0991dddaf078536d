"""A Tofino as its vendor models it, register by register; it runs the output of compiler and assembler.

The model is not part of this project and is not built here. It is used through the test harness in its sources, a
program that reads commands line by line. The parts, in the order of use:

- `assembled`: the program, compiled and assembled
- `harness`: the process, its commands and its answers
- `traffic_manager`: the driver's setup between the pipelines
- `tracer`: a packet that shows that all packets before it have left
- `model_switch`: a switch with tables, groups, counters and ports
"""
