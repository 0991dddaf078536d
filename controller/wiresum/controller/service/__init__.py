"""The gRPC services that workers and operators call: `join_server.py` combines them, in a thread of its own."""
