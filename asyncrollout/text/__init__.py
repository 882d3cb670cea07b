"""How replies are read, and any Gymnasium space as text."""
