"""`make mininet`: Mininet's classes for hosts and switches, topologies, and a prompt: docs/mininet.md."""
