"""What parent and worker both speak: messages, codecs, shared memory, digests."""
