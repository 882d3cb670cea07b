"""A run as one page for people to look into."""
