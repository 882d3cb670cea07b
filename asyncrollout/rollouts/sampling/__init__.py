"""Which groups are played, when, and which of them reach the trainer."""
