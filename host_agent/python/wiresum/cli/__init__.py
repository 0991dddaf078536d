"""The `wiresum` command."""
