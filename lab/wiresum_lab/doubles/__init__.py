"""What takes the place of a part of the product in tests."""
