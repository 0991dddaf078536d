"""What a packet costs."""
