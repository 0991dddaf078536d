"""A Tofino as its vendor modelled it, register by register: what the compiler and the assembler wrote runs on it.

The model is not a part of this project, and nothing here builds it. It is used through the test harness that comes with
its sources, a program that reads commands line by line. The parts, in the order in which a test meets them:

- `assembled`: the program, compiled and assembled
- `harness`: the process, its commands and what it answers
- `traffic_manager`: what a driver sets up between the pipelines
- `tracer`: a packet by which a switch shows that all before it have left
- `model_switch`: all of it as a switch that has tables, groups, counters and ports
"""
