"""The parent's side of worker processes: starting, watching and replacing them."""
