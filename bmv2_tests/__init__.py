"""Test vectors of packets in and out, and the code that plays them to each switch."""
