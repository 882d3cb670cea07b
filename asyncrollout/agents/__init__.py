"""What plays episodes: language models in conversation, and numeric policies with or without a memory."""
