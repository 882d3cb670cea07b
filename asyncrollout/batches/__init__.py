"""What a trainer gets: `batch.py` is the batch, the other modules are its forms as arrays and as files.

`played.py` lays all turns of a batch out in one row, and `credit.py` says what each of them was worth; `tokens.py`,
`steps.py` and `texts.py` make arrays of that. `records.py` is a batch as JSON, `files.py` puts it into lines of a file,
`tables.py` into Parquet.
"""
