"""The join service and the controller under load, attack, and death."""
