"""Other systems' names and call shapes on top of ours: change the import line, keep the trainer."""
