"""One episode, and one group of episodes of the same task."""
