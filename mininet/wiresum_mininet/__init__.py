"""`make mininet`: Mininet's classes for hosts and switches, topologies, a prompt: docs/mininet.md."""
