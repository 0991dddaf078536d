"""What workers and operators call over gRPC: `join_server.py` is the whole of it, in a thread of its own."""
