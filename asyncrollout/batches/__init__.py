"""What a trainer gets: `batch.py` is the batch, the other modules turn it into arrays and files.

`samples.py` says which turns of a trajectory make up a sample or a conversation, `flat_turns.py` lists the turns of all
trajectories one after the other, `advantage.py` computes their advantages; `tokens.py`, `steps.py` and `texts.py` make
arrays of them. `records.py` encodes a batch as JSON, `files.py` writes it
as JSON lines or Parquet.
"""
