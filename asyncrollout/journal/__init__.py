"""What a run leaves on disk as it goes, so that a killed one can be resumed without losing or repeating anything."""
