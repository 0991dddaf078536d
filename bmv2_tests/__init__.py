"""Vectors of packets in and out for every switch, and what plays them to bmv2 and to Tofino."""
