"""What answers a request: models behind servers, models in this process, and stand-ins that need no model."""
