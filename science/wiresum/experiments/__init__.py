"""The papers' experiments: `make science`, docs/science.md."""
