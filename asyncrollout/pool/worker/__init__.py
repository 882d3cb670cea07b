"""The child's side: what runs in a worker process. The inline host uses the same env runner."""
