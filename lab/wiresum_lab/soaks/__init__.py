"""A cluster under faults and attacks, for as long as is asked for."""
